//! Owners to whom nothing happens: a whole beat, poll or write in one step. One may stand against an owner to whom
//! everything happens; and from any state they show the way to the end.

use super::{
    Lease,
    ledger::Call,
    owner::Cycle,
    state::{Action, Request, State},
    statement::{Verb, finds},
};

/// Rounds in which every owner beats, polls and acks once. One reconciles and resets, one polls, one acks.
const ROUNDS: usize = 4;

/// What a swift owner may do.
pub(super) fn actions(model: &Lease, state: &State, o: usize, actions: &mut Vec<Action>) {
    let owner = &state.owners[o];
    actions.push(Action::Beat { o, heard: true });
    for p in 0..model.partitions {
        if owner.memory.shares[p].is_some() {
            actions.push(Action::Release { o, p, late: true, heard: true });
        }
        if !state.owns(o, p) && state.partitions[p].epoch < model.epochs {
            actions.push(Action::Acquire { o, p, heard: true });
        }
    }
    let found = finds(model, state, o, owner.memory.generation);
    if owner.may_poll(model) && found != 0 && state.fresh_attempt() <= model.attempts {
        actions.push(Action::Poll { o, found });
    }
    for r in (0..model.requests).filter(|r| owner.memory.tracked[*r].is_some()) {
        actions.extend(model.verbs().iter().map(|verb| Action::Write { o, r, verb: *verb }));
    }
}

/// Takes one of these steps.
pub(super) fn step(model: &Lease, state: &mut State, action: Action) {
    match action {
        Action::Poll { o, .. } => poll(model, state, o),
        Action::Write { o, r, verb } => write(model, state, o, r, verb),
        Action::Beat { o, .. } => heartbeat(model, state, o),
        Action::Release { o, .. } => {
            heartbeat(model, state, o);
            state.step(model, action);
        }
        Action::Acquire { o, p, .. } => {
            heartbeat(model, state, o);
            acquire(model, state, o, p);
        }
        _ => state.step(model, action),
    }
}

fn heartbeat(model: &Lease, state: &mut State, o: usize) {
    state.step(model, Action::Beat { o, heard: true });
    reset(model, state, o);
}

fn reset(model: &Lease, state: &mut State, o: usize) {
    if state.owners[o].ask(model, Call::Unsettled).partitions != 0 {
        state.step(model, Action::Reset { o, skipped: 0, heard: true });
    }
}

fn acquire(model: &Lease, state: &mut State, o: usize, p: usize) {
    state.step(model, Action::Acquire { o, p, heard: true });
    reset(model, state, o);
}

fn poll(model: &Lease, state: &mut State, o: usize) {
    let found = finds(model, state, o, state.owners[o].memory.generation);
    if found != 0 {
        let i = state.polls.len();
        state.step(model, Action::Poll { o, found });
        state.step(model, Action::BindPoll { i });
        state.step(model, Action::CommitPoll { i });
        state.step(model, Action::HearPoll { i });
    }
}

fn write(model: &Lease, state: &mut State, o: usize, r: usize, verb: Verb) {
    let i = state.writes.len();
    state.step(model, Action::Write { o, r, verb });
    (0..2).for_each(|_| state.step(model, Action::RunWrite { i }));
    state.step(model, Action::HearWrite { i });
}

/// Whether all requests are answered in the end, when all goes well and no lease lapses but those of the dead. Asked
/// where nothing is on its way: what is, ends.
pub(super) fn answers_all(model: &Lease, state: &State) -> bool {
    let still = state.owners.iter().all(|o| o.cycle == Cycle::Free && !o.is_late());
    // When all are dead, only another one could.
    let living = state.owners.iter().any(|o| o.up);
    if !still || !living || !state.polls.is_empty() || !state.writes.is_empty() {
        return true;
    }
    let mut state = state.clone();
    for turn in 0..2 * ROUNDS {
        if state.owners[turn % 2].up {
            serve(model, &mut state, turn % 2);
        }
    }
    state.requests[..model.requests].iter().all(|r| r.row == Request::Gone)
}

/// A beat, a poll, and acks.
fn serve(model: &Lease, state: &mut State, o: usize) {
    state.step(model, Action::HandBackOrphans { o, heard: true });
    if state.owners[o].memory.mark.is_some() {
        state.step(model, Action::Look { o });
        state.step(model, Action::HandBackUnknown { o, heard: true });
    }
    heartbeat(model, state, o);
    for p in 0..model.partitions {
        let owner = state.partitions[p].owner.map(usize::from);
        if state.partitions[p].draining && owner == Some(o) {
            state.step(model, Action::Drain { o, p, draining: false, heard: true });
        }
        if owner.is_none_or(|other| !state.owners[other].up) {
            acquire(model, state, o, p);
        }
    }
    for r in 0..model.requests {
        if state.requests[r].row == Request::Parked {
            state.step(model, Action::Due { r });
        }
    }
    if state.owners[o].may_poll(model) {
        poll(model, state, o);
    }
    for r in 0..model.requests {
        if state.owners[o].memory.tracked[r].is_some() {
            write(model, state, o, r, Verb::Ack);
        }
    }
}
