//! The lease protocol against a real Postgres: consumers share a queue, lose replies, die, and come back.
//!
//! Each test is one scenario in a database of its own, and ends with [`bench::Bench::assert_invariants`]. The
//! invariants, by number:
//!
//! 1. At most one result per (id, token), and never a result and a live row.
//! 2. A row stamped with its partition's current epoch always has a tracked worker, an orphan entry or a
//!    pending reconciliation.
//! 3. Only the current owner can ack, retry, defer or hand back.
//! 5. Every request ends in exactly one outcome.
//! 6. Within a FIFO group, delivery order is commit order, and at most one is in flight.
//!
//! What a race needs is brought about by holding or losing one statement's reply, and by ageing rows; nothing
//! waits for a lease to lapse.

#![allow(clippy::unwrap_used, reason = "a test may panic, and so may what only tests use")]

mod attempts;
mod bench;
mod cancellations;
mod crowd;
mod departures;
#[path = "../ground/mod.rs"]
mod ground;
mod groups;
mod handoff;
mod late_statements;
mod lost_replies;
mod memory;
mod shares;
mod takeover;
mod undecodable;
