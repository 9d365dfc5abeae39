//! What must hold after every step.

use std::collections::BTreeSet;

use leasehold_dispatch::Bookkeeping;
use leasehold_store::Stamp;

use crate::{
    call::{Answer, Call, Work, key, tag},
    view::{Key, Outcome, Row, View},
    walk::{Hand, Walk},
};

/// Fails with the text unless the condition holds.
macro_rules! require {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err(format!($($text)+));
        }
    };
}
pub(crate) use require;

fn knows(book: &Bookkeeping, of: &Key, attempt: i64) -> bool {
    let same = |stamp: &Stamp| stamp.attempt == attempt && key(stamp) == *of;
    book.tracked.iter().any(|stamped| same(&stamped.stamp)) || book.orphans.iter().any(same)
}

impl Walk<'_> {
    async fn look(&self) -> View {
        let mut view = self.site.looks.look(&self.site.sql, self.queue).await;
        let owners = self.owners.iter().flatten();
        view.books = owners.map(|owner| (owner.name.clone(), owner.consumer.bookkeeping())).collect();
        for flying in &self.air {
            if flying.call.polls() {
                view.polling.insert(flying.call.owner.clone());
            }
            if flying.call.beats() {
                view.beating.insert(flying.call.owner.clone());
            }
        }
        view
    }

    /// Looks at everything, and finds nothing that is not allowed.
    pub(crate) async fn agree(&mut self) -> Result<(), String> {
        let after = self.look().await;
        self.agree_on_requests(&after)?;
        self.agree_on_shares(&after)?;
        self.explain(&after)?;
        for (call, answer) in &self.answered {
            self.agree_on_answer(&after, call, answer)?;
        }
        self.note_answers();
        agree_on_flight(&after)?;
        self.agree_on_books(&after)?;
        self.before = after;
        Ok(())
    }

    /// Invariant 1, and that a request is in one state.
    fn agree_on_requests(&mut self, after: &View) -> Result<(), String> {
        for (key, row) in &after.rows {
            require!(self.memory.known.contains(key), "{key:?} was never enqueued");
            require!(!after.outcomes.contains_key(key), "{key:?} has a result and a live row (invariant 1)");
            require!(row.dead_letters == 0, "{key:?} has a dead letter and a live row (invariant 1)");
            require!(!row.locked, "{key:?} is locked by a receiver that does not exist");
            let one_state = match (row.ready, row.in_flight()) {
                (true, true) => row.attempt != 0 && !row.due,
                (true, false) => row.attempt == 0 && !row.due,
                (false, in_flight) => !in_flight && row.attempt == 0 && row.due,
            };
            require!(one_state, "{key:?} is in no state, or in two: {row:?}");
            require!(
                row.deliveries >= i32::from(row.in_flight()),
                "{key:?} was handed out, but never: {row:?}"
            );
            if let Some(tag) = &row.tag {
                self.memory.tags.insert((key.clone(), tag.clone()));
            }
        }
        for key in &self.memory.known {
            let outcomes = after.outcomes.get(key).map_or(0, Vec::len);
            require!(outcomes <= 1, "{key:?} has {outcomes} results (invariant 1)");
            let live = after.rows.contains_key(key);
            require!(live || outcomes == 1, "{key:?} is neither a row nor a result (invariant 5)");
            for outcome in after.outcomes.get(key).into_iter().flatten() {
                let is_kept = outcome.code.as_deref().is_some_and(|code| code != "CANCELLED");
                let right = outcome.dead_letters == i64::from(is_kept);
                require!(
                    right,
                    "{key:?} has {} dead letters: {outcome:?} (invariant 5)",
                    outcome.dead_letters
                );
            }
        }
        Ok(())
    }

    /// Epochs rise whenever a partition changes hands, and never fall; nobody takes what another one holds.
    fn agree_on_shares(&mut self, after: &View) -> Result<(), String> {
        for (partition, now) in &after.shares {
            let Some(was) = self.before.shares.get(partition) else { continue };
            require!(now.epoch >= was.epoch, "the epoch of partition {partition} falls: {was:?}, {now:?}");
            if now.owner == was.owner {
                continue;
            }
            let given_up = was.owner.is_none()
                || self.ousted
                || self.acting.iter().any(|c| Some(&c.owner) == was.owner.as_ref());
            if now.owner.is_none() {
                require!(given_up, "partition {partition} is given up by another: {was:?}, {now:?}");
                continue;
            }
            require!(
                now.epoch > was.epoch,
                "partition {partition} changes hands in one epoch: {was:?}, {now:?}"
            );
            require!(
                !was.live || given_up,
                "partition {partition} is taken from its owner: {was:?}, {now:?}"
            );
            let takers = self.acting.iter().filter(|c| c.beats() && Some(&c.owner) == now.owner.as_ref());
            require!(takers.count() > 0, "nobody took partition {partition}: {was:?}, {now:?}");
            self.tally.count("takeovers", usize::from(was.owner.is_some()));
        }
        Ok(())
    }

    /// Invariant 3: what is reported is what happened.
    fn agree_on_answer(&self, after: &View, call: &Call, answer: &Answer) -> Result<(), String> {
        match (&*call.work, answer) {
            (Work::Ack(completions), Answer::Acked(Ok(acked))) => {
                require!(acked.len() == completions.len(), "an ack answers for others");
                for (stamp, acked) in call.stamps().into_iter().zip(acked) {
                    let outcomes = after.outcomes.get(&key(stamp)).map_or(&[][..], Vec::as_slice);
                    let wrote = |outcome: &Outcome| {
                        outcome.tag == tag(call.number, stamp.attempt) && outcome.attempt == stamp.attempt
                    };
                    let done = outcomes.iter().any(wrote);
                    require!(
                        *acked == done,
                        "the ack of {stamp:?} says {acked}, but {outcomes:?} (invariant 3)"
                    );
                }
            }
            (work, Answer::Matched(Ok(matched))) => {
                let of_call = matched.iter().all(|stamp| call.settles(&key(stamp), stamp.attempt));
                require!(of_call, "{matched:?} were never asked for");
                for stamp in call.stamps() {
                    let says = matched.contains(stamp);
                    let (key, number) = (key(stamp), call.number);
                    let ended = self.memory.departures.get(&(key.clone(), stamp.attempt));
                    let (perhaps, surely) = match work {
                        Work::Retry(_) => {
                            let wrote = self.memory.tags.contains(&(key, tag(number, stamp.attempt)));
                            (wrote, wrote)
                        }
                        _ => (
                            ended.is_some_and(|by| by.contains(&number)),
                            ended.is_some_and(|by| by.contains(&number) && by.len() == 1),
                        ),
                    };
                    require!(
                        perhaps || !says,
                        "{work:?} says of {stamp:?} what did not happen (invariant 3)"
                    );
                    require!(
                        says || !surely,
                        "{work:?} keeps silent on what it did to {stamp:?} (invariant 3)"
                    );
                }
            }
            (Work::Poll { limit, .. }, Answer::Polled(Ok(polled))) => {
                require!(polled.len() <= *limit as usize, "a poll returns more than {limit}");
                let returned: BTreeSet<(Key, i64)> = polled
                    .iter()
                    .map(|polled| &polled.request.stamped.stamp)
                    .map(|stamp| (key(stamp), stamp.attempt))
                    .collect();
                require!(returned.len() == polled.len(), "a poll returns the same twice");
                for dispatch in &returned {
                    let made = self.memory.arrivals.get(dispatch).is_some_and(|by| by.contains(&call.number));
                    // Where several went on at once, it may have come and gone unseen.
                    require!(made || self.acting.len() > 1, "{dispatch:?} is returned and was not made");
                }
                for (dispatch, by) in &self.memory.arrivals {
                    let only = by.len() == 1 && by.contains(&call.number);
                    require!(
                        !only || returned.contains(dispatch),
                        "{dispatch:?} was made and is not returned"
                    );
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// What a consumer tracks is what somebody works on for it, and no one works on what it does not track.
    fn agree_on_books(&self, after: &View) -> Result<(), String> {
        for (owner, book) in &after.books {
            let tracked: BTreeSet<&Stamp> = book.tracked.iter().map(|stamped| &stamped.stamp).collect();
            let worked_on: BTreeSet<&Stamp> = self.works_on(owner).map(Hand::stamp).collect();
            require!(
                tracked == worked_on,
                "{owner} tracks {tracked:?}, but works on {worked_on:?} (invariant 2)"
            );
            let epoch = |partition| book.leases.iter().find(|l| l.partition == partition).map(|l| l.epoch);
            let former = book.tracked.iter().find(|t| epoch(t.partition).is_some_and(|e| t.epoch < e));
            require!(former.is_none(), "{owner} works on {former:?} of a share that it lost (invariant 2)");
            let keys: BTreeSet<Key> = tracked.iter().map(|stamp| key(stamp)).collect();
            let spent = book.orphans.iter().find(|orphan| keys.contains(&key(orphan)));
            require!(spent.is_none(), "{owner} tracks a dispatch by the key of its orphan {spent:?}");
        }
        Ok(())
    }
}

/// Invariant 2, and that stamps of former owners do not outlive their reset.
fn agree_on_flight(after: &View) -> Result<(), String> {
    for (key, row) in after.rows.iter().filter(|(_, row)| row.in_flight()) {
        let share = &after.shares[&row.partition];
        require!(row.epoch <= share.epoch, "{key:?} is of an epoch to come: {row:?}, {share:?}");
        let Some((owner, book)) = share.owner.as_ref().and_then(|o| Some((o, after.books.get(o)?))) else {
            continue;
        };
        if row.epoch == share.epoch {
            let polling = after.polling.contains(owner);
            let finished = knows(book, key, row.attempt) || book.reconciling || polling;
            require!(finished, "nobody will finish {key:?}: {row:?}, {owner} has {book:?} (invariant 2)");
        } else {
            let current = book.leases.iter().any(|l| l.partition == row.partition && l.epoch == share.epoch);
            let settled = current && !book.unsettled.contains(&row.partition);
            let beating = after.beating.contains(owner);
            require!(
                !settled || beating,
                "{key:?} keeps the stamp of a former owner: {row:?}, {owner} has {book:?} (invariant 5)"
            );
        }
    }
    Ok(())
}

impl Row {
    /// Where it is, in one word.
    pub(crate) fn state(&self) -> &'static str {
        match (self.ready, self.in_flight()) {
            (true, true) => "in flight",
            (true, false) => "pending",
            (false, _) => "parked",
        }
    }
}
