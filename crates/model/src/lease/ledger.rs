//! The product's own ledger, in states of the model: laid out small between two steps, made whole for each.
//!
//! Whatever an owner notes and decides about shares, attempts, orphans, marks and horizons is done by
//! [`leasehold_dispatch::ledger::Ledger`]; nothing of it is written again here, and the faults stand around it. A ledger
//! answers the same whenever it is asked the same, so each question is put to it once.

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap},
    sync::LazyLock,
    time::{Duration, Instant},
};

use leasehold_dispatch::ledger::{self, Ledger, Orphan, Parts};
use leasehold_store::{Flight, Reset, Stamp, Stamped};

use super::MAX;
use crate::small;

/// A partition held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Share {
    /// Of the lease.
    pub epoch: u8,
    /// It dispatches nothing.
    pub draining: bool,
    /// Transactions below must end before a reset is final; none: not reset yet.
    pub horizon: Option<u8>,
    /// The reset was final.
    pub settled: bool,
}

/// A dispatch that a worker has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tracked {
    /// Stamped with.
    pub epoch: u8,
    /// Stamped with.
    pub attempt: u8,
}

/// A poll's answer was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mark {
    /// Earlier ones stamp nothing once it is in the database.
    pub generation: u8,
    /// Transactions below must end before a reconciliation is the last; none: not looked yet.
    pub horizon: Option<u8>,
}

/// All that a ledger holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Memory {
    /// By partition.
    pub shares: [Option<Share>; MAX],
    /// By request.
    pub tracked: [Option<Tracked>; MAX],
    /// Attempts by request; 0: none.
    pub orphans: [u8; MAX],
    /// Something must be reconciled.
    pub mark: Option<Mark>,
    /// Of its polls, from 1.
    pub generation: u8,
}

/// One call of the ledger. `p` is a partition, `r` a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "they bear the names of the ledger's own")]
pub(super) enum Call {
    Track {
        r: usize,
        stamp: Tracked,
    },
    Settle {
        r: usize,
        attempt: u8,
    },
    Abandon {
        r: usize,
        attempt: u8,
    },
    /// Epochs by partition, 0 where it is not ours; and whether it drains.
    Sync([(u8, bool); MAX]),
    Gain {
        p: usize,
        epoch: u8,
    },
    Release {
        p: usize,
    },
    SetDraining {
        p: usize,
        draining: bool,
    },
    Unsettled,
    /// Of everything unsettled.
    NoteReset {
        reset: u8,
        found: u8,
        xmin: u8,
        xmax: u8,
    },
    Mark,
    Orphans,
    /// Which of these, by request, it does not know.
    Unknown([u8; MAX]),
    NoteReconciled {
        xmin: u8,
        xmax: u8,
    },
    Dispatching,
    /// Whether the time of a drain is up.
    Drained {
        late: bool,
    },
}

/// What a call returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Told {
    /// Attempts by request, 0 for none.
    pub(super) stamps: [u8; MAX],
    /// A bit each.
    pub(super) partitions: u8,
}

type Known = HashMap<(usize, Memory, Call), (Memory, Told)>;

/// Beyond this many, answers are asked for anew.
const KNOWN: usize = 1 << 20;

thread_local! {
    static ANSWERS: RefCell<Known> = RefCell::default();
}

/// When every drain began: only what has passed since matters, and that is the model's choice.
static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);

impl Memory {
    pub(super) const NEW: Self =
        Self { shares: [None; MAX], tracked: [None; MAX], orphans: [0; MAX], mark: None, generation: 1 };

    /// Calls the ledger. Requests fall on `partitions` in turns.
    pub(super) fn call(&mut self, partitions: usize, call: Call) -> Told {
        let (memory, told) = ANSWERS.with_borrow_mut(|answers| {
            if answers.len() > KNOWN {
                answers.clear();
            }
            *answers.entry((partitions, *self, call)).or_insert_with(|| {
                let mut ledger = Ledger::from(self.parts(partitions));
                let told = perform(&mut ledger, partitions, call);
                (Self::of(&Parts::from(ledger)), told)
            })
        });
        *self = memory;
        told
    }

    /// As [`Memory::call`], of what changes nothing.
    pub(super) fn ask(mut self, partitions: usize, call: Call) -> Told {
        self.call(partitions, call)
    }

    fn parts(&self, partitions: usize) -> Parts {
        let shares = self.shares.iter().enumerate().filter_map(|(p, share)| Some((p, (*share)?)));
        let shares: BTreeMap<i16, ledger::Share> = shares
            .map(|(p, share)| {
                let share = ledger::Share {
                    epoch: share.epoch.into(),
                    draining_since: share.draining.then(|| (*BEGAN).into()),
                    horizon: share.horizon.map(u64::from),
                    settled: share.settled,
                };
                (number(p), share)
            })
            .collect();
        let tracked = self.tracked.iter().enumerate().filter_map(|(r, tracked)| Some((r, (*tracked)?)));
        let orphans = self.orphans.iter().enumerate().filter(|(_, attempt)| **attempt != 0);
        Parts {
            shares,
            tracked: tracked.map(|(r, tracked)| stamped(r, tracked, partitions)).collect(),
            orphans: orphans
                .map(|(r, a)| Orphan { stamp: stamp(r, *a), partition: number(r % partitions) })
                .collect(),
            mark: self.mark.map(|mark| ledger::Mark {
                generation: mark.generation.into(),
                horizon: mark.horizon.map(u64::from),
            }),
            generation: self.generation.into(),
        }
    }

