//! What is measured: a file for each subcommand.

pub(crate) mod backlog;
pub(crate) mod held_snapshot;
pub(crate) mod in_flight;
pub(crate) mod messages;
pub(crate) mod offered;
pub(crate) mod parked;
pub(crate) mod peers;
pub(crate) mod quota;
pub(crate) mod saturate;
pub(crate) mod service;
pub(crate) mod tenants;
