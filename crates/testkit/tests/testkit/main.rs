//! The testkit's promises, kept against a real Postgres and real sockets.

mod cluster;
mod database;
mod killed_parent;
mod proxy;
mod stand_in;
mod wait;

use std::time::Duration;

/// Long enough for a busy machine; nothing waits this long when all is well.
const DEADLINE: Duration = Duration::from_secs(30);
