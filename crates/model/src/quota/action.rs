//! The steps of a holder, its statements and its process.

use leasehold_dispatch::quota::account::Statement;

use super::{
    Quota, State, TTL,
    account::Call,
    holder::{Ask, Holder, Phase, Renewal, Row, Sent},
};
use crate::Fault;

/// One step. The number says which holder, as they are sorted before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Time passes.
    Tick,
    /// A holder is registered, and asked with.
    Register(usize),
    /// A process asks for one slot, and gives back what it owes.
    Ask(usize),
    /// The ask locks the key, marks who has lapsed, and counts.
    Count(usize),
    /// The ask is one of many, and leaves the key out, which somebody has locked: this model need not know who.
    Skip(usize),
    /// The ask commits.
    Grant(usize),
    /// The ask's answer comes.
    HearAsk(usize),
    /// The ask's answer will not come.
    LoseAsk(usize),
    /// A call ends.
    Finish(usize),
    /// What is owed is given back.
    Release(usize),
    /// The release commits.
    Free(usize),
    /// The release's answer comes.
    HearRelease(usize),
    /// The release's answer will not come.
    LoseRelease(usize),
    /// A renewal is sent.
    Renew(usize),
    /// The renewal reads the row.
    ReadRow(usize),
    /// The renewal locks the row, and looks again when it has changed.
    LockRow(usize),
    /// The renewal commits.
    Prolong(usize),
    /// The renewal's answer comes.
    HearRenewal(usize),
    /// The renewal's answer will not come.
    LoseRenewal(usize),
    /// A process closes its client, or its holder was idle.
    Close(usize),
    /// A holder without grants is deleted. An answer that is lost does not matter: it is repeated.
    Delete(usize),
    /// A process is killed, and its calls with it.
    Crash(usize),
}

impl Action {
    /// Belongs to a client that closes while all goes well.
    pub(super) fn is_closing(self) -> bool {
        use Action as A;
        !matches!(
            self,
            A::Tick
                | A::Register(_)
                | A::Ask(_)
                | A::LoseAsk(_)
                | A::Release(_)
                | A::LoseRelease(_)
                | A::Renew(_)
                | A::LoseRenewal(_)
                | A::Crash(_)
        )
    }
}

/// What may happen to holder `i`.
pub(super) fn of_holder(model: &Quota, state: &State, i: usize, actions: &mut Vec<Action>) {
    let holder = &state.holders[i];
    let waits = holder.swift && must_wait(state);
    if holder.phase == Phase::Fresh && !waits {
        actions.push(Action::Register(i));
    }
    if holder.is_up() {
        if !holder.memory.retired {
            actions.push(Action::Close(i));
        }
        if holder.ask.is_none() && holder.memory.ask(Call::Enter) && !waits {
            actions.push(Action::Ask(i));
        }
        if holder.release.is_none() && holder.memory.owed > 0 {
            actions.push(Action::Release(i));
        }
        if !holder.swift {
            actions.push(Action::Crash(i));
        }
        if holder.running > 0 {
            actions.push(Action::Finish(i));
        }
        if !holder.memory.lapsed && holder.renewal.is_none() {
            actions.push(Action::Renew(i));
        }
        let early = holder.memory.retired && model.broken(Fault::DeletedWhileOut);
        if (holder.memory.ask(Call::IsDone) || early) && !holder.holds_row() {
            actions.push(Action::Delete(i));
        }
    }
    statements(state, i, actions);
}

/// An ask waits for the key's lock; and to mark a holder, for the renewal that has its row.
fn must_wait(state: &State) -> bool {
    state.holders.iter().any(|h| h.holds_key() || h.row == Row::Open(0) && h.holds_row())
}

