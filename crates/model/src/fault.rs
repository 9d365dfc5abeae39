//! Rules that can be broken on purpose, one at a time.

use clap::ValueEnum;

/// A rule that does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Fault {
    /// An ack does not compare its row's epoch with the partition's.
    AckIgnoresEpoch,
    /// A retry does not ask whose the partition is.
    RetryIgnoresOwner,
    /// A hand-back does not compare attempts.
    HandBackIgnoresAttempt,
    /// A poll's answer leaves the orphan entry of an earlier dispatch in place.
    PollKeepsOrphans,
    /// A poll does not compare its generation.
    LatePollRuns,
    /// A heartbeat makes a forgotten membership anew with a generation that was fenced, however late it runs.
    LateBeatRuns,
    /// A poll's transaction has its number only once it writes, and has looked before.
    NumberWhenWriting,
    /// A poll's recheck asks whether a row is stamped, and not whether it is due.
    ParkedTaken,
    /// A draining partition dispatches.
    DrainDispatches,
    /// A draining partition is released whatever is in flight.
    DrainRobs,
    /// The stale reset takes rows of the partition's own epoch too.
    ResetTouchesCurrent,
    /// Rows that a reset skipped count as reset.
    SkippedIsReset,
    /// The first reset after a takeover is the last.
    FirstResetIsFinal,
    /// Bookkeeping after a write compares keys, not attempts.
    CompletionIgnoresAttempt,
    /// A reconciliation knows a row by its key, whatever its attempt.
    ReconcileTrustsKeys,
    /// A release whose answer was lost is sent again.
    ReleaseRetried,
    /// A holder that seems lapsed is left out of the count and not marked.
    LapsedWithoutMark,
    /// A grant whose answer came after its lease is handed out.
    LateGrantUsed,
    /// An ask whose answer was lost is forgotten, and its holder goes on.
    LostGrantIgnored,
    /// A retired holder is deleted whatever is out.
    DeletedWhileOut,
    /// Two windows on one key keep one log.
    WindowsShareLog,
}
