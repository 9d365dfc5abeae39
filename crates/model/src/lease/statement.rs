//! Polls, acks and retries: several steps each, and any of them may be given up and run all the same.

use super::{
    Lease, MAX,
    cycle::Cycle,
    state::{Action, Request, State},
};
use crate::Fault;

/// How far a poll is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// Not begun.
    Sent,
    /// Has its transaction id.
    Begun,
    /// Has read the fence, and found these rows (a bit each).
    Looked {
        /// Pending then.
        heads: u8,
    },
    /// The update has its snapshot: epochs by partition, 0 where it is not ours.
    Bound {
        /// Pending when it looked.
        heads: u8,
        /// Stamped with.
        epochs: [u8; MAX],
    },
    /// Committed, having stamped these rows.
    Done {
        /// Stamped.
        heads: u8,
        /// Stamped with.
        epochs: [u8; MAX],
    },
}

/// A poll on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Poll {
    /// Whose.
    pub owner: u8,
    /// Of its owner when it was sent.
    pub generation: u8,
    /// What it stamps.
    pub attempt: u8,
    /// How far it is.
    pub stage: Stage,
    /// False: given up.
    pub awaited: bool,
}

/// What a write does to a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verb {
    /// A result instead of the row.
    Ack,
    /// Pending again, after a failed try.
    Retry,
    /// Pending again: a hand-back that was given up before it ran.
    HandBack,
}

/// How far a write is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Progress {
    /// Not begun.
    Sent,
    /// Found its row under this epoch, and is about to lock it and look at the row again, not at the partition.
    Looked {
        /// Of the row.
        epoch: u8,
        /// The writer was the epoch's owner.
        lawful: bool,
    },
    /// Committed, or had found nothing.
    Done,
}

/// A write on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Write {
    /// Whose.
    pub owner: u8,
    /// Of the request.
    pub request: usize,
    /// Of the dispatch.
    pub attempt: u8,
    /// What it does.
    pub verb: Verb,
    /// How far it is.
    pub stage: Progress,
    /// False: given up.
    pub awaited: bool,
}

/// What may happen to statements, and which may be sent.
pub(super) fn actions(model: &Lease, state: &State, actions: &mut Vec<Action>) {
    for (o, owner) in state.owners.iter().enumerate().filter(|(o, _)| !model.is_swift(*o)) {
        let unfenced = model.joins && !owner.joined || owner.mark.is_some_and(|mark| mark.horizon.is_none());
        let active = owner.shares.iter().any(Option::is_some);
        if owner.up && owner.cycle == Cycle::Free && active && !unfenced && state.attempts < model.attempts {
            actions.push(Action::Poll { o });
        }
        for (r, tracked) in owner.tracked.iter().enumerate() {
            let Some(attempt) = tracked.map(|tracked| tracked.attempt) else { continue };
            let same = |w: &Write| w.request == r && w.attempt == attempt;
            if !state.writes.iter().any(same) && state.writes.len() < model.writes {
                let verbs = [Verb::Ack, Verb::Retry];
                actions.extend(verbs.map(|verb| Action::Write { o, r, verb }));
            }
        }
    }
    for (i, poll) in state.polls.iter().enumerate() {
        let done = matches!(poll.stage, Stage::Done { .. });
        actions.push(if done { Action::HearPoll { i } } else { Action::RunPoll { i } });
        if poll.awaited {
            actions.push(Action::LosePoll { i });
        }
    }
    for (i, write) in state.writes.iter().enumerate() {
        let done = write.stage == Progress::Done;
        actions.push(if done { Action::HearWrite { i } } else { Action::RunWrite { i } });
        if write.awaited {
            actions.push(Action::LoseWrite { i });
        }
    }
}

