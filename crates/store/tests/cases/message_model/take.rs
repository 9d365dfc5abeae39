//! Each step, taken in both.

use tokio_postgres::SimpleQueryRow;

use super::{
    oracle::{Ms, Verb},
    sql::{PEEKED, RECEIVED, Shown, assert_same, elements, interval, literal, number},
    step::{Pair, Step},
    walk::{STEP, Walk},
};

impl Walk<'_> {
    /// Takes a step in both, and compares what each says of it.
    pub(crate) async fn take(&mut self, step: &Step) {
        self.pass(if let Step::Wait(by) = step { *by } else { STEP }).await;
        let now = self.oracle.now;
        match step {
            Step::Wait(_) => {}
            Step::Send { queue, draft } => self.send(queue, draft).await,
            Step::SendMany { queue, drafts } => self.send_many(queue, drafts).await,
            Step::Cancel { queue, seq } => {
                let answer = self.ask(&format!("SELECT cancel_scheduled('{queue}', {seq})")).await;
                let expected = if self.queue(queue).cancel(*seq) { Ok(()) } else { Err("LH011".into()) };
                assert_eq!(answer.map(|_| ()), expected);
            }
            Step::Receive { queue, max, locks, attempt } => self.receive(queue, *max, *locks, *attempt).await,
            Step::ReceiveDeferred { queue, seqs } => {
                let answer = self
                    .ask(&format!(
                        "SELECT {RECEIVED} FROM receive_deferred('{queue}', ARRAY{seqs:?}::bigint[])"
                    ))
                    .await;
                if seqs.iter().all(|seq| self.queue(queue).deferred(*seq)) {
                    let mut seqs = seqs.clone();
                    seqs.sort_unstable();
                    self.locked(queue, &seqs, &answer.unwrap());
                } else {
                    assert_eq!(answer.map(|_| ()), Err("LH011".into()));
                }
            }
            Step::Settle { queue, pair, verb } => {
                let answer = self.ask(&settlement(queue, pair, verb)).await;
                let settled = self.queue(queue).settle(now, pair.0, &pair.1, verb);
                assert_eq!(answer.map(|_| ()), if settled { Ok(()) } else { Err("LH006".into()) });
                if settled {
                    self.settled.push((queue, pair.clone(), verb.clone()));
                }
            }
            Step::CompleteBatch { queue, pairs } => {
                let answer = self.ask(&batch("complete_batch", queue, pairs)).await.unwrap();
                // First what is locked, then what was completed: a pair given twice is completed once.
                let done: Vec<_> = pairs
                    .iter()
                    .map(|(seq, token)| self.queue(queue).settle(now, *seq, token, &Verb::Complete))
                    .map(|done| if done { "t" } else { "f" })
                    .collect();
                assert_eq!(elements(&answer[0], "answer"), done);
            }
            Step::Renew { queue, pair } => self.renew(queue, pair).await,
            Step::RenewBatch { queue, pairs } => self.renew_batch(queue, pairs).await,
            Step::Redrive { queue, target, max, older_than } => {
                self.redrive(queue, *target, *max, *older_than).await;
            }
            Step::Purge { queue, max, older_than } => {
                let mut dead = self.queue(queue).dead(now, *older_than);
                dead.sort_unstable();
                dead.truncate(max.unwrap_or(usize::MAX));
                let bounds = bounds(*max, *older_than);
                let answer = self.ask(&format!("SELECT purge('{queue}', {bounds}) AS n")).await.unwrap();
                assert_eq!(number(&answer[0], "n"), dead.len() as i64);
                for (_, seq) in dead {
                    self.queue(queue).messages.remove(&seq);
                }
            }
            Step::Peek { queue, from, state, max } => self.peek(queue, *from, *state, *max).await,
            Step::Maintain => _ = self.ask("SELECT maintain()").await.unwrap(),
        }
    }

    async fn renew(&mut self, queue: &str, (seq, token): &Pair) {
        let statement = format!("SELECT ARRAY[renew('{queue}', {seq}, '{token}')] AS untils");
        let answer = self.ask(&epochs(&statement)).await;
        let now = self.oracle.now;
        match self.queue(queue).renew(now, *seq, token) {
            Some(until) => self.same_times(&elements(&answer.unwrap()[0], "answer"), &[Some(until)]),
            None => assert_eq!(answer.map(|_| ()), Err("LH006".into())),
        }
    }

    async fn renew_batch(&mut self, queue: &str, pairs: &[Pair]) {
        let statement = batch("renew_batch", queue, pairs).replace("AS answer", "AS untils");
        let answer = self.ask(&epochs(&statement)).await.unwrap();
        let now = self.oracle.now;
        let expected: Vec<_> =
            pairs.iter().map(|(seq, token)| self.queue(queue).renew(now, *seq, token)).collect();
        self.same_times(&elements(&answer[0], "answer"), &expected);
    }

    fn same_times(&self, shown: &[String], expected: &[Option<Ms>]) {
        let shown: Vec<_> = shown.iter().map(|ms| ms.parse::<Ms>().ok().map(|ms| ms - self.offset)).collect();
        let near = |a: &Option<Ms>, b: &Option<Ms>| match (a, b) {
            (Some(a), Some(b)) => (a - b).abs() < STEP,
            (a, b) => a == b,
        };
        let same = shown.len() == expected.len() && shown.iter().zip(expected).all(|(a, b)| near(a, b));
        assert!(same, "{shown:?} in the database, {expected:?} in the model");
    }

    /// These were locked, each with a token of its own that nobody has seen.
    fn locked(&mut self, queue: &str, seqs: &[i64], answer: &[SimpleQueryRow]) {
        let now = self.oracle.now;
        let tokens: Vec<_> =
            answer.iter().map(|row| row.get("lock_token").unwrap_or_default().to_owned()).collect();
        let shown: Vec<_> = answer.iter().map(|row| Shown::received(row, self.offset)).collect();
        let locks: Vec<Pair> = seqs.iter().copied().zip(tokens).collect();
        assert!(
            locks.iter().all(|(_, token)| self.issued.iter().all(|(_, old)| old != token)),
            "a token again"
        );
        let expected = self.queue(queue).lock(now, &locks);
        let expected: Vec<_> = expected.iter().map(|(seq, m)| Shown::of_received(*seq, m)).collect();
        assert_same(&format!("received from \"{queue}\""), &shown, &expected);
        self.issued.extend(locks);
    }

    async fn receive(&mut self, queue: &str, max: usize, locks: bool, attempt: Option<&str>) {
        let now = self.oracle.now;
        let mode = if locks { "peek_lock" } else { "receive_and_delete" };
        let given = literal(attempt);
        let answer = self
            .ask(&format!("SELECT {RECEIVED} FROM receive('{queue}', {max}, '{mode}', {given})"))
            .await
            .unwrap();
        let replay = attempt.and_then(|id| self.queue(queue).replay(now, id));
        let is_new = replay.is_none();
        let expected = match replay {
            Some(replay) => replay,
            None => {
                let seqs: Vec<_> = answer.iter().map(|row| number(row, "seq")).collect();
                let queued = self.queue(queue);
                let messages: String =
                    queued.messages.iter().map(|message| format!("\n    {message:?}")).collect();
                let expected = queued.receivable(max, locks);
                assert!(
                    queued.may_find(&seqs, max, locks),
                    "received {seqs:?} and not {expected:?} from \"{queue}\", where there is{messages}"
                );
                if locks {
                    self.locked(queue, &seqs, &answer);
                    seqs.iter().map(|seq| (*seq, self.queue(queue).messages[seq].clone())).collect()
                } else {
                    self.queue(queue).delete(&seqs)
                }
            }
        };
        let shown: Vec<_> = answer.iter().map(|row| Shown::received(row, self.offset)).collect();
        let rows: Vec<_> = expected.iter().map(|(seq, m)| Shown::of_received(*seq, m)).collect();
        assert_same(&format!("received from \"{queue}\""), &shown, &rows);
        if let (Some(id), true, false) = (attempt, is_new, expected.is_empty()) {
            self.queue(queue).remember(now, id, &expected, locks);
        }
    }

    async fn redrive(
        &mut self,
        queue: &'static str,
        target: Option<&'static str>,
        max: Option<usize>,
        older_than: Option<Ms>,
    ) {
        let now = self.oracle.now;
        let goal = target.unwrap_or(queue);
        let to = literal(target);
        let answer =
            self.ask(&format!("SELECT redrive('{queue}', {to}, {}) AS n", bounds(max, older_than))).await;
        let mut seqs: Vec<_> =
            self.queue(queue).dead(now, older_than).into_iter().map(|(_, seq)| seq).collect();
        seqs.truncate(max.unwrap_or(usize::MAX));
        let drafts: Vec<_> = seqs.iter().map(|seq| self.queue(queue).messages[seq].draft.clone()).collect();
        if self.lacks_group(goal, &drafts) {
            assert_eq!(answer.map(|_| ()), Err("LH009".into()));
            return;
        }
        assert_eq!(number(&answer.unwrap()[0], "n"), seqs.len() as i64);
        let numbers = if goal == queue { seqs.clone() } else { self.fresh(goal).await };
        assert_eq!(numbers.len(), seqs.len(), "in \"{goal}\"");
        for (seq, number) in seqs.into_iter().zip(numbers) {
            let message = self.queue(queue).messages.remove(&seq).unwrap();
            self.queue(goal).take_back(now, number, message);
            self.oracle.last_seq = self.oracle.last_seq.max(number);
        }
    }

    async fn peek(&mut self, queue: &str, from: i64, state: Option<&str>, max: usize) {
        let given = literal(state);
        let answer =
            self.ask(&format!("SELECT {PEEKED} FROM peek('{queue}', {from}, {given}, {max})")).await.unwrap();
        let shown: Vec<_> = answer.iter().map(|row| Shown::peeked(row, self.offset)).collect();
        let fits = self
            .queue(queue)
            .messages
            .range(from..)
            .filter(|(_, m)| state.is_none_or(|word| m.state.word() == word));
        let expected: Vec<_> = fits.take(max).map(|(seq, m)| Shown::of_peeked(*seq, m)).collect();
        assert_same(&format!("peeked in \"{queue}\""), &shown, &expected);
    }
}

