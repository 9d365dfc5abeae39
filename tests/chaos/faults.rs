//! The hands that deal faults, one for each place, all at once.

pub(crate) mod on_backends;
pub(crate) mod on_postgres;
pub(crate) mod on_servers;
pub(crate) mod outside;
