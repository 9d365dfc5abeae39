//! What an owner remembers of what is pending in its partitions, so that no poll has to look for it.
//!
//! Requests are read once, in the order of their arrival, and kept in the order of dispatch. A smaller arrival may become
//! visible after a larger one; so what was read is *settled* only when every transaction has ended that could have drawn a
//! smaller one, and is read again until then. Why that is enough, and what finds what it misses: docs/decisions/0011.
//!
//! Nothing here is a fence. Whatever it names that is not pending is not dispatched.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, HashSet},
    time::Duration,
};

use leasehold_store::{Arrival, Arrivals, Lease, Mark, Place};
use tokio::time::Instant;

/// Arrivals of one partition that are read at a time. Where there are more, its first ones are looked up instead.
pub(super) const ARRIVALS: i32 = 500;
/// Of one partition, earliest deadline first, when they are looked up.
pub(super) const FIRST: i32 = 500;
/// Of one partition at most; the latest deadlines are forgotten then, and looked up when the others are gone.
const KEPT: usize = 2000;
/// Between two looks for what should be remembered and is not, a partition each: so long, and so many polls; or so long.
const AUDIT: (Duration, u32, Duration) = (Duration::from_secs(1), 20, Duration::from_secs(60));
/// And so many times what the last one took: while a held snapshot forbids cleaning, it walks over all that was dispatched.
const AUDIT_SHARE: u32 = 300;
/// Arrivals that stay unsettled for longer are not read again each time, for there may be many.
const SETTLES: Duration = Duration::from_secs(1);
/// Such arrivals are read again after this part of the time for which they are unsettled.
const REREAD: u32 = 20;
/// Between two looks whether the memory of a queue can be used.
const RETRY: Duration = Duration::from_secs(1);

/// One owner's memory of one queue.
#[derive(Debug, Default)]
pub(super) struct Memory {
    shelves: BTreeMap<i16, Shelf>,
    /// Connections that there had been when it was begun.
    sessions: u64,
    /// None: at once.
    useless_until: Option<Instant>,
    reread: Option<Instant>,
    audited: Option<Audited>,
}

/// The last audit.
#[derive(Clone, Copy, Debug)]
struct Audited {
    partition: i16,
    at: Instant,
    took: Duration,
    polls_since: u32,
}

/// What is remembered of one partition.
#[derive(Debug)]
struct Shelf {
    epoch: i64,
    state: State,
    /// What is pending there, with its arrival.
    rows: BTreeMap<Place, i64>,
    /// Beyond it there may be more than `rows` has; none: there is not.
    bound: Option<Place>,
    /// Something that was remembered could not be dispatched: it ended, or was brought back, or the partition was not ours.
    doubted: bool,
}

#[derive(Debug)]
enum State {
    /// Nothing is known.
    New,
    /// What arrived up to the mark can be looked up when every transaction below it has ended.
    Marked(Mark),
    /// All that arrived up to the mark is visible.
    Visible {
        last: i64,
    },
    Known(Cursor),
}

/// How far a partition was read.
#[derive(Debug)]
struct Cursor {
    /// Nothing is to come up to here.
    settled: i64,
    seen: i64,
    /// Nothing is to come up to that arrival when every transaction below that has ended; and since when that is awaited.
    settles: Option<(Mark, Instant)>,
}

/// What is read from the database next.
#[derive(Debug)]
pub(super) struct Reading {
    /// The partitions that are known, and after which arrival.
    pub(super) after: Vec<(i16, i64)>,
    /// How far arrivals have come is to be said, too.
    pub(super) mark: bool,
    /// What is not settled is read again.
    whole: bool,
}

/// A request that is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pick {
    pub(super) partition: i16,
    pub(super) seq: i64,
    pub(super) arrival: i64,
}

/// What is to be dispatched next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// These. Empty: nothing is pending.
    Dispatch(Vec<Pick>),
    /// The first ones of these partitions must be looked up before.
    LookUp(Vec<i16>),
}

impl Memory {
    /// Takes over which partitions are dispatched from, and forgets everything when a connection was made since it began:
    /// a server that crashed has forgotten stamps, and draws arrivals again.
    pub(super) fn sync(&mut self, active: &[Lease], sessions: u64) {
        if self.sessions != sessions {
            *self = Self { sessions, ..Self::default() };
        }
        self.shelves.retain(|partition, shelf| {
            active.iter().any(|lease| lease.partition == *partition && lease.epoch == shelf.epoch)
        });
        for lease in active {
            self.shelves.entry(lease.partition).or_insert_with(|| Shelf::new(lease.epoch));
        }
    }

    /// Whether it may be asked at all just now.
    pub(super) fn is_useless(&self, now: Instant) -> bool {
        self.useless_until.is_some_and(|until| now < until)
    }