fn settlement(queue: &str, (seq, token): &Pair, verb: &Verb) -> String {
    let lock = format!("'{queue}', {seq}, '{token}'");
    match verb {
        Verb::Complete => format!("SELECT complete({lock})"),
        Verb::Abandon(0) => format!("SELECT abandon({lock})"),
        Verb::Abandon(delay) => format!("SELECT abandon({lock}, interval '{delay} ms')"),
        Verb::Reject(reason, description) => {
            format!("SELECT reject({lock}, {}, {})", literal(*reason), literal(*description))
        }
        Verb::Defer => format!("SELECT defer({lock})"),
    }
}

fn batch(verb: &str, queue: &str, pairs: &[Pair]) -> String {
    let seqs: Vec<_> = pairs.iter().map(|(seq, _)| seq.to_string()).collect();
    let tokens: Vec<_> = pairs.iter().map(|(_, token)| literal(Some(token))).collect();
    let (seqs, tokens) = (seqs.join(", "), tokens.join(", "));
    format!("SELECT {verb}('{queue}', ARRAY[{seqs}]::bigint[], ARRAY[{tokens}]::text[]) AS answer")
}

/// Times as milliseconds.
fn epochs(statement: &str) -> String {
    format!(
        "SELECT ARRAY(SELECT (extract(epoch FROM u) * 1000)::bigint FROM unnest(untils) WITH ORDINALITY AS x (u, n) ORDER BY n) AS answer
         FROM ({statement}) AS y"
    )
}

fn bounds(max: Option<usize>, older_than: Option<Ms>) -> String {
    format!("{}, {}", max.map_or_else(|| "NULL".into(), |max| max.to_string()), interval(older_than))
}
