//! Receiving messages from a real Postgres: long polls that are woken, and workers that keep, lose and settle locks.
//!
//! Receivers here look every hour, so that whatever wakes them within the test is a bell or a time they know of.

#![allow(clippy::unwrap_used, reason = "a test may panic, and so may what only tests use")]

mod bench;
mod closing;
mod concurrency;
#[path = "../ground/mod.rs"]
mod ground;
mod locks;
mod outcomes;
mod wakings;
