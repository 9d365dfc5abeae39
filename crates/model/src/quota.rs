//! Slots of one key: acquire, release, renew and delete, by holders that crash, stall and lose answers.
//!
//! Each holder is on its own: a process that retires one and registers the next is two of them here, which is more
//! than it may do. Holders that left no trace are fresh again, so there is no end to generations. Time passes for all
//! at once, in ticks; a lease is [`TTL`] of them. Nothing bounds the number of statements: all of it is walked.
//!
//! **Shared with the product:** what a process decides about its holder is the product's own account of it
//! ([`leasehold_dispatch::quota::account`]): what is out and owed, whether it may be asked with, what a late grant or a lost
//! answer means, and when it is deleted. **Written again here:** the statements, since they are SQL, and when they are sent:
//! here at any time that the account allows.
//!
//! Left out: other keys, limits that change, a registration whose answer is lost (it holds nothing), a second renewal
//! while one that was given up still runs (both move the lease forward only).

mod account;
mod action;
mod holder;

use stateright::{Model, Property};

use crate::Fault;
use account::Call;
pub use account::Memory;
pub use action::Action;
pub use holder::{Holder, Phase, Row};

/// Property names that planted faults refer to.
pub mod name {
    /// Invariant 4.
    pub const LIMITED: &str = "4: work of live holders never exceeds the limit";
    /// Invariant 4.
    pub const COUNTED: &str = "4: what a live holder runs is counted";
    /// Invariant 4.
    pub const IN_TIME: &str = "4: no grant is handed out after its lease";
    /// Invariant 4.
    pub const OVER: &str = "4: a holder is deleted when its work is over";
    /// Invariant 4.
    pub const NOT_KEPT: &str = "4: who has leaked a slot grants nothing more";
}

/// Ticks of a lease. With fewer than two, none could be renewed across a tick.
pub const TTL: u8 = 2;

/// How much is walked through.
#[derive(Clone, Copy, Debug)]
pub struct Quota {
    /// Holders, at one time, that lose answers, are killed, and whose statements take several steps.
    pub frail: usize,
    /// Holders, at one time, all of whose statements take one step and are answered.
    pub swift: usize,
    /// Of the key.
    pub limit: u8,
    /// What breaks.
    pub fault: Option<Fault>,
}

/// Database and processes. Holders are sorted: which is which does not matter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// All that there are.
    pub holders: Vec<Holder>,
    /// A grant was handed out when its lease had ended.
    pub late: bool,
}

impl State {
    fn running(&self) -> u8 {
        self.holders.iter().filter(|holder| holder.is_live()).map(|holder| holder.running).sum()
    }
}

impl Quota {
    fn broken(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// Whether every process that closes now, and lets its statements run and its work end, has deleted its holder:
    /// all is given back without the help of a lapse.
    fn closes(&self, state: &State) -> bool {
        if state.holders.iter().any(Holder::is_busy) {
            return true; // it is asked again when these statements have ended
        }
        let mut state = state.clone();
        let mut actions = Vec::new();
        loop {
            actions.clear();
            self.actions(&state, &mut actions);
            let Some(action) = actions.iter().find(|action| action.is_closing()) else { break };
            match self.next_state(&state, *action) {
                Some(next) => state = next,
                None => return false,
            }
        }
        !state.holders.iter().any(Holder::is_up)
    }
}

impl Model for Quota {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut holders = vec![Holder::fresh(true); self.swift];
        holders.extend(vec![Holder::fresh(false); self.frail]);
        holders.sort_unstable();
        vec![State { holders, late: false }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.push(Action::Tick);
        for (i, holder) in state.holders.iter().enumerate() {
            // Of holders that are equal, one speaks for all.
            if i == 0 || state.holders[i - 1] != *holder {
                action::of_holder(self, state, i, actions);
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        action::apply(self, &mut state, action);
        state.holders.iter_mut().for_each(Holder::forget);
        state.holders.sort_unstable();
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(name::LIMITED, |model: &Self, state: &State| state.running() <= model.limit),
            Property::always(name::COUNTED, |_, state: &State| {
                state.holders.iter().filter(|h| h.is_live()).all(|h| h.slots >= h.running)
            }),
            Property::always(name::IN_TIME, |_, state: &State| !state.late),
            Property::always(name::OVER, |_, state: &State| {
                state.holders.iter().all(|h| h.phase != Phase::Gone || h.running == 0)
            }),
            Property::always(name::NOT_KEPT, |_, state: &State| {
                !state.holders.iter().any(|h| h.has_leaked() && h.memory.ask(Call::Enter))
            }),
            Property::always("4: closing frees all slots", Self::closes),
            Property::sometimes("4: all slots are used", |model: &Self, state: &State| {
                state.running() == model.limit
            }),
            Property::sometimes("4: a retired holder is granted a slot in time", |_, state: &State| {
                state.holders.iter().any(Holder::is_granted_though_retired)
            }),
            Property::sometimes("4: a renewal under way meets a mark", |_, state: &State| {
                state.holders.iter().any(Holder::renews_in_vain)
            }),
        ]
    }
}
