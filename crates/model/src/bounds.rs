//! How much of each model is walked through: a minute of it for the tests, the rest for whoever asks.

use crate::{lease::Lease, quota::Quota, window::Windows};

/// Slots. With `large`, whatever one holder may do, two do at once.
pub fn quota(large: bool) -> Vec<Quota> {
    let bounds = |frail, swift, limit| Quota { frail, swift, limit, fault: None };
    let mut all = vec![bounds(1, 1, 1), bounds(1, 1, 2), bounds(1, 2, 1)];
    if large {
        all.extend([bounds(1, 2, 2), bounds(2, 0, 1)]);
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

/// Leases, against a swift owner; without heartbeats that run late, see [`Lease::late_beats`]. With `large`, also against one to whom as much happens.
pub fn leases(large: bool) -> Vec<Lease> {
    let one = Lease {
        partitions: 1,
        requests: 1,
        epochs: 2,
        attempts: 2,
        writes: 1,
        swift: true,
        crashes: true,
        late_leases: false,
        late_beats: false,
        joins: false,
        fault: None,
    };
    let mut all = vec![
        one,
        Lease { epochs: 3, attempts: 1, writes: 2, ..one },
        Lease { requests: 2, attempts: 1, ..one },
        Lease { partitions: 2, requests: 2, epochs: 1, attempts: 1, ..one },
        Lease { attempts: 1, late_leases: true, ..one },
    ];
    if large {
        all.extend([
            Lease { attempts: 1, late_beats: true, joins: true, ..one },
            Lease { swift: false, attempts: 1, ..one },
            Lease { epochs: 3, attempts: 2, ..one },
            Lease { attempts: 3, ..one },
            Lease { writes: 2, ..one },
        ]);
    }
    all
}
