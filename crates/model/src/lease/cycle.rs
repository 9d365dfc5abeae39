//! What an owner does under its cycle lock besides polling, and what befalls it; here the reconciliations and hand-backs.
//!
//! The statements of a beat may come in any order and number that the ledger allows. Where there are more partitions
//! than one, a heartbeat that was heard comes first, with no poll between: an acquire whose answer was lost has given its
//! owner a partition of which the ledger does not know, and it would forget what a poll found there.

use super::{
    Lease, MAX, beat,
    ledger::{Call, Told},
    owner::Cycle,
    state::{Action, Request, State},
    statement::{Progress, Verb, Write},
    swift,
};
use crate::Fault;

const EITHER: [bool; 2] = [true, false];

/// What may happen besides polls and writes.
pub(super) fn actions(model: &Lease, state: &State, actions: &mut Vec<Action>) {
    for r in (0..model.requests).filter(|r| state.requests[*r].row == Request::Parked) {
        actions.push(Action::Due { r });
    }
    for (o, owner) in state.owners.iter().enumerate() {
        if owner.member != 0 && !(0..model.partitions).any(|p| state.owns(o, p)) {
            actions.push(Action::Forget { o });
        }
        if owner.late_beat != 0 {
            actions.push(Action::RunLateBeat { o });
        }
        for p in 0..model.partitions {
            if owner.late_release & 1 << p != 0 {
                actions.push(Action::RunLateRelease { o, p });
            }
            if owner.late_acquire && state.partitions[p].epoch < model.epochs {
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
        Cycle::Seen { attempts, .. } => {
            actions.extend(EITHER.map(|heard| Action::HandBackUnknown { o, heard }));
            if room && attempts != [0; MAX] {
                actions.push(Action::DelayUnknown { o });
            }
        }
        Cycle::Free => {
            actions.extend(EITHER.map(|heard| Action::Beat { o, heard }));
            if model.late_beats && owner.late_beat == 0 {
                actions.push(Action::DelayBeat { o });
            }
            if owner.memory.orphans != [0; MAX] {
                actions.extend(EITHER.map(|heard| Action::HandBackOrphans { o, heard }));
                if room {
                    actions.push(Action::DelayHandBack { o });
                }
            }
            if owner.memory.mark.is_some() {
                actions.extend([Action::Fence { o }, Action::Look { o }]);
            }
            if model.partitions == 1 || owner.synced {
                of_leases(model, state, o, actions);
            }
        }
    }
}

fn of_leases(model: &Lease, state: &State, o: usize, actions: &mut Vec<Action>) {
    let owner = &state.owners[o];
    if model.late_leases && !owner.late_acquire {
        actions.push(Action::DelayAcquire { o });
    }
    for p in 0..model.partitions {
        if let Some(share) = owner.memory.shares[p] {
            if let Some(late) = may_release(model, state, o, p) {
                actions.extend(EITHER.map(|heard| Action::Release { o, p, late, heard }));
                if model.late_leases && owner.late_release & 1 << p == 0 {
                    actions.push(Action::DelayRelease { o, p });
                }
            }
            if model.drains {
                let draining = !share.draining;
                actions.extend(EITHER.map(|heard| Action::Drain { o, p, draining, heard }));
            }
        }
        if state.partitions[p].epoch < model.epochs {
            actions.extend(EITHER.map(|heard| Action::Acquire { o, p, heard }));
        }
    }
    if owner.ask(model, Call::Unsettled).partitions != 0 {
        let stale = beat::stale(model, state, o);
        let skips = if model.skips { 0..=stale } else { 0..=0 };
        for skipped in skips.filter(|skipped| skipped & !stale == 0) {
            actions.extend(EITHER.map(|heard| Action::Reset { o, skipped, heard }));
        }
    }
}

/// Whether a partition may be released, and whether only because the time of its drain is up. Without drains that
/// may always be.
pub(super) fn may_release(model: &Lease, state: &State, o: usize, p: usize) -> Option<bool> {
    let drained = |late| state.owners[o].ask(model, Call::Drained { late }).has(p);
    if !model.drains {
        return Some(true);
    }
    match drained(true) {
        true => Some(!drained(false) && !model.broken(Fault::DrainRobs)),
        false => None,
    }
}

pub(super) fn step(model: &Lease, state: &mut State, action: Action) {
    match action {
        Action::Due { r } => state.requests[r].row = Request::Pending,
        Action::Forget { o } => {
            let owner = &mut state.owners[o];
            // A heartbeat of before the last fence or beat, which is longer ago than any is good for.
            if owner.late_beat < owner.member && !model.broken(Fault::LateBeatRuns) {
                owner.late_beat = 0;
            }
            owner.member = 0;
        }
        Action::Crash { o } => {
            state.owners[o].crash();
            state.polls.iter_mut().filter(|p| usize::from(p.owner) == o).for_each(|p| p.awaited = false);
            state.writes.iter_mut().filter(|w| usize::from(w.owner) == o).for_each(|w| w.awaited = false);
        }
        Action::HandBackOrphans { o, heard } => {
            for (r, attempt) in orphans(model, state, o).stamps() {
                state.undispatch(model, o, r, attempt);
                if heard {
                    state.owners[o].settle(model, r, attempt);
                }
            }
        }
        Action::DelayHandBack { o } => delay(state, o, orphans(model, state, o)),
        Action::Fence { o } => {
            fence(state, o);
        }
        Action::Look { o } => look(model, state, o),
        Action::HandBackUnknown { o, heard } => hand_back_unknown(model, state, o, heard),
        Action::DelayUnknown { o } => {
            if let Cycle::Seen { attempts, .. } = state.owners[o].cycle {
                delay(state, o, state.owners[o].unknown(model, attempts));
            }
            state.owners[o].cycle = Cycle::Free;
        }
        _ => beat::step(model, state, action),
    }
}

fn orphans(model: &Lease, state: &State, o: usize) -> Told {
    state.owners[o].ask(model, Call::Orphans)
}

/// Hand-backs that are given up before they run.
fn delay(state: &mut State, o: usize, stamps: Told) {
    for (request, attempt) in stamps.stamps() {
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
}

/// `set_generation`, where it was not called before: whether the membership has it.
fn fence(state: &mut State, o: usize) -> bool {
    let owner = &mut state.owners[o];
    let Some(mark) = owner.memory.mark else { return false };
    if mark.horizon.is_none() && owner.member != 0 {
        owner.member = owner.member.max(mark.generation);
        return true;
    }
    mark.horizon.is_some()
}

/// A reconciliation up to what it reads: two statements in one step. What happens between them may as well have
/// happened after the second, if it is a late poll that looks (the first keeps it out) or an end of the membership (which
/// the second does not read), or else before the first, since it does not read the membership.
fn look(model: &Lease, state: &mut State, o: usize) {
    let fenced = fence(state, o);
    let mut attempts = [0; MAX];
    for (r, request) in state.requests.iter().enumerate().take(model.requests) {
        let p = model.partition_of(r);
        if let Request::InFlight { epoch, attempt } = request.row
            && state.owns(o, p)
            && state.partitions[p].epoch == epoch
        {
            attempts[r] = attempt;
        }
    }
    let (xmin, xmax) = state.snapshot();
    state.owners[o].cycle = Cycle::Seen { attempts, xmin, xmax, fenced };
}

fn hand_back_unknown(model: &Lease, state: &mut State, o: usize, heard: bool) {
    let Cycle::Seen { attempts, xmin, xmax, fenced } = state.owners[o].cycle else { return };
    for (r, attempt) in state.owners[o].unknown(model, attempts).stamps() {
        state.undispatch(model, o, r, attempt);
    }
    if fenced && heard {
        state.owners[o].call(model, Call::NoteReconciled { xmin, xmax });
    }
    state.owners[o].cycle = Cycle::Free;
}