fn statements(state: &State, i: usize, actions: &mut Vec<Action>) {
    let holder = &state.holders[i];
    if let Some(ask) = holder.ask {
        match ask.stage {
            Ask::Sent => {
                actions.push(Action::Skip(i));
                if !must_wait(state) {
                    actions.push(Action::Count(i));
                }
            }
            Ask::Counted(_) => actions.push(Action::Grant(i)),
            Ask::Granted(_) | Ask::Refused | Ask::Skipped => actions.push(Action::HearAsk(i)),
        }
        if ask.awaited {
            actions.push(Action::LoseAsk(i));
        }
    }
    if let Some(release) = holder.release {
        match release.stage {
            false if holder.holds_key() => {}
            false => actions.push(Action::Free(i)),
            true => actions.push(Action::HearRelease(i)),
        }
        if release.awaited {
            actions.push(Action::LoseRelease(i));
        }
    }
    if let Some(renewal) = holder.renewal {
        actions.push(match renewal.stage {
            Renewal::Sent => Action::ReadRow(i),
            Renewal::Read(_) => Action::LockRow(i),
            Renewal::Held(_) => Action::Prolong(i),
            Renewal::Answered(_) => Action::HearRenewal(i),
        });
        if renewal.awaited {
            actions.push(Action::LoseRenewal(i));
        }
    }
}

type OfHolder = fn(usize) -> Action;

/// Takes a step that [`of_holder`] offered; a swift holder's statement runs to its end in it.
pub(super) fn apply(model: &Quota, state: &mut State, action: Action) {
    step(model, state, action);
    let (i, rest): (usize, &[OfHolder]) = match action {
        Action::Register(i) | Action::Ask(i) => (i, &[Action::Count, Action::Grant, Action::HearAsk]),
        Action::Release(i) => (i, &[Action::Free, Action::HearRelease]),
        Action::Renew(i) => (i, &[Action::ReadRow, Action::LockRow, Action::Prolong, Action::HearRenewal]),
        _ => return,
    };
    if state.holders[i].swift {
        rest.iter().for_each(|next| step(model, state, next(i)));
    }
}

fn step(model: &Quota, state: &mut State, action: Action) {
    match action {
        Action::Tick => state.holders.iter_mut().for_each(Holder::tick),
        Action::Count(i) => count(model, state, i),
        Action::HearAsk(i) => hear_ask(model, state, i),
        Action::Register(i) => state.holders[i].register(),
        Action::Ask(i) => {
            state.holders[i].call(Call::Enter);
            let owed = state.holders[i].call(Call::TakeOwed);
            state.holders[i].ask = Sent::new(Ask::Sent, owed);
        }
        Action::Skip(i) => state.holders[i].ask.iter_mut().for_each(|ask| ask.stage = Ask::Skipped),
        Action::Grant(i) => grant(&mut state.holders[i]),
        Action::LoseAsk(i) => lose_ask(model, &mut state.holders[i]),
        Action::Finish(i) => state.holders[i].finish(),
        Action::Release(i) => {
            let owed = state.holders[i].call(Call::TakeAllOwed);
            state.holders[i].release = Sent::new(false, owed);
        }
        Action::Free(i) => free(&mut state.holders[i]),
        Action::HearRelease(i) => state.holders[i].release = None,
        Action::LoseRelease(i) => lose_release(model, &mut state.holders[i]),
        Action::Renew(i) => state.holders[i].renewal = Sent::new(Renewal::Sent, TTL),
        Action::ReadRow(i) | Action::LockRow(i) | Action::Prolong(i) => renew(&mut state.holders[i]),
        Action::HearRenewal(i) => hear_renewal(&mut state.holders[i]),
        Action::LoseRenewal(i) => {
            state.holders[i].call(Call::Lose(Statement::Renewal));
            state.holders[i].renewal.iter_mut().for_each(|r| r.awaited = false);
        }
        Action::Close(i) => {
            state.holders[i].call(Call::Close);
        }
        Action::Delete(i) => {
            let holder = &mut state.holders[i];
            (holder.row, holder.slots, holder.phase) = (Row::Absent, 0, Phase::Gone);
            holder.give_up_all();
        }
        Action::Crash(i) => {
            let holder = &mut state.holders[i];
            (holder.phase, holder.running) = (Phase::Crashed, 0);
            holder.give_up_all();
        }
    }
}

