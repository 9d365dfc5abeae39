//! Owners to whom nothing happens: a whole beat, poll or write in one step. One may stand against an owner to whom
//! everything happens; and from any state they show the way to the end.

use super::{
    Lease, MAX,
    cycle::Cycle,
    state::{Action, Request, State},
    statement::Verb,
};

/// Rounds in which every owner beats, polls and acks once. One reconciles and resets, one polls, one acks.
const ROUNDS: usize = 4;

/// What a swift owner may do.
pub(super) fn actions(model: &Lease, state: &State, o: usize, actions: &mut Vec<Action>) {
    let owner = &state.owners[o];
    actions.push(Action::Beat { o });
    for (p, partition) in state.partitions.iter().enumerate() {
        if owner.shares[p].is_some() {
            actions.push(Action::Release { o, p, heard: true });
        }
        if !partition.live && partition.epoch < model.epochs {
            actions.push(Action::Acquire { o, p });
        }
    }
    let joined = !model.joins || owner.joined;
    if joined && owner.shares.iter().any(Option::is_some) && state.attempts < model.attempts {
        actions.push(Action::Poll { o });
    }
    for r in (0..MAX).filter(|r| owner.tracked[*r].is_some()) {
        actions.extend([Verb::Ack, Verb::Retry].map(|verb| Action::Write { o, r, verb }));
    }
}

/// Takes one of these steps.
pub(super) fn step(model: &Lease, state: &mut State, action: Action) {
    match action {
        Action::Poll { o } => poll(model, state, o),
        Action::Write { o, r, verb } => write(model, state, o, r, verb),
        Action::Beat { o } => {
            heartbeat(model, state, o);
            state.step(model, Action::EndCycle { o });
        }
        Action::Release { o, .. } => {
            heartbeat(model, state, o);
            state.step(model, action);
            state.step(model, Action::EndCycle { o });
        }
        Action::Acquire { o, p } => {
            heartbeat(model, state, o);
            acquire(model, state, o, p);
            state.step(model, Action::EndCycle { o });
        }
        _ => state.step(model, action),
    }
}

fn heartbeat(model: &Lease, state: &mut State, o: usize) {
    state.step(model, Action::Beat { o });
    state.step(model, Action::HearBeat { o });
    state.step(model, Action::Reset { o, heard: true });
}

/// The heartbeat before it may have renewed the lease.
fn acquire(model: &Lease, state: &mut State, o: usize, p: usize) {
    if !state.partitions[p].live {
        state.step(model, Action::Acquire { o, p });
        state.step(model, Action::HearAcquire { o });
        state.step(model, Action::Reset { o, heard: true });
    }
}

fn poll(model: &Lease, state: &mut State, o: usize) {
    let i = state.polls.len();
    state.step(model, Action::Poll { o });
    (0..4).for_each(|_| state.step(model, Action::RunPoll { i }));
    state.step(model, Action::HearPoll { i });
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
    for p in 0..state.partitions.len() {
        if state.partitions[p].owner.is_some_and(|o| !state.owners[usize::from(o)].up) {
            state.step(model, Action::Lapse { p });
        }
    }
    for turn in 0..2 * ROUNDS {
        if state.owners[turn % 2].up {
            serve(model, &mut state, turn % 2);
        }
    }
    state.requests.iter().all(|r| r.row == Request::Gone)
}

/// A beat, a poll, and acks.
fn serve(model: &Lease, state: &mut State, o: usize) {
    state.step(model, Action::HandBackOrphans { o, heard: true });
    if state.owners[o].mark.is_some() {
        state.step(model, Action::Fence { o });
        state.step(model, Action::LookInFlight { o });
        state.step(model, Action::HandBackUnknown { o, heard: true });
    }
    heartbeat(model, state, o);
    (0..state.partitions.len()).for_each(|p| acquire(model, state, o, p));
    state.step(model, Action::EndCycle { o });
    let unfenced = model.joins && !state.owners[o].joined
        || state.owners[o].mark.is_some_and(|mark| mark.horizon.is_none());
    if !unfenced && state.owners[o].shares.iter().any(Option::is_some) {
        poll(model, state, o);
    }
    for r in 0..MAX {
        if state.owners[o].tracked[r].is_some() {
            write(model, state, o, r, Verb::Ack);
        }
    }
}
