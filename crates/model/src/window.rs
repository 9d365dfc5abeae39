//! Two windows on one key: admissions, and reservations that give back what they did not spend.
//!
//! Time is discrete. The longer window's log merges admissions within two ticks, as a log does within a 64th of its
//! window, under the time of the latest; the shorter one's keeps each. What was really spent is written down besides
//! the logs, and judged by its own times.
//!
//! **Written again here:** all of it, since it is SQL.
//!
//! Left out: reservations that cost more than they reserved (they count whatever the limit), limits that change.

use stateright::{Model, Property};

use crate::Fault;

/// Property names that planted faults refer to.
pub mod name {
    /// Invariant 4.
    pub const LIMITED: &str = "4: no trailing window exceeds its limit";
}

/// One window.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Ticks.
    pub length: u8,
    /// Admissions within so many ticks share an entry.
    pub grain: i8,
    /// Admitted within any `length`.
    pub limit: u8,
}

/// How much is walked through.
#[derive(Clone, Copy, Debug)]
pub struct Windows {
    /// Of the key.
    pub windows: [Window; 2],
    /// Admissions whose end is not written yet, at one time.
    pub open: usize,
    /// What breaks.
    pub fault: Option<Fault>,
}

impl Windows {
    /// A window of two ticks, and one of four; `limit` is the longer one's.
    pub fn new(limit: u8, open: usize) -> Self {
        let windows = [Window { length: 2, grain: 1, limit: 1 }, Window { length: 4, grain: 2, limit }];
        Self { windows, open, fault: None }
    }
}

/// An entry of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entry {
    /// Ticks since the latest admission in it.
    pub age: u8,
    /// Admitted.
    pub count: u8,
}

/// What happened to an admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// Committed; the answer is on its way.
    Admitted,
    /// The process has it.
    Held,
    /// A statement is on its way that gives back so much.
    Settling(u8),
    /// It stays as it is.
    Spent,
}

/// An admission as it was, whatever the log says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Admission {
    /// Its window's place in [`Windows::windows`].
    pub window: usize,
    /// Ticks since.
    pub age: u8,
    /// What counts for good.
    pub amount: u8,
    /// Where it is.
    pub stage: Stage,
}

/// Database, processes and the truth.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The time, as far as it tells entries that share a grain from others.
    pub clock: i8,
    /// Oldest first, by window.
    pub logs: [Vec<Entry>; 2],
    /// Sorted.
    pub admissions: Vec<Admission>,
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Time passes.
    Tick,
    /// A window is asked for so much, and answers.
    Admit(usize, u8),
    /// An admission's answer comes.
    Hear(usize),
    /// It will not come: nothing is done for it, and nothing given back.
    Lose(usize),
    /// It came to what it reserved.
    Keep(usize),
    /// It came to less by so much.
    Settle(usize, u8),
    /// The settlement commits.
    Write(usize),
    /// The settlement is lost before it commits. It is not repeated.
    Drop(usize),
}

impl State {
    fn sum(entries: &[Entry], length: u8) -> u8 {
        entries.iter().filter(|entry| entry.age < length).map(|entry| entry.count).sum()
    }

    fn spent(&self, window: usize, length: u8) -> u8 {
        let recent = self.admissions.iter().filter(|a| a.window == window && a.age < length);
        recent.map(|a| a.amount).sum()
    }

    /// Which run of `grain` ticks the time `age` ago lies in.
    fn run(&self, age: u8, grain: i8) -> i8 {
        (self.clock - age.cast_signed()).div_euclid(grain)
    }

    fn tick(&mut self, windows: &[Window; 2]) {
        // What is older than any window and grain is as old as can be.
        let oldest = windows[1].length + windows[1].grain.unsigned_abs();
        self.clock = (self.clock + 1).rem_euclid(windows[1].grain);
        let entries = self.logs.iter_mut().flatten().map(|entry| &mut entry.age);
        for age in entries.chain(self.admissions.iter_mut().map(|a| &mut a.age)) {
            *age = oldest.min(*age + 1);
        }
    }
}

impl Windows {
    fn log(&self, window: usize) -> usize {
        if self.fault == Some(Fault::WindowsShareLog) { 0 } else { window }
    }

