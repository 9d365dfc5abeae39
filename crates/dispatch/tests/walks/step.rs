//! What a walk is made of: plain data, drawn from a seed, so that a walk may be repeated, shortened and written down.
//!
//! Steps name what they concern by small numbers, taken modulo what is there when their turn comes. So each can be
//! taken whatever was left out before it; one that finds nothing to do does nothing.

/// Owners at once.
pub(crate) const SEATS: u8 = 3;
/// Requests that a walk may know: the first half with one token, and the others with the same ids and another.
pub(crate) const SLOTS: u8 = 10;
/// Where their ids belong: spread so that owners' joins and departures make them change hands.
pub(crate) const PARTITIONS_IN_PLAY: [i16; 4] = [0, 25, 40, 63];

/// By a number in steps.
pub(crate) fn partition_in_play(number: u8) -> i16 {
    PARTITIONS_IN_PLAY[usize::from(number) % PARTITIONS_IN_PLAY.len()]
}

/// A statement of the consumer's, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kind {
    Dispatch,
    Ack,
    Retry,
    Defer,
    Undispatch,
    SetGeneration,
    InFlight,
    Heartbeat,
    Reset,
    Release,
    SetDraining,
    Acquire,
    Leave,
}

impl Kind {
    /// What its text has.
    pub(crate) fn marker(self) -> &'static str {
        match self {
            Self::Dispatch => "Store::dispatch",
            Self::Ack => "Store::ack",
            Self::Retry => "Store::retry",
            Self::Defer => "Store::defer_dispatches",
            Self::Undispatch => "Store::undispatch",
            Self::SetGeneration => "Store::set_generation",
            Self::InFlight => "Store::in_flight",
            Self::Heartbeat => "Store::heartbeat",
            Self::Reset => "Store::reset_stale",
            Self::Release => "Store::release_partitions",
            Self::SetDraining => "Store::set_draining",
            Self::Acquire => "Store::acquire_partitions",
            Self::Leave => "Store::leave",
        }
    }
}

/// What happens to the call, at the first statement of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    Well,
    LoseReply(Kind),
    FailBefore(Kind),
    /// In the air from then on, before the server has it.
    HoldRequest(Kind),
    /// In the air from then on, after the server has done it.
    HoldReply(Kind),
}

/// Whose dispatches are settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// Those that the owner works on.
    Own,
    /// Any that there ever were, whoever got them, and settled or not.
    Any,
}

/// Some of them, from the latest on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pick {
    pub(crate) whose: Whose,
    pub(crate) from: u8,
    pub(crate) count: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The first time, the slot's request; then the same again, or with other content.
    Enqueue {
        slot: u8,
        conflict: bool,
        parked: bool,
    },
    Cancel {
        slot: u8,
    },
    /// A consumer with a new name, where there is none.
    Join {
        seat: u8,
        hasty: bool,
    },
    Poll {
        seat: u8,
        limit: u8,
        ended: bool,
        how: How,
    },
    Ack {
        seat: u8,
        pick: Pick,
        failed: bool,
        how: How,
    },
    Retry {
        seat: u8,
        pick: Pick,
        delayed: bool,
        how: How,
    },
    Defer {
        seat: u8,
        pick: Pick,
        delayed: bool,
        how: How,
    },
    HandBack {
        seat: u8,
        pick: Pick,
        refund: bool,
        how: How,
    },
    Abandon {
        seat: u8,
        pick: Pick,
    },
    Rebalance {
        seat: u8,
        how: How,
    },
    Stop {
        seat: u8,
    },
    Close {
        seat: u8,
        how: How,
    },
    /// Without farewell. `cut`: nothing that it sent arrives any more.
    Crash {
        seat: u8,
        cut: bool,
    },
    /// Its connections break, with all that it sent and was sent. What the server has begun goes on.
    Sever {
        seat: u8,
    },
    /// What an owner has lapses, and what the dead left; or what all have.
    Lapse {
        seat: Option<u8>,
    },
    /// Members that lapsed have done so an hour ago: a beat has forgotten those that no partition names.
    Forget,
    /// Somebody not in play has had a partition of the owner, or all of them, and given it up again.
    Oust {
        seat: u8,
        partition: Option<u8>,
    },
    MakeDue,
    PassDeadline {
        slot: u8,
    },
    /// Somebody else holds a row until [`Step::Unlock`].
    LockRequest {
        slot: u8,
    },
    LockPartition {
        partition: u8,
    },
    Unlock,
    /// Lets something in the air go on.
    Release {
        which: u8,
    },
    /// Drops the future of a call in the air; its request may still arrive, once released.
    GiveUp {
        which: u8,
    },
}