pub(super) fn step(model: &Lease, state: &mut State, action: Action) {
    match action {
        Action::Poll { o } => {
            state.attempts += 1;
            state.owners[o].cycle = Cycle::Polling;
            state.polls.push(Poll {
                owner: u8::from(o == 1),
                generation: state.owners[o].generation,
                attempt: state.attempts,
                stage: Stage::Sent,
                awaited: true,
            });
        }
        Action::RunPoll { i } => run_poll(model, state, i),
        Action::HearPoll { i } => hear_poll(model, state, i),
        Action::LosePoll { i } => {
            state.polls[i].awaited = false;
            let owner = &mut state.owners[usize::from(state.polls[i].owner)];
            owner.cycle = Cycle::Free;
            owner.mark();
        }
        Action::Write { o, r, verb } => {
            let Some(tracked) = state.owners[o].tracked[r] else { return };
            state.writes.push(Write {
                owner: u8::from(o == 1),
                request: r,
                attempt: tracked.attempt,
                verb,
                stage: Progress::Sent,
                awaited: true,
            });
        }
        Action::RunWrite { i } => run_write(model, state, i),
        Action::HearWrite { i } => {
            let write = state.writes.remove(i);
            state.owners[usize::from(write.owner)].settle(model, write.request, write.attempt);
        }
        Action::LoseWrite { i } => {
            state.writes[i].awaited = false;
            let write = state.writes[i];
            state.owners[usize::from(write.owner)].abandon(write.request, write.attempt);
        }
        _ => {}
    }
}

/// `dispatch()`, one statement of the function a step.
fn run_poll(model: &Lease, state: &mut State, i: usize) {
    let poll = state.polls[i];
    let o = usize::from(poll.owner);
    let holds = |p: usize| state.owns(o, p) && state.partitions[p].live;
    state.polls[i].stage = match poll.stage {
        Stage::Sent => Stage::Begun,
        Stage::Begun => {
            let fenced = state.owners[o].member == poll.generation;
            let pending =
                |r: &usize| state.requests[*r].row == Request::Pending && holds(model.partition_of(*r));
            match (0..state.requests.len()).filter(pending).fold(0, |all, r| all | 1 << r) {
                heads @ 1.. if fenced => Stage::Looked { heads },
                _ => Stage::Done { heads: 0, epochs: [0; MAX] },
            }
        }
        Stage::Looked { heads } => {
            let mut epochs = [0; MAX];
            for (p, partition) in state.partitions.iter().enumerate() {
                epochs[p] = if holds(p) { partition.epoch } else { 0 };
            }
            Stage::Bound { heads, epochs }
        }
        Stage::Bound { mut heads, mut epochs } => {
            for (r, request) in state.requests.iter_mut().enumerate() {
                let epoch = epochs[model.partition_of(r)];
                if heads & 1 << r != 0 && request.row == Request::Pending && epoch != 0 {
                    request.row = Request::InFlight { epoch, attempt: poll.attempt };
                } else {
                    heads &= !(1 << r);
                }
            }
            if heads == 0 {
                epochs = [0; MAX];
            }
            Stage::Done { heads, epochs }
        }
        done @ Stage::Done { .. } => done,
    };
}

fn hear_poll(model: &Lease, state: &mut State, i: usize) {
    let poll = state.polls.remove(i);
    let owner = &mut state.owners[usize::from(poll.owner)];
    owner.cycle = Cycle::Free;
    let Stage::Done { heads, epochs } = poll.stage else { return };
    for r in (0..state.requests.len()).filter(|r| heads & 1 << r != 0) {
        owner.track(model, r, epochs[model.partition_of(r)], poll.attempt);
    }
}

fn run_write(model: &Lease, state: &mut State, i: usize) {
    let write = state.writes[i];
    let row = state.requests[write.request].row;
    state.writes[i].stage = match (write.stage, row) {
        (Progress::Sent, Request::InFlight { epoch, attempt }) if attempt == write.attempt => {
            let p = model.partition_of(write.request);
            let owned = state.owns(usize::from(write.owner), p);
            let current = state.partitions[p].epoch == epoch;
            let lawful = owned && current;
            let epoch_ignored = write.verb == Verb::Ack && model.broken(Fault::AckIgnoresEpoch);
            let owner_ignored = write.verb == Verb::Retry && model.broken(Fault::RetryIgnoresOwner);
            match (owned || owner_ignored) && (current || epoch_ignored) {
                true => Progress::Looked { epoch, lawful },
                false => Progress::Done,
            }
        }
        (Progress::Looked { epoch, lawful }, row) => {
            if row == (Request::InFlight { epoch, attempt: write.attempt }) {
                state.unlawful |= !lawful;
                let request = &mut state.requests[write.request];
                if write.verb == Verb::Ack {
                    request.row = Request::Gone;
                    request.results += 1;
                } else {
                    request.row = Request::Pending;
                }
            }
            Progress::Done
        }
        _ => Progress::Done,
    };
}
