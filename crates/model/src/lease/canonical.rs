//! States that differ in nothing that matters are one. That is sound as far as whatever is dropped or renumbered here
//! can change neither what may happen later nor whether a property holds.
//!
//! - Attempts are compared for equality, epochs of a partition, generations of an owner and transactions for order:
//!   they are renumbered without gaps. So their bounds are of how many are borne by something at one time, and
//!   dispatches, takeovers and lost polls have no bound in all.
//! - A write whose row has another attempt by now, or whose epoch is past, matches nothing whenever it runs: it is as
//!   good as done, and when nobody waits for it, as good as never sent. A row never has an old attempt or epoch again.
//! - The same goes for a poll given up before it began when its generation is past in the database, or when a dead
//!   process has nothing left for it to find. One that has looked would only keep others from being final.
//! - A transaction that has ended is behind every horizon; horizons with the same ones before them are one.
//! - A dead owner of whom the database and the statements know nothing is another one under a new name.

use super::{
    Lease,
    owner::{Cycle, Owner},
    state::{Request, State, attempts, horizons},
    statement::{Poll, Progress, Stage, Write},
};
use crate::Fault;

impl State {
    /// One of all states that differ in nothing that matters.
    pub(super) fn canonical(self, model: &Lease) -> Self {
        if model.swift {
            return self.normal(model);
        }
        let other = self.swapped().normal(model);
        self.normal(model).min(other)
    }

    fn normal(mut self, model: &Lease) -> Self {
        self.drop_statements(model);
        for n in 0..self.owners.len() {
            self.forget_owner(n);
            self.renumber_generations(n);
        }
        for p in 0..model.partitions {
            self.renumber_epochs(model, p);
        }
        self.renumber_transactions();
        // Numbers for the last: what is the same but for its attempt stands in the order of its first sight elsewhere.
        self.polls.sort_unstable_by_key(|poll| Poll { attempt: 0, ..*poll });
        self.writes.sort_unstable_by_key(|write| Write { attempt: 0, ..*write });
        self.renumber_attempts();
        self.polls.sort_unstable();
        self.writes.sort_unstable();
        self
    }

    fn drop_statements(&mut self, model: &Lease) {
        self.polls.retain(|poll| poll.awaited || !matches!(poll.stage, Stage::Done { .. }));
        let lax = [Fault::AckIgnoresEpoch, Fault::RetryIgnoresOwner, Fault::HandBackIgnoresAttempt];
        if !model.fault.is_some_and(|fault| lax.contains(&fault)) {
            for i in 0..self.writes.len() {
                if !self.may_match(model, self.writes[i]) {
                    self.writes[i].stage = Progress::Done;
                }
            }
        }
        self.writes.retain(|write| write.awaited || write.stage != Progress::Done);
        if !model.late_beats && !model.broken(Fault::LatePollRuns) {
            let polls = std::mem::take(&mut self.polls);
            self.polls = polls.into_iter().filter(|poll| self.may_stamp(model, *poll)).collect();
        }
    }

    fn may_match(&self, model: &Lease, write: Write) -> bool {
        let Request::InFlight { epoch, attempt } = self.requests[write.request].row else { return false };
        let p = model.partition_of(write.request);
        let here = match write.stage {
            Progress::Sent => self.partitions[p].epoch == epoch && self.owns(usize::from(write.owner), p),
            Progress::Looked { epoch: seen, .. } => seen == epoch,
            Progress::Done => false,
        };
        here && attempt == write.attempt
    }

    fn may_stamp(&self, model: &Lease, poll: Poll) -> bool {
        let o = usize::from(poll.owner);
        let owner = &self.owners[o];
        let owns = |r: usize| self.owns(o, model.partition_of(r)) || owner.late_acquire;
        let reachable = owner.up || (0..model.requests).any(|r| (poll.heads & 1 << r != 0) && owns(r));
        match poll.stage {
            Stage::Sent => {
                let fenced = owner.member == 0 || poll.generation < owner.member;
                !fenced && (owner.up || (0..model.requests).any(owns))
            }
            Stage::Looked => reachable,
            Stage::Bound { epochs } => epochs.iter().any(|epoch| *epoch != 0) || poll.awaited,
            Stage::Done { .. } => true,
        }
    }

    fn forget_owner(&mut self, n: usize) {
        let named = |o: u8| usize::from(o) == n;
        let owner = &self.owners[n];
        if owner.up || owner.is_late() {
            return;
        }
        let polls = self.polls.iter().any(|p| named(p.owner));
        if !self.polls.iter().any(|p| named(p.owner) && p.stage == Stage::Sent) {
            self.owners[n].member = 0;
        }
        let owned = self.partitions.iter().any(|p| p.owner.is_some_and(named));
        if !polls && !owned && !self.writes.iter().any(|w| named(w.owner)) {
            self.owners[n] = Owner::NEW;
        }
    }

    fn renumber_generations(&mut self, n: usize) {
        let owner = &mut self.owners[n];
        let Owner { member, late_beat, memory, .. } = owner;
        let polls = self.polls.iter_mut().filter(|poll| usize::from(poll.owner) == n);
        let mut all: Vec<&mut u8> = polls.map(|poll| &mut poll.generation).collect();
        all.extend([member, late_beat, &mut memory.generation]);
        rank(all, 1);
        if let Some(mark) = &mut owner.memory.mark {
            mark.generation = owner.memory.generation;
        }
    }