/// `quota_acquire`, up to its commit. A mark not committed yet is as good as one that is: nobody else can renew a
/// holder whose lease has ended, and only another ask for the key, which waits, would look for it.
fn count(model: &Quota, state: &mut State, i: usize) {
    let Some(mut ask) = state.holders[i].ask else { return };
    ask.stage = Ask::Refused;
    if state.holders[i].is_live() {
        let mut used = 0;
        for (n, other) in state.holders.iter_mut().enumerate() {
            if n == i {
                used += other.slots.saturating_sub(ask.with);
            } else if other.is_live() {
                used += other.slots;
            } else if other.slots > 0 && !model.broken(Fault::LapsedWithoutMark) {
                if other.row != Row::Absent {
                    other.row = Row::Marked;
                }
                other.slots = 0;
            }
        }
        ask.stage = Ask::Counted(model.limit.saturating_sub(used).min(1));
    }
    state.holders[i].ask = Some(ask);
}

fn grant(holder: &mut Holder) {
    let Some(ask) = &mut holder.ask else { return };
    if let Ask::Counted(granted) = ask.stage {
        holder.slots = holder.slots.saturating_sub(ask.with) + granted;
        ask.stage = Ask::Granted(granted);
    }
}

fn hear_ask(model: &Quota, state: &mut State, i: usize) {
    let holder = &mut state.holders[i];
    let Some(ask) = holder.ask.take() else { return };
    match ask.stage {
        Ask::Granted(granted) => {
            let behind = if model.broken(Fault::LateGrantUsed) { TTL } else { 0 };
            if holder.call(Call::Grant { granted, behind }) != 0 {
                holder.running += granted;
                state.late |= granted > 0 && !holder.is_live();
            }
            0
        }
        Ask::Refused => holder.call(Call::Lapse),
        Ask::Skipped => holder.call(Call::Owe(ask.with)),
        Ask::Sent | Ask::Counted(_) => 0,
    };
    holder.call(Call::Leave { back: false });
}

fn lose_ask(model: &Quota, holder: &mut Holder) {
    if !model.broken(Fault::LostGrantIgnored) {
        holder.call(Call::Lose(Statement::Ask));
    }
    holder.call(Call::Leave { back: false });
    holder.ask.iter_mut().for_each(|ask| ask.awaited = false);
}

fn free(holder: &mut Holder) {
    let Some(release) = &mut holder.release else { return };
    release.stage = true;
    // Of a holder that is gone nothing is found.
    if holder.row != Row::Absent {
        holder.slots = holder.slots.saturating_sub(release.with);
    }
}

fn lose_release(model: &Quota, holder: &mut Holder) {
    let Some(release) = &mut holder.release else { return };
    if model.broken(Fault::ReleaseRetried) {
        release.stage = false;
    } else {
        release.awaited = false;
        holder.call(Call::Lose(Statement::Release));
    }
}

/// `quota_renew`: its lock waits, and it looks again at a row that has changed since it read it.
fn renew(holder: &mut Holder) {
    let live = holder.is_live();
    let Some(renewal) = &mut holder.renewal else { return };
    renewal.stage = match (renewal.stage, holder.row) {
        (Renewal::Sent, _) if live => Renewal::Read(TTL),
        (Renewal::Read(left), Row::Open(_)) => Renewal::Held(left),
        (Renewal::Held(left), _) => {
            holder.row = Row::Open(left);
            Renewal::Answered(true)
        }
        _ => Renewal::Answered(false),
    };
}

fn hear_renewal(holder: &mut Holder) {
    let Some(renewal) = holder.renewal.take() else { return };
    match renewal.stage {
        Renewal::Answered(true) => holder.call(Call::Renew(renewal.with)),
        _ => holder.call(Call::Lapse),
    };
}