    /// Where to read on.
    pub(super) fn reading(&mut self, now: Instant) -> Reading {
        let known =
            || self.shelves.iter().filter_map(|(partition, shelf)| Some((*partition, shelf.cursor()?)));
        let unsettled_since = known().filter_map(|(_, cursor)| cursor.settles).map(|(_, since)| since).min();
        let waited = unsettled_since.map_or(Duration::ZERO, |since| now.duration_since(since));
        let whole =
            waited < SETTLES || self.reread.is_none_or(|last| now.duration_since(last) > waited / REREAD);
        let after =
            known().map(|(id, cursor)| (id, if whole { cursor.settled } else { cursor.seen })).collect();
        if whole {
            self.reread = Some(now);
        }
        Reading { after, mark: self.shelves.values().any(|shelf| matches!(shelf.state, State::New)), whole }
    }

    /// Takes note of what was read.
    pub(super) fn note(&mut self, reading: &Reading, arrivals: &Arrivals, now: Instant) {
        if !arrivals.exclusive {
            *self = Self { sessions: self.sessions, useless_until: Some(now + RETRY), ..Self::default() };
            return;
        }
        let mut counts: BTreeMap<i16, i32> = BTreeMap::new();
        for request in &arrivals.requests {
            *counts.entry(request.partition).or_default() += 1;
            if let Some(shelf) = self.shelves.get_mut(&request.partition) {
                shelf.arrived(request);
            }
        }
        for shelf in self.shelves.values_mut() {
            match &mut shelf.state {
                State::New => shelf.state = arrivals.mark.map_or(State::New, State::Marked),
                State::Marked(mark) if arrivals.xmin >= mark.xid => {
                    shelf.state = State::Visible { last: mark.last }
                }
                State::Marked(_) | State::Visible { .. } => {}
                State::Known(cursor) => {
                    let ended = cursor.settles.filter(|(mark, _)| arrivals.xmin >= mark.xid);
                    match ended {
                        Some((mark, _)) if reading.whole => {
                            (cursor.settled, cursor.settles) = (mark.last, None);
                        }
                        // This reading did not look, and the next one does.
                        Some(_) => self.reread = None,
                        None => {}
                    }
                }
            }
        }
        for (partition, count) in counts {
            // Was it more than that? Its first ones tell, once everything is visible.
            if count >= ARRIVALS
                && let Some(shelf) = self.shelves.get_mut(&partition)
            {
                *shelf = Shelf::new(shelf.epoch);
            }
        }
    }

    /// What to do about a poll for up to `limit`; none while not everything is known.
    pub(super) fn next(&mut self, limit: usize) -> Option<Next> {
        let unknown = |shelf: &Shelf| matches!(shelf.state, State::New | State::Marked(_));
        if self.shelves.is_empty() || self.shelves.values().any(unknown) {
            return None;
        }
        let wanting = self.shelves.iter().filter(|(_, shelf)| shelf.wants_first());
        let wanting: Vec<i16> = wanting.map(|(partition, _)| *partition).collect();
        if !wanting.is_empty() {
            return Some(Next::LookUp(wanting));
        }
        let firsts =
            self.shelves.iter().filter_map(|(partition, shelf)| Some(Reverse((shelf.first()?, *partition))));
        let mut firsts: BinaryHeap<_> = firsts.collect();
        let mut picks = Vec::new();
        while picks.len() < limit
            && let Some(Reverse((_, partition))) = firsts.pop()
            && let Some(shelf) = self.shelves.get_mut(&partition)
            && let Some((place, arrival)) = shelf.rows.pop_first()
        {
            picks.push(Pick { partition, seq: place.seq, arrival });
            match shelf.first() {
                Some(first) => firsts.push(Reverse((first, partition))),
                // Those beyond its bound may come before all others.
                None if shelf.bound.is_some() => break,
                None => {}
            }
        }
        Some(Next::Dispatch(picks))
    }

    /// Takes note of what came of `picks`: these were dispatched, by this transaction. Whoever had drawn an arrival by the
    /// last reading has a smaller id.
    pub(super) fn dispatched(&mut self, picks: &[Pick], seqs: &HashSet<i64>, xid: Option<u64>, now: Instant) {
        for pick in picks.iter().filter(|pick| !seqs.contains(&pick.seq)) {
            if let Some(shelf) = self.shelves.get_mut(&pick.partition) {
                shelf.doubted = true;
            }
        }
        let Some(xid) = xid else { return };
        for shelf in self.shelves.values_mut() {
            if let State::Known(cursor) = &mut shelf.state
                && cursor.settles.is_none()
                && cursor.seen > cursor.settled
            {
                cursor.settles = Some((Mark { last: cursor.seen, xid }, now));
            }
        }
    }

