//! Random walks of consumers over a real Postgres: owners share a queue, lose replies, die and come back, while
//! their statements are held up at any point. After every step, everything that can be seen is looked at.
//!
//! A walk is a list of steps drawn from a seed. One that fails is shortened, and printed so that it can be pinned.
//! `LEASEHOLD_WALKS` says how many, `LEASEHOLD_WALKS_SEED` from which seed on, `LEASEHOLD_WALKS_STEPS` how long.
//!
//! The invariants, by number, are those of ARCHITECTURE.md: 1, 2, 3 and 5.

#![allow(clippy::unwrap_used, reason = "a test may panic, and so may what only tests use")]

mod call;
mod check;
mod draw;
mod explain;
mod fault;
mod finish;
#[path = "../ground/mod.rs"]
mod ground;
mod motif;
mod moves;
mod pinned;
mod planted;
mod random;
mod shrink;
mod site;
mod step;
mod tally;
mod view;
mod walk;
mod world;
