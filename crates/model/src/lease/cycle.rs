//! What an owner does under its cycle lock besides polling, and what befalls it; here the reconciliations and hand-backs.
//!
//! Steps of a beat may come in any order and number that the ledger allows, except that partitions are acquired,
//! released and reset after a heartbeat was heard, with no poll between.

use super::{
    Lease, MAX, beat,
    state::{Action, Request, State},
    statement::{Progress, Verb, Write},
    swift,
};

/// What holds the cycle lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cycle {
    /// Nothing.
    Free,
    /// A poll.
    Polling,
    /// The generation was written, or no membership was there.
    Fenced(bool),
    /// Stamps were read: attempts by request, 0 where there is none.
    Seen {
        /// Stamped with the partition's epoch.
        attempts: [u8; MAX],
        /// Polls that must have ended before a look is the last.
        horizon: u16,
        /// They had, when this one's snapshot was taken.
        last: bool,
        /// As before.
        fenced: bool,
    },
    /// A heartbeat was committed; what it says by partition, 0 where it is not ours.
    Beaten([u8; MAX]),
    /// It was heard.
    Synced,
    /// An acquire was committed.
    Acquired {
        /// Which.
        p: usize,
        /// Its new epoch.
        epoch: u8,
    },
}

impl Cycle {
    pub(super) fn attempts(self) -> [u8; MAX] {
        match self {
            Self::Seen { attempts, .. } => attempts,
            _ => [0; MAX],
        }
    }

    pub(super) fn forget(&mut self, running: u16) {
        if let Self::Seen { horizon, .. } = self {
            *horizon &= running;
        }
    }
}

/// What may happen besides statements.
pub(super) fn actions(model: &Lease, state: &State, actions: &mut Vec<Action>) {
    for (p, partition) in state.partitions.iter().enumerate() {
        if partition.live {
            actions.push(Action::Lapse { p });
        }
    }
    for (o, owner) in state.owners.iter().enumerate() {
        if owner.member != 0 && !(0..state.partitions.len()).any(|p| state.owns(o, p)) {
            actions.push(Action::Forget { o });
        }
        if owner.late_beat != 0 {
            actions.push(Action::RunLateBeat { o });
        }
        if owner.late_join != 0 {
            actions.push(Action::RunLateJoin { o });
        }
        for (p, partition) in state.partitions.iter().enumerate() {
            if owner.late_release & 1 << p != 0 {
                actions.push(Action::RunLateRelease { o, p });
            }
            if owner.late_acquire && !partition.live && partition.epoch < model.epochs {
                actions.push(Action::RunLateAcquire { o, p });
            }
        }
        if model.is_swift(o) {
            swift::actions(model, state, o, actions);
        } else if owner.up {
            // One who has left no trace would only come back as he was.
            if model.crashes && owner.member != 0 {
                actions.push(Action::Crash { o });
            }
            of_owner(model, state, o, actions);
        }
    }
}

fn of_owner(model: &Lease, state: &State, o: usize, actions: &mut Vec<Action>) {
    let owner = &state.owners[o];
    let room = state.writes.len() < model.writes;
    match owner.cycle {
        Cycle::Polling => {}
        Cycle::Free => {
            actions.push(Action::Beat { o });
            if model.late_beats && owner.late_beat == 0 {
                actions.push(Action::DelayBeat { o });
            }
            if model.late_beats && model.joins && owner.member == 0 && owner.late_join == 0 {
                actions.push(Action::DelayJoin { o });
            }
            if owner.orphans != [0; MAX] {
                actions.extend([true, false].map(|heard| Action::HandBackOrphans { o, heard }));
                if room {
                    actions.push(Action::DelayHandBack { o });
                }
            }
            if owner.mark.is_some() {
                actions.push(Action::Fence { o });
            }
        }
        Cycle::Fenced(_) => actions.extend([Action::LookInFlight { o }, Action::EndCycle { o }]),
        Cycle::Seen { attempts, .. } => {
            actions.extend([true, false].map(|heard| Action::HandBackUnknown { o, heard }));
            if room && attempts != [0; MAX] {
                actions.push(Action::DelayUnknown { o });
            }
        }
        Cycle::Beaten(_) => actions.extend([Action::HearBeat { o }, Action::EndCycle { o }]),
        Cycle::Acquired { .. } => actions.extend([Action::HearAcquire { o }, Action::EndCycle { o }]),
        Cycle::Synced => {
            actions.push(Action::EndCycle { o });
            if model.late_leases && !owner.late_acquire {
                actions.push(Action::DelayAcquire { o });
            }
            for (p, partition) in state.partitions.iter().enumerate() {
                if owner.shares[p].is_some() {
                    actions.extend([true, false].map(|heard| Action::Release { o, p, heard }));
                    if model.late_leases && owner.late_release & 1 << p == 0 {
                        actions.push(Action::DelayRelease { o, p });
                    }
                }
                if !partition.live && partition.epoch < model.epochs {
                    actions.push(Action::Acquire { o, p });
                }
            }
            if (0..MAX).any(|p| owner.unsettled(p)) {
                actions.extend([true, false].map(|heard| Action::Reset { o, heard }));
            }
        }
    }
}

