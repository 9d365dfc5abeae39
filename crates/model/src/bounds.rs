//! How much of each model is walked through: a minute of it for the tests, the rest for whoever asks.

use crate::{quota::Quota, window::Windows};

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
