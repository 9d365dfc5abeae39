//! Choosing a port for Postgres.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

use super::ClusterError;

/// Ports below those that operating systems hand to outgoing connections (32768 and up on Linux,
/// 49152 and up elsewhere). A client that retries while Postgres is down could otherwise be given the
/// very port it calls, connect to itself, and keep Postgres from coming back.
const FIRST: u32 = 20_000;
const COUNT: u32 = 10_000;

/// Clusters of one process must not look at the same port before either has bound it.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// A port that nothing listens on. Another program may take it before Postgres does.
pub(super) fn free() -> Result<u16, ClusterError> {
    // Processes that run side by side have neighbouring ids; the factor, prime, sets them far apart.
    let start = std::process::id().wrapping_mul(7919);
    for _ in 0..COUNT {
        let offset = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT;
        let port = u16::try_from(FIRST + offset).expect("30,000 fits");
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    Err(ClusterError::NoFreePort)
}
