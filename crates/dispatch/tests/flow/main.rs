//! Whole dispatchers against a real Postgres: what becomes of a request between its enqueue and its result.
//!
//! Each test has a database of its own. The backend is a desk (a handler that waits for the test), or the
//! stand-in where HTTP is the point. Leases are long wherever a lapse is not the point, so that a slow machine
//! changes nothing. The invariants, by number:
//!
//! 1. At most one result per (id, token), and never a result and a live row.
//! 2. What is stamped under the current epoch has something that finishes it or hands it back.
//! 3. Only the current owner can ack, retry, defer or hand back.
//! 5. Every request ends in exactly one outcome.

#![allow(clippy::unwrap_used, reason = "a test may panic, and so may what only tests use")]

mod beats;
mod bench;
mod crash;
mod deadlines;
mod desk;
mod ends;
mod fences;
mod gates;
#[path = "../ground/mod.rs"]
mod ground;
mod hindrances;
mod messages;
mod order;
mod outcomes;
mod peers;
mod quotas;
mod readings;
mod refusals;
mod routes;
mod tenants;
mod vacuums;
mod wakings;