    /// `quota_admit_parts`.
    fn admit(&self, state: &mut State, window: usize, amount: u8) {
        let Window { length, grain, limit } = self.windows[window];
        let mut log = std::mem::take(&mut state.logs[self.log(window)]);
        log.retain(|entry| entry.age < length);
        if State::sum(&log, length) + amount <= limit {
            match log.last_mut() {
                Some(last) if state.run(last.age, grain) == state.run(0, grain) => {
                    *last = Entry { age: 0, count: last.count + amount };
                }
                _ => log.push(Entry { age: 0, count: amount }),
            }
            state.admissions.push(Admission { window, age: 0, amount, stage: Stage::Admitted });
        }
        state.logs[self.log(window)] = log;
    }

    /// `quota_settle`, of one change.
    fn settle(&self, state: &mut State, admission: Admission, back: u8) {
        let grain = self.windows[admission.window].grain;
        let ours = state.run(admission.age, grain);
        let log = &state.logs[self.log(admission.window)];
        let entry = log.iter().position(|e| e.age <= admission.age && state.run(e.age, grain) == ours);
        if let Some(entry) = entry {
            let count = &mut state.logs[self.log(admission.window)][entry].count;
            *count = count.saturating_sub(back);
        }
    }

    fn step(&self, state: &mut State, action: Action) {
        match action {
            Action::Tick => state.tick(&self.windows),
            Action::Admit(window, amount) => self.admit(state, window, amount),
            Action::Hear(i) => state.admissions[i].stage = Stage::Held,
            Action::Lose(i) => {
                state.admissions.remove(i);
            }
            Action::Keep(i) | Action::Drop(i) => state.admissions[i].stage = Stage::Spent,
            Action::Settle(i, back) => {
                state.admissions[i].amount -= back;
                state.admissions[i].stage = Stage::Settling(back);
            }
            Action::Write(i) => {
                if let Stage::Settling(back) = state.admissions[i].stage {
                    self.settle(state, state.admissions[i], back);
                }
                state.admissions[i].stage = Stage::Spent;
            }
        }
    }

    /// Every window in turn: what its log counts, what was spent, and its limit.
    fn all(&self, state: &State, holds: impl Fn(u8, u8, u8) -> bool) -> bool {
        self.windows.iter().enumerate().all(|(i, window)| {
            let counted = State::sum(&state.logs[self.log(i)], window.length);
            holds(counted, state.spent(i, window.length), window.limit)
        })
    }
}

impl Model for Windows {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State { clock: 0, logs: [Vec::new(), Vec::new()], admissions: Vec::new() }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.push(Action::Tick);
        if state.admissions.iter().filter(|a| a.stage != Stage::Spent).count() < self.open {
            for (i, window) in self.windows.iter().enumerate() {
                actions.extend((1..=window.limit).map(|amount| Action::Admit(i, amount)));
            }
        }
        for (i, admission) in state.admissions.iter().enumerate() {
            match admission.stage {
                Stage::Admitted => actions.extend([Action::Hear(i), Action::Lose(i)]),
                Stage::Held => {
                    actions.push(Action::Keep(i));
                    actions.extend((1..=admission.amount).map(|back| Action::Settle(i, back)));
                }
                Stage::Settling(_) => actions.extend([Action::Write(i), Action::Drop(i)]),
                Stage::Spent => {}
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        self.step(&mut state, action);
        let length = |a: &Admission| self.windows[a.window].length;
        state.admissions.retain(|a| a.stage != Stage::Spent || a.amount > 0 && a.age < length(a));
        state.admissions.sort_unstable();
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(name::LIMITED, |model: &Self, state: &State| {
                model.all(state, |_, spent, limit| spent <= limit)
            }),
            Property::always("4: what was admitted is counted", |model: &Self, state: &State| {
                model.all(state, |counted, spent, _| counted >= spent)
            }),
            Property::always("4: a window frees itself", |model: &Self, state: &State| {
                let mut later = state.clone();
                (0..model.windows[1].length).for_each(|_| later.tick(&model.windows));
                model.all(&later, |counted, _, _| counted == 0)
            }),
            Property::sometimes("4: both windows are full", |model: &Self, state: &State| {
                model.all(state, |_, spent, limit| spent == limit)
            }),
        ]
    }
}