pub(super) fn step(model: &Lease, state: &mut State, action: Action) {
    match action {
        Action::Lapse { p } => state.partitions[p].live = false,
        Action::Forget { o } => state.owners[o].member = 0,
        Action::Crash { o } => {
            state.owners[o].crash();
            state.polls.iter_mut().filter(|p| usize::from(p.owner) == o).for_each(|p| p.awaited = false);
            state.writes.iter_mut().filter(|w| usize::from(w.owner) == o).for_each(|w| w.awaited = false);
        }
        Action::HandBackOrphans { o, heard } => {
            for (r, attempt) in orphans(state, o) {
                state.undispatch(model, o, r, attempt);
                if heard {
                    state.owners[o].settle(model, r, attempt);
                }
            }
        }
        Action::DelayHandBack { o } => orphans(state, o).into_iter().for_each(|stamp| delay(state, o, stamp)),
        Action::Fence { o } => {
            let owner = &mut state.owners[o];
            let Some(mark) = owner.mark else { return };
            let mut fenced = mark.horizon.is_some();
            if !fenced && owner.member != 0 {
                owner.member = owner.member.max(mark.generation);
                fenced = true;
            }
            owner.cycle = Cycle::Fenced(fenced);
        }
        Action::LookInFlight { o } => look_in_flight(model, state, o),
        Action::HandBackUnknown { o, heard } => hand_back_unknown(model, state, o, heard),
        Action::DelayUnknown { o } => {
            unknown(model, state, o).into_iter().for_each(|stamp| delay(state, o, stamp));
            state.owners[o].cycle = Cycle::Free;
        }
        Action::EndCycle { o } => state.owners[o].cycle = Cycle::Free,
        _ => beat::step(model, state, action),
    }
}

fn orphans(state: &State, o: usize) -> Vec<(usize, u8)> {
    let orphans = state.owners[o].orphans.into_iter().enumerate();
    orphans.filter(|(_, attempt)| *attempt != 0).collect()
}

/// A hand-back that is given up before it runs.
fn delay(state: &mut State, o: usize, (request, attempt): (usize, u8)) {
    let write = Write {
        owner: u8::from(o == 1),
        request,
        attempt,
        verb: Verb::HandBack,
        stage: Progress::Sent,
        awaited: false,
    };
    if !state.writes.contains(&write) {
        state.writes.push(write);
    }
}

fn look_in_flight(model: &Lease, state: &mut State, o: usize) {
    let Cycle::Fenced(fenced) = state.owners[o].cycle else { return };
    let mut attempts = [0; MAX];
    for (r, request) in state.requests.iter().enumerate() {
        let p = model.partition_of(r);
        if let Request::InFlight { epoch, attempt } = request.row
            && state.owns(o, p)
            && state.partitions[p].epoch == epoch
        {
            attempts[r] = attempt;
        }
    }
    let running = state.running();
    let horizon = state.owners[o].mark.and_then(|mark| mark.horizon).unwrap_or(running);
    state.owners[o].cycle = Cycle::Seen { attempts, horizon, last: horizon & running == 0, fenced };
}

fn unknown(model: &Lease, state: &State, o: usize) -> Vec<(usize, u8)> {
    let owner = &state.owners[o];
    let stamped = owner.cycle.attempts().into_iter().enumerate();
    stamped.filter(|(r, attempt)| *attempt != 0 && owner.misses(model, *r, *attempt)).collect()
}

fn hand_back_unknown(model: &Lease, state: &mut State, o: usize, heard: bool) {
    for (r, attempt) in unknown(model, state, o) {
        state.undispatch(model, o, r, attempt);
    }
    if let Cycle::Seen { horizon, last, fenced: true, .. } = state.owners[o].cycle
        && heard
    {
        state.owners[o].note_reconciled(horizon, last);
    }
    state.owners[o].cycle = Cycle::Free;
}
