//! The quota client against a real Postgres, with replies lost on the way.

#![allow(clippy::unwrap_used, reason = "a test may panic, and so may what only tests use")]

mod clients;
#[path = "../ground/mod.rs"]
mod ground;
mod lost_replies;
mod random;
mod site;