    /// Takes note of the first ones of `partitions`, up to `most` of each, just looked up. `picks` are remembered no more.
    pub(super) fn looked_up(
        &mut self,
        partitions: &[i16],
        found: &[Arrival],
        most: usize,
        picks: &[Pick],
        now: Instant,
    ) {
        let picked: HashSet<i64> = picks.iter().map(|pick| pick.arrival).collect();
        for partition in partitions {
            let Some(shelf) = self.shelves.get_mut(partition) else { continue };
            let found: Vec<&Arrival> =
                found.iter().filter(|request| request.partition == *partition).collect();
            if found.iter().any(|request| request.arrival == 0) {
                // It cannot be named.
                self.useless_until = Some(now + RETRY);
                *shelf = Shelf::new(shelf.epoch);
                continue;
            }
            if let State::Visible { last } = shelf.state {
                shelf.state = State::Known(Cursor { settled: last, seen: last, settles: None });
            }
            let left = found.iter().filter(|request| !picked.contains(&request.arrival));
            shelf.rows = left.map(|request| (request.place, request.arrival)).collect();
            shelf.bound = found.last().map(|last| last.place).filter(|_| found.len() >= most);
            shelf.doubted = false;
        }
    }

    /// These, by their seqs, were dispatched without being picked.
    pub(super) fn taken(&mut self, seqs: &HashSet<i64>) {
        for shelf in self.shelves.values_mut().filter(|_| !seqs.is_empty()) {
            shelf.rows.retain(|place, _| !seqs.contains(&place.seq));
        }
    }

    /// A partition that is to be audited now.
    pub(super) fn due_for_audit(&mut self, now: Instant) -> Option<i16> {
        let last = self.audited.get_or_insert(Audited {
            partition: -1,
            at: now,
            took: Duration::ZERO,
            polls_since: 0,
        });
        last.polls_since = last.polls_since.saturating_add(1);
        let (busy, polls, idle) = AUDIT;
        let waited = now.duration_since(last.at);
        if waited < busy.max(last.took * AUDIT_SHARE) || last.polls_since < polls && waited < idle {
            return None;
        }
        let known = |(_, shelf): &(&i16, &Shelf)| shelf.cursor().is_some();
        let later = self.shelves.range(last.partition + 1..).find(known);
        let partition = *later.or_else(|| self.shelves.iter().find(known))?.0;
        self.audited = Some(Audited { partition, at: now, took: Duration::ZERO, polls_since: 0 });
        Some(partition)
    }

    /// Takes note of the first ones of a partition, just looked up, which should have been known. Says how many were not.
    pub(super) fn audit(&mut self, partition: i16, found: &[Arrival], now: Instant) -> usize {
        if let Some(last) = &mut self.audited {
            last.took = now.duration_since(last.at);
        }
        let Some(shelf) = self.shelves.get_mut(&partition) else { return 0 };
        let settled = shelf.cursor().filter(|_| !shelf.doubted).map_or(0, |cursor| cursor.settled);
        let found = found.iter().filter(|request| request.arrival != 0);
        found.filter(|request| shelf.keep(request) && request.arrival <= settled).count()
    }
}

impl Shelf {
    fn new(epoch: i64) -> Self {
        Self { epoch, state: State::New, rows: BTreeMap::new(), bound: None, doubted: false }
    }

    fn first(&self) -> Option<Place> {
        self.rows.first_key_value().map(|(place, _)| *place)
    }

    fn cursor(&self) -> Option<&Cursor> {
        match &self.state {
            State::Known(cursor) => Some(cursor),
            _ => None,
        }
    }

    fn wants_first(&self) -> bool {
        self.doubted
            || matches!(self.state, State::Visible { .. })
            || self.bound.is_some() && self.rows.is_empty()
    }

    fn arrived(&mut self, request: &Arrival) {
        if let State::Known(cursor) = &mut self.state {
            cursor.seen = cursor.seen.max(request.arrival);
            self.keep(request);
        }
    }

    /// Unless it comes after what is kept. Whether it is new.
    fn keep(&mut self, request: &Arrival) -> bool {
        if self.bound.is_some_and(|bound| request.place > bound) {
            return false;
        }
        let is_new = self.rows.insert(request.place, request.arrival) != Some(request.arrival);
        if self.rows.len() > KEPT
            && let Some(place) = self.rows.keys().nth(KEPT / 2).copied()
        {
            self.rows.split_off(&place);
            self.bound = self.rows.last_key_value().map(|(place, _)| *place);
        }
        is_new
    }
}

#[cfg(test)]
mod tests;