    fn renumber_epochs(&mut self, model: &Lease, p: usize) {
        let mut all = vec![&mut self.partitions[p].epoch];
        for owner in &mut self.owners {
            all.extend(owner.memory.shares[p].as_mut().map(|share| &mut share.epoch));
            let tracked = owner.memory.tracked.iter_mut().enumerate();
            let tracked = tracked.filter(|(r, _)| model.partition_of(*r) == p);
            all.extend(tracked.filter_map(|(_, t)| t.as_mut().map(|t| &mut t.epoch)));
        }
        for (r, request) in self.requests.iter_mut().enumerate() {
            if let (true, Request::InFlight { epoch, .. }) = (model.partition_of(r) == p, &mut request.row) {
                all.push(epoch);
            }
        }
        for poll in &mut self.polls {
            if let Stage::Bound { epochs } | Stage::Done { epochs } = &mut poll.stage {
                all.push(&mut epochs[p]);
            }
        }
        for write in &mut self.writes {
            if let (true, Progress::Looked { epoch, .. }) =
                (model.partition_of(write.request) == p, &mut write.stage)
            {
                all.push(epoch);
            }
        }
        rank(all, 1);
    }

    /// Running ones get even numbers, horizons odd ones, from 1 for what nothing runs before.
    fn renumber_transactions(&mut self) {
        let mut running: Vec<u8> = self.polls.iter().map(|poll| poll.transaction).collect();
        running.retain(|number| *number != 0);
        running.sort_unstable();
        let before = |horizon: u8| running.partition_point(|number| *number < horizon);
        let mut cuts: Vec<usize> = self.owners.iter().flat_map(horizons).map(before).collect();
        cuts.retain(|cut| *cut > 0);
        cuts.sort_unstable();
        cuts.dedup();
        let even = |number: u8| 2 + 2 * at_most(&cuts, running.partition_point(|other| *other < number));
        let odd = |horizon: u8| 1 + 2 * at_most(&cuts, before(horizon));
        for poll in self.polls.iter_mut().filter(|poll| poll.transaction != 0) {
            poll.transaction = even(poll.transaction);
        }
        for owner in &mut self.owners {
            for share in owner.memory.shares.iter_mut().flatten() {
                share.horizon = share.horizon.filter(|_| !share.settled).map(odd);
            }
            let horizon = owner.memory.mark.as_mut().and_then(|mark| mark.horizon.as_mut());
            if let Cycle::Seen { xmin, xmax, .. } = &mut owner.cycle {
                // The mark's horizon is older than the look's, where there is one; and of what had ended by the look
                // it only matters whether that was all before the horizon.
                let decides = horizon.as_deref().copied().unwrap_or(*xmax);
                *xmin = if *xmin >= decides { odd(decides) } else { 0 };
                *xmax = if horizon.is_some() { 0 } else { odd(*xmax) };
            }
            if let Some(horizon) = horizon {
                *horizon = odd(*horizon);
            }
        }
    }

    fn renumber_attempts(&mut self) {
        let mut seen = Vec::new();
        let mut see = |attempt: u8| {
            if attempt != 0 && !seen.contains(&attempt) {
                seen.push(attempt);
            }
        };
        for request in &self.requests {
            if let Request::InFlight { attempt, .. } = request.row {
                see(attempt);
            }
        }
        self.owners.iter().flat_map(attempts).for_each(&mut see);
        self.polls.iter().for_each(|poll| see(poll.attempt));
        self.writes.iter().for_each(|write| see(write.attempt));
        let rank = |old: &mut u8| *old = seen.iter().position(|a| a == old).map_or(0, |i| byte(i) + 1);
        for request in &mut self.requests {
            if let Request::InFlight { attempt, .. } = &mut request.row {
                rank(attempt);
            }
        }
        for owner in &mut self.owners {
            owner.memory.tracked.iter_mut().flatten().for_each(|tracked| rank(&mut tracked.attempt));
            owner.memory.orphans.iter_mut().for_each(rank);
            if let Cycle::Seen { attempts, .. } = &mut owner.cycle {
                attempts.iter_mut().for_each(rank);
            }
        }
        self.polls.iter_mut().for_each(|poll| rank(&mut poll.attempt));
        self.writes.iter_mut().for_each(|write| rank(&mut write.attempt));
    }

    fn swapped(&self) -> Self {
        let mut other = self.clone();
        other.owners.swap(0, 1);
        other.partitions.iter_mut().filter_map(|p| p.owner.as_mut()).for_each(|o| *o = 1 - *o);
        other.polls.iter_mut().for_each(|p| p.owner = 1 - p.owner);
        other.writes.iter_mut().for_each(|w| w.owner = 1 - w.owner);
        other
    }
}

/// How many of `cuts` come no later than a place.
fn at_most(cuts: &[usize], place: usize) -> u8 {
    byte(cuts.partition_point(|cut| *cut <= place))
}

/// Numbers from `first` in the same order; 0 stays.
fn rank(mut numbers: Vec<&mut u8>, first: u8) {
    numbers.retain(|number| **number != 0);
    numbers.sort_unstable();
    let (mut last, mut rank) = (0, first - 1);
    for number in numbers {
        if *number != last {
            (last, rank) = (*number, rank + 1);
        }
        *number = rank;
    }
}

fn byte(number: usize) -> u8 {
    number.to_le_bytes()[0]
}
