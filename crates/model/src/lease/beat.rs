//! The statements of a beat: heartbeat, reset, release, acquire.

use super::{
    Lease, MAX,
    cycle::Cycle,
    state::{Action, Request, State},
};
use crate::Fault;

pub(super) fn step(model: &Lease, state: &mut State, action: Action) {
    match action {
        Action::Beat { o } => {
            let owner = &mut state.owners[o];
            if model.joins && owner.member != owner.generation {
                owner.member = owner.join();
            }
            let leases = renew(model, state, o, state.owners[o].generation);
            state.owners[o].cycle = Cycle::Beaten(leases);
        }
        Action::DelayBeat { o } => state.owners[o].late_beat = state.owners[o].generation,
        Action::RunLateBeat { o } => {
            let generation = std::mem::take(&mut state.owners[o].late_beat);
            renew(model, state, o, generation);
        }
        Action::DelayJoin { o } => state.owners[o].late_join = state.owners[o].join(),
        Action::RunLateJoin { o } => {
            let generation = std::mem::take(&mut state.owners[o].late_join);
            state.owners[o].member = state.owners[o].member.max(generation);
        }
        Action::HearBeat { o } => {
            if let Cycle::Beaten(leases) = state.owners[o].cycle {
                state.owners[o].sync(model, leases);
                state.owners[o].joined = true;
                state.owners[o].cycle = Cycle::Synced;
            }
        }
        Action::Reset { o, heard } => reset(model, state, o, heard),
        Action::Release { o, p, heard } => {
            give_up(state, o, p);
            if heard {
                state.owners[o].release(model, p);
            } else {
                state.owners[o].cycle = Cycle::Free;
            }
        }
        Action::DelayRelease { o, p } => {
            state.owners[o].late_release |= 1 << p;
            state.owners[o].cycle = Cycle::Free;
        }
        Action::RunLateRelease { o, p } => {
            state.owners[o].late_release &= !(1 << p);
            give_up(state, o, p);
        }
        Action::Acquire { o, p } => {
            let epoch = acquire(state, o, p);
            state.owners[o].cycle = Cycle::Acquired { p, epoch };
        }
        Action::DelayAcquire { o } => {
            state.owners[o].late_acquire = true;
            state.owners[o].cycle = Cycle::Free;
        }
        Action::RunLateAcquire { o, p } => {
            state.owners[o].late_acquire = false;
            acquire(state, o, p);
        }
        Action::HearAcquire { o } => {
            if let Cycle::Acquired { p, epoch } = state.owners[o].cycle {
                state.owners[o].gain(model, p, epoch);
                state.owners[o].cycle = Cycle::Synced;
            }
        }
        _ => {}
    }
}

/// `heartbeat`.
fn renew(model: &Lease, state: &mut State, o: usize, generation: u8) -> [u8; MAX] {
    if !model.joins {
        state.owners[o].member = state.owners[o].member.max(generation);
    }
    let mut leases = [0; MAX];
    for (p, partition) in state.partitions.iter_mut().enumerate() {
        if partition.owner.map(usize::from) == Some(o) {
            partition.live = true;
            leases[p] = partition.epoch;
        }
    }
    leases
}

/// `release_partitions`.
fn give_up(state: &mut State, o: usize, p: usize) {
    if state.owns(o, p) {
        (state.partitions[p].owner, state.partitions[p].live) = (None, false);
    }
}

/// `acquire_partitions`: the new epoch.
fn acquire(state: &mut State, o: usize, p: usize) -> u8 {
    let partition = &mut state.partitions[p];
    partition.epoch += 1;
    (partition.owner, partition.live) = (Some(u8::from(o == 1)), true);
    partition.epoch
}

/// `reset_stale`, of all partitions that are not settled.
fn reset(model: &Lease, state: &mut State, o: usize, heard: bool) {
    let running = state.running();
    for p in (0..state.partitions.len()).filter(|p| state.owners[o].unsettled(*p)) {
        let current = state.partitions[p].epoch;
        let owned = state.owns(o, p);
        let requests = state.requests.iter_mut().enumerate();
        for (_, request) in requests.filter(|(r, _)| owned && model.partition_of(*r) == p) {
            let touched = |epoch| epoch < current || model.broken(Fault::ResetTouchesCurrent);
            if matches!(request.row, Request::InFlight { epoch, .. } if touched(epoch)) {
                request.row = Request::Pending;
            }
        }
    }
    for p in (0..state.partitions.len()).filter(|_| heard) {
        if state.owners[o].unsettled(p) {
            state.owners[o].note_reset(model, p, running);
        }
    }
    if !heard {
        state.owners[o].cycle = Cycle::Free;
    }
}
