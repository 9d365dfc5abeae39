//! The `leasehold` program as its users meet it: real processes, a real Postgres, real signals.
//!
//! Each test has a database of its own, or, for `up`, a Postgres of its own. Processes are read by what they print
//! and what their HTTP endpoints say; a process that a test leaves behind is killed with it. The invariants, by
//! number:
//!
//! 1. At most one result per (id, token), and never a result and a live row.
//! 5. Every request ends in exactly one outcome.
//! 6. Within a FIFO group, delivery order is commit order, and at most one is in flight.

#![allow(clippy::unwrap_used, reason = "a test may panic, and so may what only tests use")]

mod api;
mod commands;
mod configuration;
mod containers;
mod dead_letters;
#[path = "../processes/directory.rs"]
mod directory;
mod fleet;
mod groups;
mod health;
mod installation;
mod kills;
#[path = "../processes/member.rs"]
mod member;
mod messages;
#[path = "../processes/process.rs"]
mod process;
mod queues;
mod quota;
mod ran;
#[path = "../processes/reading.rs"]
mod reading;
mod serve;
mod tour;
mod traces;
mod up;

use std::{path::PathBuf, time::Duration};

/// Until a condition must have come true. Debug builds, and a machine that runs other tests.
const PATIENCE: Duration = Duration::from_secs(60);

/// The top of the repository.
fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A file of the repository.
fn read(path: &str) -> String {
    std::fs::read_to_string(repository().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The code blocks of a Markdown file in a language.
fn code_blocks(markdown: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    let blocks = markdown.split(&fence).skip(1);
    blocks.map(|rest| rest.split("```").next().unwrap_or_default().to_owned()).collect()
}
