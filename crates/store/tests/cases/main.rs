//! What the store promises, kept against a real Postgres. Each test has a database of its own, and every race is
//! played out by real transactions that wait for each other.
//!
//! The invariants that tests name:
//! 1. At most one result per (id, token), and never a result and a live row.
//! 2. A row stamped with its partition's current epoch always has something that will finish it or hand it back.
//! 3. No owner but the current one can ack, retry, defer or hand back.
//! 4. Running work under a key never exceeds its limit while holders are renewed; admitted work in any trailing
//!    window never exceeds its limit.
//! 5. Every request enqueued ends in exactly one outcome.

#![allow(clippy::unwrap_used, reason = "a test may panic, and so may what only tests use")]

mod connections;
mod dispatch;
mod doorbell;
mod enqueue;
mod enqueue_races;
mod flight;
mod leases;
mod marks;
mod message_model;
mod messages;
mod migrations;
mod operators;
mod plans;
mod quota_limits;
mod quota_looks;
mod quota_many;
mod quota_model;
mod quota_races;
mod quota_rates;
mod quota_roles;
mod quota_slots;
mod quota_turns;
mod quota_windows;
mod races;
mod repeats;
mod results;
mod roles;
mod search_path;
mod sql;
mod sql_fuzz;
mod sql_odd;
mod support;
mod takeover;
mod tenant_labels;
mod tenant_plans;
mod tenants;
mod upgrades;
mod vacuum;
