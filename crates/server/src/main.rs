//! The `leasehold` program: parses the command line, runs one command, and turns its end into an exit code.
//!
//! What each command does is in `commands/`, one file each. Data goes to stdout, everything else to stderr.

mod age;
mod api;
mod cli;
mod commands;
mod config;
mod connections;
mod database;
mod exit;
mod http;
mod input;
mod metrics;
mod monitor;
mod output;
mod route;
mod signals;
mod submission;
mod table;
mod telemetry;
mod when;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::Cli;

fn main() -> ExitCode {
    let cli = Cli::parse();
    // Whatever speaks TLS without naming a provider uses this one. It fails only when one is there already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            return exit::report(&anyhow::Error::new(error).context("the runtime cannot be started"));
        }
    };
    let result = runtime.block_on(commands::run(cli));
    // Reads of stdin cannot be cancelled; they are not waited for.
    runtime.shutdown_background();
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => exit::report(&error),
    }
}
