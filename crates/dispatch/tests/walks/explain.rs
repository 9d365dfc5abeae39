//! Whatever became of a request in a step, one of the calls that went on in it did that, and was allowed to.

use crate::{
    call::{Call, Work, key, tag},
    check::require,
    view::{Key, Outcome, Row, Share, View},
    walk::Walk,
};

/// What became of one request.
struct Change<'a> {
    key: &'a Key,
    was: &'a Row,
    now: Option<&'a Row>,
    outcome: Option<&'a Outcome>,
    /// Its partition, before and after.
    share: &'a Share,
    share_now: &'a Share,
    /// One call went on, so that nothing happened in between.
    alone: bool,
}

impl Change<'_> {
    /// Whether the call, when its statement began, was of the owner that the row is stamped by.
    fn fenced(&self, call: &Call) -> bool {
        let holds =
            |share: &Share| share.owner.as_ref() == Some(&call.owner) && share.epoch == self.was.epoch;
        holds(self.share) || call.shares.get(&self.was.partition).is_some_and(holds)
    }

    /// Whether it left the row with so many deliveries more.
    fn leaves(&self, more: i32) -> bool {
        let Some(now) = self.now else { return !self.alone };
        let redispatched = i32::from(now.in_flight());
        !self.alone || now.deliveries == self.was.deliveries + more + redispatched
    }

    /// Pending, or wherever a later call has brought it.
    fn is_pending(&self) -> bool {
        self.now.is_none_or(|now| now.ready && !now.in_flight()) || !self.alone
    }

    fn is_parked(&self) -> bool {
        self.now.is_some_and(|now| !now.in_flight() && now.ready == now.cancelled) || !self.alone
    }

    fn was_orphan(&self, call: &Call, view: &View) -> bool {
        let attempt = self.was.attempt;
        let book = view.books.get(&call.owner);
        // An outcome that came too late may have settled the entry while the hand-back was under way.
        let now = book.map_or(&[][..], |book| &book.orphans);
        let orphan = now.iter().chain(&call.orphans).any(|o| o.attempt == attempt && key(o) == *self.key);
        // What a closing consumer had to hand back is not looked into.
        orphan || call.late || book.is_none()
    }

    fn was_unknown(&self, call: &Call, view: &View) -> bool {
        let Some(book) = view.books.get(&call.owner).filter(|_| !call.late) else { return call.late };
        let attempt = self.was.attempt;
        let tracked = |b: &leasehold_dispatch::Bookkeeping| {
            b.tracked.iter().any(|t| t.stamp.attempt == attempt && key(&t.stamp) == *self.key)
        };
        book.reconciling && !tracked(book) && !self.was_orphan(call, view)
    }

    /// Whether the call may have ended the dispatch that was.
    fn ended_by(&self, call: &Call, before: &View) -> bool {
        let settles = call.settles(self.key, self.was.attempt);
        let reconciled = self.fenced(call) && self.leaves(-1) && self.was_unknown(call, before);
        match &*call.work {
            Work::Ack(_) => {
                let tag = tag(call.number, self.was.attempt);
                let wrote = self.outcome.is_some_and(|o| o.tag == tag && o.attempt == self.was.attempt);
                settles && self.fenced(call) && self.now.is_none() && wrote
            }
            Work::Retry(_) => {
                let tag = tag(call.number, self.was.attempt);
                let wrote = self.now.is_some_and(|now| now.tag.as_ref() == Some(&tag));
                settles && self.fenced(call) && self.is_parked() && self.leaves(0) && (wrote || !self.alone)
            }
            Work::Defer(_) => settles && self.fenced(call) && self.is_parked() && self.leaves(-1),
            Work::HandBack { refund, .. } => {
                settles && self.fenced(call) && self.is_pending() && self.leaves(-i32::from(*refund))
            }
            Work::Poll { .. } => reconciled,
            Work::Rebalance => {
                let supersedes =
                    |share: &Share| share.owner.as_ref() == Some(&call.owner) && share.epoch > self.was.epoch;
                let reset = (supersedes(self.share) || supersedes(self.share_now)) && self.leaves(0);
                let handed_back = self.fenced(call) && self.leaves(0) && self.was_orphan(call, before);
                self.is_pending() && (reset || handed_back || reconciled)
            }
            Work::Close => {
                self.is_pending() && self.fenced(call) && self.leaves(0) && self.was_orphan(call, before)
            }
        }
    }
}

