//! Polls, acks, retries and hand-backs: several steps each, and any of them may be given up and run all the same.
//!
//! A poll is sent when it looks, or is given up before: sending changes nothing, and while its answer is awaited its
//! owner does nothing else under the cycle lock, so that what happens in between may as well have happened before. A
//! write is not, for its worker may have lost the dispatch by then.

use super::{
    Lease, MAX,
    ledger::{Call, Tracked},
    owner::Cycle,
    state::{Action, Breach, Request, State},
};
use crate::Fault;

/// How far a poll is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// Not begun, and given up.
    Sent,
    /// Has read the fence, and found rows.
    Looked,
    /// The update has its snapshot: epochs by partition, 0 where it is not ours.
    Bound {
        /// To stamp with.
        epochs: [u8; MAX],
    },
    /// Committed.
    Done {
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
    /// Its number; 0: it has none yet, or has ended.
    pub transaction: u8,
    /// How far it is.
    pub stage: Stage,
    /// Rows (a bit each) that it has found, or stamped in the end.
    pub heads: u8,
    /// What it has stamped; 0: nothing yet.
    pub attempt: u8,
    /// False: given up.
    pub awaited: bool,
}

/// What a write does to a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verb {
    /// A result instead of the row.
    Ack,
    /// Parked, or pending where there is no parking: a retry, or a deferral.
    Retry,
    /// Pending again: untried on a shutdown, refused by a gate, or owed.
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
        if state.polls.len() < model.polls && owner.may_poll(model) {
            actions.push(Action::DelayPoll { o });
            let found = finds(model, state, o, owner.memory.generation);
            actions.extend(parts(model, found).map(|found| Action::Poll { o, found }));
        }
        for r in 0..model.requests {
            let Some(attempt) = owner.memory.tracked[r].map(|tracked| tracked.attempt) else { continue };
            let same = |w: &Write| w.request == r && w.attempt == attempt;
            if !state.writes.iter().any(same) && state.writes.len() < model.writes {
                actions.extend(model.verbs().iter().map(|verb| Action::Write { o, r, verb: *verb }));
            }
        }
    }
    for (i, poll) in state.polls.iter().enumerate() {
        match poll.stage {
            Stage::Sent => {
                let found = finds(model, state, usize::from(poll.owner), poll.generation);
                actions.push(Action::RunLatePoll { i, found: 0 });
                actions.extend(parts(model, found).map(|found| Action::RunLatePoll { i, found }));
            }
            Stage::Looked => actions.push(Action::BindPoll { i }),
            Stage::Bound { epochs } => {
                let stamps = stamps(model, state, poll.heads, epochs) != 0;
                if !stamps || state.fresh_attempt() <= model.attempts {
                    actions.push(Action::CommitPoll { i });
                }
            }
            Stage::Done { .. } => actions.push(Action::HearPoll { i }),
        }
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

/// All of `found`, or some: a poll has a limit, and may step over what is locked.
fn parts(model: &Lease, found: u8) -> impl Iterator<Item = u8> {
    let least = if model.skips { 1 } else { found.max(1) };
    (least..=found).filter(move |part| part & !found == 0)
}

pub(super) fn step(model: &Lease, state: &mut State, action: Action) {
    match action {
        Action::Poll { o, found } => {
            state.owners[o].cycle = Cycle::Polling;
            send(state, o);
            look(model, state, state.polls.len() - 1, found);
        }
        Action::DelayPoll { o } => {
            send(state, o);
            lose_poll(model, state, state.polls.len() - 1);
        }
        Action::RunLatePoll { i, found } => look(model, state, i, found),
        Action::BindPoll { i } => bind(model, state, i),
        Action::CommitPoll { i } => commit(model, state, i),
        Action::HearPoll { i } => hear_poll(model, state, i),
        Action::LosePoll { i } => lose_poll(model, state, i),
        Action::Write { o, r, verb } => {
            let Some(tracked) = state.owners[o].memory.tracked[r] else { return };
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
            let Write { owner, request: r, attempt, .. } = state.writes[i];
            state.owners[usize::from(owner)].call(model, Call::Abandon { r, attempt });
        }
        _ => {}
    }
}

fn send(state: &mut State, o: usize) {
    state.owners[o].synced = false;
    state.polls.push(Poll {
        owner: u8::from(o == 1),
        generation: state.owners[o].memory.generation,
        transaction: 0,
        stage: Stage::Sent,
        heads: 0,
        attempt: 0,
        awaited: true,
    });
}

fn lose_poll(model: &Lease, state: &mut State, i: usize) {
    state.polls[i].awaited = false;
    let owner = &mut state.owners[usize::from(state.polls[i].owner)];
    owner.cycle = Cycle::Free;
    owner.call(model, Call::Mark);
}

/// The partition's rows may be stamped by `o`.
fn dispatches(model: &Lease, state: &State, o: usize, p: usize) -> bool {
    state.owns(o, p) && (!state.partitions[p].draining || model.broken(Fault::DrainDispatches))
}

/// What a poll of this generation would find.
pub(super) fn finds(model: &Lease, state: &State, o: usize, generation: u8) -> u8 {
    let fenced = state.owners[o].member == generation || model.broken(Fault::LatePollRuns);
    let ready = |r: &usize| {
        state.requests[*r].row == Request::Pending && dispatches(model, state, o, model.partition_of(*r))
    };
    (0..model.requests).filter(|r| fenced && ready(r)).fold(0, |all, r| all | 1 << r)
}

/// `dispatch()` up to what it finds. It draws its number first, and here in the same step: a poll with a number that
/// has not looked yet only keeps resets and reconciliations from being the last, which then repeat themselves. Were they
/// the last without it, it would still meet the new owner or the new generation when it looks. So whatever goes wrong
/// with two steps does with one.
fn look(model: &Lease, state: &mut State, i: usize, found: u8) {
    if found == 0 {
        state.polls.remove(i);
        return;
    }
    if !model.broken(Fault::NumberWhenWriting) {
        state.polls[i].transaction = state.next_transaction();
    }
    (state.polls[i].stage, state.polls[i].heads) = (Stage::Looked, found);
}

/// The update takes its snapshot: it looks at the partitions anew, and not at the generation.
fn bind(model: &Lease, state: &mut State, i: usize) {
    let o = usize::from(state.polls[i].owner);
    let mut epochs = [0; MAX];
    for r in (0..model.requests).filter(|r| state.polls[i].heads & 1 << r != 0) {
        let p = model.partition_of(r);
        if dispatches(model, state, o, p) {
            epochs[p] = state.partitions[p].epoch;
            if state.partitions[p].draining {
                state.breach = state.breach.or(Some(Breach::Drained));
            }
        }
    }
    state.polls[i].stage = Stage::Bound { epochs };
}

/// Which of `heads` an update with these epochs stamps: it locks each row, and looks at the row again.
fn stamps(model: &Lease, state: &State, heads: u8, epochs: [u8; MAX]) -> u8 {
    let ready = |row| row == Request::Pending || row == Request::Parked && model.broken(Fault::ParkedTaken);
    let stamped = |r: &usize| {
        heads & 1 << r != 0 && epochs[model.partition_of(*r)] != 0 && ready(state.requests[*r].row)
    };
    (0..model.requests).filter(stamped).fold(0, |all, r| all | 1 << r)
}

/// The attempt is drawn here, since nobody knows it before.
fn commit(model: &Lease, state: &mut State, i: usize) {
    let Stage::Bound { epochs } = state.polls[i].stage else { return };
    let heads = stamps(model, state, state.polls[i].heads, epochs);
    let o = usize::from(state.polls[i].owner);
    if heads == 0 {
        if state.polls.remove(i).awaited {
            state.owners[o].cycle = Cycle::Free;
        }
        return;
    }
    let attempt = state.fresh_attempt();
    for r in (0..model.requests).filter(|r| heads & 1 << r != 0) {
        if state.requests[r].row == Request::Parked {
            state.breach = state.breach.or(Some(Breach::Early));
        }
        state.requests[r].row = Request::InFlight { epoch: epochs[model.partition_of(r)], attempt };
    }
    let poll = &mut state.polls[i];
    (poll.stage, poll.heads, poll.attempt, poll.transaction) = (Stage::Done { epochs }, heads, attempt, 0);
}

fn hear_poll(model: &Lease, state: &mut State, i: usize) {
    let poll = state.polls.remove(i);
    let owner = &mut state.owners[usize::from(poll.owner)];
    owner.cycle = Cycle::Free;
    let Stage::Done { epochs } = poll.stage else { return };
    for r in (0..model.requests).filter(|r| poll.heads & 1 << r != 0) {
        owner.track(model, r, Tracked { epoch: epochs[model.partition_of(r)], attempt: poll.attempt });
    }
}

fn run_write(model: &Lease, state: &mut State, i: usize) {
    let write = state.writes[i];
    let row = state.requests[write.request].row;
    let any = write.verb == Verb::HandBack && model.broken(Fault::HandBackIgnoresAttempt);
    state.writes[i].stage = match (write.stage, row) {
        (Progress::Sent, Request::InFlight { epoch, attempt }) if any || attempt == write.attempt => {
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
        (Progress::Looked { epoch, lawful }, Request::InFlight { epoch: now, attempt })
            if epoch == now && (any || attempt == write.attempt) =>
        {
            if !lawful {
                state.breach = state.breach.or(Some(Breach::Unlawful));
            }
            let request = &mut state.requests[write.request];
            request.results += u8::from(write.verb == Verb::Ack);
            request.row = match write.verb {
                Verb::Ack => Request::Gone,
                Verb::Retry if model.parks => Request::Parked,
                Verb::Retry | Verb::HandBack => Request::Pending,
            };
            Progress::Done
        }
        _ => Progress::Done,
    };
}
