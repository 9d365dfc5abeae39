//! What is sent, to queues and to the topic.

use super::{
    oracle::{Draft, Ordering},
    sql::{elements, interval, literal, number},
    step::TOPIC,
    walk::Walk,
};

impl Walk<'_> {
    /// The numbers of what has come to a queue.
    pub(super) async fn fresh(&self, queue: &str) -> Vec<i64> {
        let from = self.oracle.last_seq + 1;
        let rows = self.ask(&format!("SELECT seq FROM peek('{queue}', {from}, NULL, 1000)")).await.unwrap();
        rows.iter().map(|row| number(row, "seq")).collect()
    }

    /// Whom a message goes to.
    fn goals(queue: &'static str, draft: &Draft) -> Vec<&'static str> {
        if queue != TOPIC {
            return vec![queue];
        }
        let gold = draft.tier.as_deref() == Some("gold");
        let alpha =
            draft.subject.as_deref().is_some_and(|subject| subject.split('.').next() == Some("alpha"));
        [("gold", gold), ("alpha", alpha)]
            .into_iter()
            .filter(|(_, accepts)| *accepts)
            .map(|(name, _)| name)
            .collect()
    }

    /// What was sent is in both; says the slots.
    async fn put(&mut self, queue: &'static str, drafts: &[Draft]) -> Vec<i64> {
        let now = self.oracle.now;
        let mut slots = vec![0; drafts.len()];
        let (before, mut last) = (self.oracle.last_seq, self.oracle.last_seq);
        let goals = if queue == TOPIC { vec!["gold", "alpha"] } else { vec![queue] };
        for goal in goals {
            let (places, here): (Vec<usize>, Vec<Draft>) = (0..drafts.len())
                .filter(|n| Self::goals(queue, &drafts[*n]).contains(&goal))
                .map(|n| (n, drafts[n].clone()))
                .unzip();
            let seqs = self.fresh(goal).await;
            assert!(seqs.iter().all(|seq| *seq > before));
            last = seqs.iter().copied().fold(last, i64::max);
            let mut fresh = seqs.into_iter();
            let put = self.queue(goal).put(now, &here, &mut fresh);
            assert_eq!(fresh.next(), None, "more is in \"{goal}\" than was sent");
            for (place, slot) in places.into_iter().zip(put).filter(|(_, slot)| *slot > 0) {
                slots[place] = if slots[place] == 0 { slot } else { slot.min(slots[place]) };
            }
        }
        self.oracle.last_seq = last;
        slots
    }

    pub(super) fn lacks_group(&mut self, queue: &str, drafts: &[Draft]) -> bool {
        queue != TOPIC
            && self.queue(queue).settings.ordering == Ordering::GroupFifo
            && drafts.iter().any(|draft| draft.group.is_none())
    }

    pub(super) async fn send(&mut self, queue: &'static str, draft: &Draft) {
        let (verb, at) = match draft.delay {
            Some(delay) => ("schedule", format!(", at => clock_timestamp() + interval '{delay} ms'")),
            None => ("send", String::new()),
        };
        let answer = self
            .ask(&format!(
                "SELECT {verb}('{queue}', {}{at}, message_id => {}, group_id => {}, subject => {}, properties => {}, ttl => {}) AS n",
                literal(Some(&draft.body)),
                literal(draft.id.as_deref()),
                literal(draft.group.as_deref()),
                literal(draft.subject.as_deref()),
                properties(draft),
                interval(draft.ttl),
            ))
            .await;
        let now = self.oracle.now;
        let refused = if self.lacks_group(queue, std::slice::from_ref(draft)) {
            Some("LH009")
        } else if queue != TOPIC && self.queue(queue).conflicts(draft, now) {
            Some("LH007")
        } else {
            None
        };
        match refused {
            Some(code) => assert_eq!(answer.map(|_| ()), Err(code.into())),
            None => {
                let slots = self.put(queue, std::slice::from_ref(draft)).await;
                assert_eq!(number(&answer.unwrap()[0], "n"), slots[0]);
            }
        }
    }

    pub(super) async fn send_many(&mut self, queue: &'static str, drafts: &[Draft]) {
        let column =
            |value: &dyn Fn(&Draft) -> String| drafts.iter().map(value).collect::<Vec<_>>().join(", ");
        let at = |draft: &Draft| {
            draft.delay.map_or("NULL".into(), |ms| format!("clock_timestamp() + interval '{ms} ms'"))
        };
        let answer = self
            .ask(&format!(
                "SELECT send_many('{queue}', ARRAY[{}]::text[], message_ids => ARRAY[{}]::text[], group_ids => ARRAY[{}]::text[],
                    subjects => ARRAY[{}]::text[], properties => ARRAY[{}]::jsonb[], ttls => ARRAY[{}]::interval[],
                    ats => ARRAY[{}]::timestamptz[]) AS slots",
                column(&|draft| literal(Some(&draft.body))),
                column(&|draft| literal(draft.id.as_deref())),
                column(&|draft| literal(draft.group.as_deref())),
                column(&|draft| literal(draft.subject.as_deref())),
                column(&properties),
                column(&|draft| interval(draft.ttl)),
                column(&at),
            ))
            .await;
        if self.lacks_group(queue, drafts) {
            assert_eq!(answer.map(|_| ()), Err("LH009".into()));
            return;
        }
        let slots: Vec<_> = self.put(queue, drafts).await.iter().map(i64::to_string).collect();
        assert_eq!(elements(&answer.unwrap()[0], "slots"), slots);
    }
}

fn properties(draft: &Draft) -> String {
    literal(draft.tier.as_ref().map(|tier| serde_json::json!({ "tier": tier }).to_string()).as_deref())
}