impl Walk<'_> {
    pub(super) fn explain(&mut self, after: &View) -> Result<(), String> {
        let known: Vec<Key> = self.memory.known.iter().cloned().collect();
        let alone = self.acting.len() <= 1;
        for key in &known {
            let (was, now) = (self.before.rows.get(key).cloned(), after.rows.get(key));
            let outcome = after.outcomes.get(key).and_then(|outcomes| outcomes.first());
            let Some(was) = was else {
                self.explain_without_row(key, now, outcome)?;
                continue;
            };
            let same = now.is_some_and(|n| (n.epoch, n.attempt) == (was.epoch, was.attempt));
            if let Some(now) = now.filter(|_| same) {
                self.explain_stay(key, &was, now, alone)?;
                continue;
            }
            if was.in_flight() {
                let (share, share_now) = (&self.before.shares[&was.partition], &after.shares[&was.partition]);
                let change = Change { key, was: &was, now, outcome, share, share_now, alone };
                let by = self.acting.iter().filter(|call| change.ended_by(call, &self.before));
                let by: std::collections::BTreeSet<u32> = by.map(|call| call.number).collect();
                require!(
                    !by.is_empty(),
                    "nobody may have ended {key:?} in {share:?}: {was:?}, now {now:?} {outcome:?}, by {:?} (invariant 3)",
                    self.acting
                );
                self.memory.departures.insert((key.clone(), was.attempt), by);
            } else {
                require!(
                    now.is_some() || !alone,
                    "{key:?} was {} and is finished (invariant 3)",
                    was.state()
                );
            }
            if let Some(now) = now.filter(|now| now.in_flight()) {
                self.explain_arrival(key, &was, now)?;
            }
            if let (None, Some(outcome)) = (now, outcome) {
                require!(
                    !alone || outcome.deliveries == was.deliveries,
                    "the result of {key:?} says {} deliveries of {}",
                    outcome.deliveries,
                    was.deliveries
                );
                self.tally.count("results", 1);
            }
        }
        Ok(())
    }

    fn explain_without_row(
        &self,
        key: &Key,
        now: Option<&Row>,
        outcome: Option<&Outcome>,
    ) -> Result<(), String> {
        let finished = self.before.outcomes.get(key);
        require!(finished.is_none() || now.is_none(), "{key:?} is back after its result (invariant 1)");
        if let Some(finished) = finished {
            require!(finished.first() == outcome, "the result of {key:?} changes");
        }
        let fresh = now.is_none_or(|row| row.deliveries == 0 && !row.in_flight());
        require!(fresh, "{key:?} is new, and was handed out: {now:?}");
        Ok(())
    }

    /// The same dispatch, or none still.
    fn explain_stay(&self, key: &Key, was: &Row, now: &Row, alone: bool) -> Result<(), String> {
        let counted = now.deliveries == was.deliveries || !alone;
        require!(counted, "{key:?} is handed out {} times after {}", now.deliveries, was.deliveries);
        let moved = now.ready != was.ready;
        require!(!moved || self.stirred || !alone, "{key:?} was {} and is {}", was.state(), now.state());
        require!(now.tag == was.tag || !alone, "{key:?} is written to and not dispatched: {was:?}, {now:?}");
        Ok(())
    }

    /// A new dispatch, by a poll of the owner.
    fn explain_arrival(&mut self, key: &Key, was: &Row, now: &Row) -> Result<(), String> {
        let (partition, alone) = (was.partition, self.acting.len() <= 1);
        let dispatches = |call: &Call, share: &Share| {
            share.owner.as_ref() == Some(&call.owner)
                && share.epoch == now.epoch
                && share.live
                && !share.draining
        };
        let may = |call: &&Call| {
            call.polls()
                && (dispatches(call, &self.before.shares[&partition])
                    || call.shares.get(&partition).is_some_and(|share| dispatches(call, share)))
        };
        let by: std::collections::BTreeSet<u32> =
            self.acting.iter().filter(may).map(|call| call.number).collect();
        require!(!by.is_empty(), "nobody may have dispatched {key:?}: {was:?}, {now:?}, {:?}", self.acting);
        let counted = was.in_flight() || now.deliveries == was.deliveries + 1 || !alone;
        require!(counted, "{key:?} is handed out {} times after {}", now.deliveries, was.deliveries);
        require!(was.ready || !alone, "{key:?} was parked and is in flight");
        let dispatch = (key.clone(), now.attempt);
        require!(!self.memory.arrivals.contains_key(&dispatch), "{dispatch:?} is made twice");
        self.memory.arrivals.insert(dispatch, by);
        Ok(())
    }
}
