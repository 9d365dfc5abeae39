//! What must hold in every state, each under the number of its invariant; and what must be possible.

use stateright::Property;

use super::{
    Lease,
    owner::Owner,
    state::{Breach, Request, State},
    statement::{Poll, Stage, Write},
    swift,
};

/// Property names that the tests of the faults refer to.
pub mod name {
    /// Invariant 1.
    pub const ONE_OUTCOME: &str = "1: one result at most, and never besides a row";
    /// Invariant 2.
    pub const LOOKED_AFTER: &str = "2: a current stamp has somebody to end it";
    /// Invariant 2.
    pub const IN_FLIGHT: &str = "2: what a current owner tracks is in flight";
    /// Invariant 2.
    pub const ONE_KEEPER: &str = "2: a request is tracked or an orphan, not both";
    /// Invariant 2.
    pub const NOT_ROBBED: &str = "2: a drain that ends in time leaves nothing behind";
    /// Invariant 3.
    pub const LAWFUL: &str = "3: nobody but the current owner writes";
    /// Invariant 5.
    pub const RESET_AHEAD: &str = "5: a stale stamp has a reset ahead";
    /// Invariant 5.
    pub const NOT_EARLY: &str = "5: what is parked waits until it is due";
    /// Invariant 5.
    pub const NOT_DRAINED: &str = "5: a draining partition dispatches nothing";
    /// Invariant 5.
    pub const ANSWERED: &str = "5: beats and polls answer all requests";
}

pub(super) fn all() -> Vec<Property<Lease>> {
    vec![
        Property::always(name::ONE_OUTCOME, has_one_outcome),
        Property::always(name::LOOKED_AFTER, is_looked_after),
        Property::always(name::IN_FLIGHT, is_in_flight_where_tracked),
        Property::always(name::ONE_KEEPER, |_, s: &State| s.owners.iter().all(has_one_keeper)),
        Property::always(name::NOT_ROBBED, |_, s: &State| s.breach != Some(Breach::Robbed)),
        Property::always(name::LAWFUL, |_, s: &State| s.breach != Some(Breach::Unlawful)),
        Property::always(name::RESET_AHEAD, is_reset_ahead),
        Property::always(name::NOT_EARLY, |_, s: &State| s.breach != Some(Breach::Early)),
        Property::always(name::NOT_DRAINED, |_, s: &State| s.breach != Some(Breach::Drained)),
        Property::always(name::ANSWERED, swift::answers_all),
        Property::sometimes("1: all requests are answered", |model: &Lease, s: &State| {
            s.requests[..model.requests].iter().all(|r| r.row == Request::Gone)
        }),
        Property::sometimes("2: a stamp comes after the first reset", |model, s| {
            model.epochs < 2 || has_late_stamp(model, s)
        }),
        Property::sometimes("2: a lost poll is reconciled in vain at first", |_, s: &State| {
            // 1 is what nothing runs before any more.
            s.owners.iter().any(|o| o.memory.mark.is_some_and(|mark| mark.horizon.is_some_and(|h| h > 1)))
        }),
        Property::sometimes(
            "5: a parked row meets a poll that found it pending",
            |model: &Lease, s: &State| {
                let parked = |p: &Poll| {
                    let met = |r: usize| p.heads & 1 << r != 0 && s.requests[r].row == Request::Parked;
                    matches!(p.stage, Stage::Bound { .. }) && (0..model.requests).any(met)
                };
                !model.parks || s.polls.iter().any(parked)
            },
        ),
    ]
}

/// One result at most, and never besides a row.
fn has_one_outcome(model: &Lease, state: &State) -> bool {
    state.requests[..model.requests].iter().all(|r| match r.row {
        Request::Gone => r.results == 1,
        _ => r.results == 0,
    })
}

/// Whoever has a row in flight will finish it or hand it back.
fn is_looked_after(model: &Lease, state: &State) -> bool {
    state.requests[..model.requests].iter().enumerate().all(|(i, r)| {
        let Request::InFlight { epoch, attempt } = r.row else { return true };
        let partition = &state.partitions[model.partition_of(i)];
        let Some(n) = partition.owner.filter(|_| partition.epoch == epoch) else { return true };
        let owner = &state.owners[usize::from(n)];
        let polled = |p: &Poll| p.owner == n && p.attempt == attempt && p.awaited;
        !owner.up
            || owner.memory.mark.is_some()
            || owner.memory.orphans[i] == attempt
            || owner.tracks(i, attempt)
            || state.polls.iter().any(polled)
    })
}

/// What an owner tracks under a lease of its own, and has not written about, is in flight.
fn is_in_flight_where_tracked(model: &Lease, state: &State) -> bool {
    state.owners.iter().enumerate().all(|(n, owner)| {
        owner.memory.tracked.iter().enumerate().all(|(i, tracked)| {
            let Some(tracked) = tracked else { return true };
            let p = model.partition_of(i);
            let written =
                |w: &Write| usize::from(w.owner) == n && w.request == i && w.attempt == tracked.attempt;
            let stamp = Request::InFlight { epoch: tracked.epoch, attempt: tracked.attempt };
            !state.owns(n, p)
                || state.partitions[p].epoch != tracked.epoch
                || state.writes.iter().any(written)
                || state.requests[i].row == stamp
        })
    })
}

fn has_one_keeper(owner: &Owner) -> bool {
    let both = |(tracked, orphan): (&Option<_>, &u8)| tracked.is_some() && *orphan != 0;
    !std::iter::zip(&owner.memory.tracked, &owner.memory.orphans).any(both)
}

/// A former owner's stamp is reset by an owner that has not called its resets final.
fn is_reset_ahead(model: &Lease, state: &State) -> bool {
    state.requests[..model.requests].iter().enumerate().all(|(i, r)| {
        let p = model.partition_of(i);
        let partition = &state.partitions[p];
        let (Request::InFlight { epoch, .. }, Some(n)) = (r.row, partition.owner) else { return true };
        let settled = state.owners[usize::from(n)].memory.shares[p]
            .is_some_and(|share| share.settled && share.epoch == partition.epoch);
        epoch == partition.epoch || !settled
    })
}

fn has_late_stamp(model: &Lease, state: &State) -> bool {
    state.requests[..model.requests].iter().enumerate().any(|(i, r)| {
        let p = model.partition_of(i);
        let waits = |o: &Owner| o.memory.shares[p].is_some_and(|s| s.horizon.is_some() && !s.settled);
        let stale = |epoch| epoch < state.partitions[p].epoch;
        matches!(r.row, Request::InFlight { epoch, .. } if stale(epoch)) && state.owners.iter().any(waits)
    })
}
