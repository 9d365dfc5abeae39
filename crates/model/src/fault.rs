//! Rules that can be broken on purpose, one at a time.

/// A rule that does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An ack does not compare its row's epoch with the partition's.
    AckIgnoresEpoch,
    /// A retry does not ask whose the partition is.
    RetryIgnoresOwner,
    /// A poll's answer leaves the orphan entry of an earlier dispatch in place.
    PollKeepsOrphans,
    /// The stale reset takes rows of the partition's own epoch too.
    ResetTouchesCurrent,
    /// Bookkeeping after a write compares keys, not attempts.
    CompletionIgnoresAttempt,
    /// A reconciliation knows a row by its key, whatever its attempt.
    ReconcileTrustsKeys,
    /// The first reset after a takeover is the last.
    FirstResetIsFinal,
    /// A release whose answer was lost is sent again.
    ReleaseRetried,
    /// A holder that seems lapsed is left out of the count and not marked.
    LapsedWithoutMark,
    /// A grant whose answer came after its lease is handed out.
    LateGrantUsed,
    /// Two windows on one key keep one log.
    WindowsShareLog,
}
