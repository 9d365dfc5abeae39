//! How much of each model is walked through: a minute of it for the tests, the rest for whoever asks.

use std::fmt;

use crate::{lease::Lease, quota::Quota, window::Windows};

/// Slots. With `large`, two swift holders beside the one to whom everything happens.
pub fn quota(large: bool) -> Vec<Quota> {
    let bounds = |frail, swift, limit| Quota { frail, swift, limit, fault: None };
    let mut all = vec![bounds(1, 1, 1), bounds(1, 1, 2)];
    if large {
        all.extend([bounds(1, 2, 1), bounds(1, 2, 2)]);
    }
    all
}

/// Windows. With `large`, more is admitted, and more settled at once.
pub fn windows(large: bool) -> Vec<Windows> {
    let mut all = vec![Windows::new(2, 2)];
    if large {
        all.extend([Windows::new(3, 2), Windows::new(2, 3)]);
    }
    all
}

/// Leases, against a swift owner. With `large`, three epochs and three attempts together, also with all that befalls a
/// request besides; two owners to both of whom everything happens; and heartbeats that run late.
pub fn leases(large: bool) -> Vec<Lease> {
    let one = Lease { polls: 1, ..Lease::new(2, 2) };
    let more = |one| Lease { drains: true, parks: true, skips: true, ..one };
    let mut all = vec![
        one,
        more(Lease { attempts: 1, ..one }),
        Lease { polls: 2, attempts: 1, ..one },
        Lease { requests: 2, attempts: 1, crashes: false, ..one },
        Lease { partitions: 2, requests: 2, epochs: 1, attempts: 1, crashes: false, ..one },
        Lease { attempts: 1, late_leases: true, ..one },
    ];
    if large {
        let three = Lease::new(3, 3);
        let fewer = Lease { attempts: 1, ..one };
        all.extend([
            Lease { swift: false, ..fewer },
            Lease { late_beats: true, ..fewer },
            three,
            more(Lease { polls: 1, ..three }),
        ]);
    }
    all
}

impl fmt::Display for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |n: usize, what| if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") };
        write!(
            f,
            "lease: {}, {}; at one time {}, {}, {}, {}; two owners",
            of(self.partitions, "partition"),
            of(self.requests, "request"),
            of(self.epochs.into(), "epoch"),
            of(self.attempts.into(), "attempt"),
            of(self.polls, "poll"),
            of(self.writes, "write"),
        )?;
        f.write_str(if self.swift { ", one of them swift" } else { ", alike" })?;
        let besides = [
            (self.crashes, "kills"),
            (self.drains, "drains"),
            (self.parks, "parked rows and hand-backs"),
            (self.skips, "rows skipped"),
            (self.late_leases, "late acquires and releases"),
            (self.late_beats, "late heartbeats"),
        ];
        besides.iter().filter(|(present, _)| *present).try_for_each(|(_, what)| write!(f, "; {what}"))
    }
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "quota: limit {}; holders at one time: {} to whom everything happens, {} swift",
            self.limit, self.frail, self.swift
        )
    }
}

impl fmt::Display for Windows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [short, long] = self.windows;
        write!(
            f,
            "window: {} in {} ticks and {} in {}; {} admissions at one time that may be settled",
            short.limit, short.length, long.limit, long.length, self.open
        )
    }
}
