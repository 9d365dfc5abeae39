//! What tests, and the trial system of `leasehold up`, stand on: a private Postgres, a database for
//! each test, a proxy that breaks connections on purpose, a backend to send requests to, and pages to read.
//!
//! Nothing here knows Leasehold's schema or its crates; everything is reached by a URL.

pub mod cluster;
pub mod database;
pub mod pages;
pub mod proxy;
pub mod stand_in;
pub mod wait;