    fn of(parts: &Parts) -> Self {
        let mut memory = Self {
            mark: parts
                .mark
                .map(|mark| Mark { generation: small(mark.generation), horizon: mark.horizon.map(small) }),
            generation: small(parts.generation),
            ..Self::NEW
        };
        for (p, share) in &parts.shares {
            memory.shares[small::<i16>(*p) as usize] = Some(Share {
                epoch: small(share.epoch),
                draining: share.draining_since.is_some(),
                horizon: share.horizon.map(small),
                settled: share.settled,
            });
        }
        for Stamped { stamp, epoch, .. } in &parts.tracked {
            memory.tracked[place(stamp)] =
                Some(Tracked { epoch: small(*epoch), attempt: small(stamp.attempt) });
        }
        for orphan in &parts.orphans {
            memory.orphans[place(&orphan.stamp)] = small(orphan.stamp.attempt);
        }
        memory
    }
}

fn perform(ledger: &mut Ledger, partitions: usize, call: Call) -> Told {
    let now = (*BEGAN).into();
    match call {
        Call::Track { r, stamp } => drop(ledger.track(&stamped(r, stamp, partitions))),
        Call::Settle { r, attempt } => drop(ledger.settle(&stamp(r, attempt))),
        Call::Abandon { r, attempt } => drop(ledger.abandon(&stamp(r, attempt))),
        Call::Sync(leases) => {
            let leases = leases.iter().enumerate().filter(|(_, (epoch, _))| *epoch != 0);
            let leases: Vec<_> = leases
                .map(|(p, (epoch, draining))| leasehold_store::Lease {
                    partition: number(p),
                    epoch: (*epoch).into(),
                    draining: *draining,
                })
                .collect();
            ledger.sync(&leases, now);
        }
        Call::Gain { p, epoch } => ledger.gain(number(p), epoch.into()),
        Call::Release { p } => ledger.release(&[number(p)]),
        Call::SetDraining { p, draining } => ledger.set_draining(&[number(p)], draining, now),
        Call::Unsettled => return Told::of(&[], &ledger.unsettled()),
        Call::NoteReset { reset, found, xmin, xmax } => {
            let reset =
                Reset { reset: reset.into(), found: found.into(), xmin: xmin.into(), xmax: xmax.into() };
            ledger.note_reset(&ledger.unsettled(), reset);
        }
        Call::Mark => ledger.mark(),
        Call::Orphans => return Told::of(&ledger.orphans(), &[]),
        Call::Unknown(attempts) => {
            return Told::of(&ledger.unknown(&flight(attempts, partitions, 0, 0)), &[]);
        }
        Call::NoteReconciled { xmin, xmax } => {
            if let Some(mark) = ledger.marked() {
                ledger.note_reconciled(mark, &flight([0; MAX], partitions, xmin, xmax));
            }
        }
        Call::Dispatching => {
            let dispatching: Vec<i16> = (0..number(MAX)).filter(|p| ledger.dispatches(*p)).collect();
            return Told::of(&[], if ledger.active() == 0 { &[] } else { &dispatching });
        }
        Call::Drained { late } => {
            let timeout = if late { Duration::ZERO } else { Duration::MAX };
            return Told::of(&[], &ledger.drained(timeout, now));
        }
    }
    Told::default()
}

impl Told {
    fn of(stamps: &[Stamp], partitions: &[i16]) -> Self {
        let mut told = Self::default();
        for stamp in stamps {
            told.stamps[place(stamp)] = small(stamp.attempt);
        }
        told.partitions = partitions.iter().fold(0, |all, p| all | 1 << p);
        told
    }

    pub(super) fn has(self, p: usize) -> bool {
        self.partitions & 1 << p != 0
    }

    /// Requests and attempts.
    pub(super) fn stamps(self) -> impl Iterator<Item = (usize, u8)> {
        self.stamps.into_iter().enumerate().filter(|(_, attempt)| *attempt != 0)
    }
}

fn flight(attempts: [u8; MAX], partitions: usize, xmin: u8, xmax: u8) -> Flight {
    let seen = attempts.into_iter().enumerate().filter(|(_, attempt)| *attempt != 0);
    let stamped = seen.map(|(r, attempt)| stamped(r, Tracked { epoch: 0, attempt }, partitions)).collect();
    Flight { stamped, xmin: xmin.into(), xmax: xmax.into() }
}

fn stamped(r: usize, Tracked { epoch, attempt }: Tracked, partitions: usize) -> Stamped {
    Stamped { stamp: stamp(r, attempt), partition: number(r % partitions), epoch: epoch.into() }
}

fn stamp(r: usize, attempt: u8) -> Stamp {
    Stamp { id: char::from(b'0' + small::<usize>(r)).into(), token: String::new(), attempt: attempt.into() }
}

fn place(stamp: &Stamp) -> usize {
    usize::from(stamp.id.as_bytes()[0] - b'0')
}

fn number(p: usize) -> i16 {
    small::<usize>(p).into()
}
