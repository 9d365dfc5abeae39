//! The statements of a beat: heartbeat, reset, drain, release, acquire.
//!
//! Each commits and is heard, or not, in one step. That leaves nothing out: nobody else sees an owner's ledger, and what
//! the owner's own workers do between commit and answer, they may as well do before the commit.

use super::{
    Lease, MAX,
    ledger::Call,
    state::{Action, Breach, Request, State},
};
use crate::Fault;

pub(super) fn step(model: &Lease, state: &mut State, action: Action) {
    take(model, state, action);
    match action {
        Action::Beat { o, heard } => state.owners[o].synced = heard && model.partitions > 1,
        Action::Reset { o, heard: false, .. }
        | Action::Drain { o, heard: false, .. }
        | Action::Release { o, heard: false, .. }
        | Action::Acquire { o, heard: false, .. } => state.owners[o].synced = false,
        _ => {}
    }
}

fn take(model: &Lease, state: &mut State, action: Action) {
    match action {
        Action::Beat { o, heard } => beat(model, state, o, heard),
        Action::DelayBeat { o } => state.owners[o].late_beat = state.owners[o].memory.generation,
        Action::RunLateBeat { o } => {
            let generation = std::mem::take(&mut state.owners[o].late_beat);
            renew(state, o, generation);
        }
        Action::Reset { o, skipped, heard } => reset(model, state, o, skipped, heard),
        Action::Drain { o, p, draining, heard } if state.owns(o, p) => {
            state.partitions[p].draining = draining;
            if heard {
                state.owners[o].call(model, Call::SetDraining { p, draining });
            }
        }
        Action::Release { o, p, late, heard } => {
            let owner = &mut state.owners[o];
            let busy = |r: &usize| owner.memory.tracked[*r].is_some() || owner.memory.orphans[*r] != 0;
            if !late && (0..model.requests).filter(|r| model.partition_of(*r) == p).any(|r| busy(&r)) {
                state.breach = state.breach.or(Some(Breach::Robbed));
            }
            if heard {
                owner.call(model, Call::Release { p });
            }
            give_up(state, o, p);
        }
        Action::DelayRelease { o, p } => state.owners[o].late_release |= 1 << p,
        Action::RunLateRelease { o, p } => {
            state.owners[o].late_release &= !(1 << p);
            give_up(state, o, p);
        }
        Action::Acquire { o, p, heard } => {
            let epoch = acquire(state, o, p);
            if heard {
                state.owners[o].call(model, Call::Gain { p, epoch });
            }
        }
        Action::DelayAcquire { o } => state.owners[o].late_acquire = true,
        Action::RunLateAcquire { o, p } => {
            state.owners[o].late_acquire = false;
            acquire(state, o, p);
        }
        _ => {}
    }
}

fn beat(model: &Lease, state: &mut State, o: usize, heard: bool) {
    let leases = renew(state, o, state.owners[o].memory.generation);
    if heard {
        state.owners[o].call(model, Call::Sync(leases));
    }
}

/// `heartbeat`: what it says of each partition.
fn renew(state: &mut State, o: usize, generation: u8) -> [(u8, bool); MAX] {
    state.owners[o].member = state.owners[o].member.max(generation);
    let mut leases = [(0, false); MAX];
    for (p, partition) in state.partitions.iter().enumerate() {
        if state.owns(o, p) {
            leases[p] = (partition.epoch, partition.draining);
        }
    }
    leases
}

/// `release_partitions`.
fn give_up(state: &mut State, o: usize, p: usize) {
    if state.owns(o, p) {
        (state.partitions[p].owner, state.partitions[p].draining) = (None, false);
    }
}

/// `acquire_partitions`: the new epoch.
fn acquire(state: &mut State, o: usize, p: usize) -> u8 {
    let partition = &mut state.partitions[p];
    partition.epoch += 1;
    (partition.owner, partition.draining) = (Some(u8::from(o == 1)), false);
    partition.epoch
}

/// Rows that a reset by `o` would find.
pub(super) fn stale(model: &Lease, state: &State, o: usize) -> u8 {
    let unsettled = state.owners[o].ask(model, Call::Unsettled);
    let is_stale = |r: &usize| {
        let p = model.partition_of(*r);
        let stale = |epoch| epoch < state.partitions[p].epoch || model.broken(Fault::ResetTouchesCurrent);
        unsettled.has(p)
            && state.owns(o, p)
            && matches!(state.requests[*r].row, Request::InFlight { epoch, .. } if stale(epoch))
    };
    (0..model.requests).filter(is_stale).fold(0, |all, r| all | 1 << r)
}

/// `reset_stale`, of all partitions that are not settled.
fn reset(model: &Lease, state: &mut State, o: usize, skipped: u8, heard: bool) {
    let snapshot = state.snapshot();
    let found = stale(model, state, o);
    let reset = found & !skipped;
    for r in (0..model.requests).filter(|r| reset & 1 << r != 0) {
        state.requests[r].row = Request::Pending;
    }
    if heard {
        let count = |rows: u8| rows.count_ones().to_le_bytes()[0];
        state.owners[o].note_reset(model, count(reset), count(found), snapshot);
    }
}
