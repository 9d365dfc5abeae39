//! The command line: global options, the list of commands, and the help that describes them.

use std::time::Duration;

use clap::{CommandFactory, Parser, Subcommand, error::ErrorKind};

use crate::{
    commands::{
        cancel, dlq, enqueue, migrate, peek, pop, queue, quota, receive, send, serve, stand_in, status,
        topic, up,
    },
    database::{DatabaseUrl, Place},
    exit,
    telemetry::LogFormat,
};

const EXAMPLES: &str = "\
Examples:
  leasehold up                                   a whole system to try, with a Postgres of its own
  leasehold migrate                              make the schema, or bring it up to date
  leasehold serve --config leasehold.toml        dispatch; start it as often as you like
  leasehold enqueue chat '{\"model\":\"m\"}' --route replies --deadline 5m
  leasehold enqueue chat --file requests.jsonl   one request a line
  leasehold pop replies --follow                 results as JSON lines, as they come
  leasehold queue create orders                  a queue whose messages programs receive and settle
  leasehold send orders '{\"order\":17}'           one message; --file sends many
  leasehold receive orders --follow              messages as JSON lines, completed once written
  leasehold dlq list orders                      what could not be done, and why
  leasehold topic subscribe events audit         a queue that gets what is sent to a topic
  leasehold status --watch                       queues, dispatchers, partitions, routes
  leasehold quota list                           who has how much of which limit

Units:
  Durations are written with theirs: 250ms, 30s, 5m, 1h 30m, 7d. Times are RFC 3339:
  2026-01-31T12:00:00Z. Sizes are bytes. All times are judged by the database's clock.
";

/// Dispatches expensive requests (LLM calls, above all) out of Postgres.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, max_term_width = 110, after_help = help_end())]
pub(crate) struct Cli {
    /// Options of every command.
    #[command(flatten)]
    pub(crate) global: Global,
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options of every command.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// The database, as postgres://user@host:5432/name [env: DATABASE_URL]
    #[arg(long, global = true, value_name = "URL", value_parser = clap::builder::ValueParser::new(read_url))]
    pub(crate) database_url: Option<DatabaseUrl>,
    /// The installation's schema [default: leasehold]
    #[arg(long, global = true, value_name = "NAME", env = "LEASEHOLD_SCHEMA")]
    pub(crate) schema: Option<String>,
    /// How the log on stderr is written [default: text]
    #[arg(long, global = true, value_name = "FORMAT", env = "LEASEHOLD_LOG_FORMAT")]
    pub(crate) log_format: Option<LogFormat>,
    /// What is logged: a level, or a filter such as leasehold_dispatch=debug,warn [default: info]
    #[arg(long = "log", global = true, value_name = "FILTER", env = "LEASEHOLD_LOG")]
    pub(crate) log_filter: Option<String>,
}

impl Global {
    /// The database and schema that the options or the environment name.
    ///
    /// # Errors
    /// When none is named.
    pub(crate) fn place(&self) -> Result<Place, exit::Refused> {
        Place::find(self.database_url.as_ref(), self.schema.as_deref())
    }
}

/// One file each in `commands/`, where each is described.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Up(up::Args),
    Serve(serve::Args),
    Migrate(migrate::Args),
    Enqueue(enqueue::Args),
    Pop(pop::Args),
    Cancel(cancel::Args),
    Send(send::Args),
    Receive(receive::Args),
    Peek(peek::Args),
    Dlq(dlq::Args),
    Queue(queue::Args),
    Topic(topic::Args),
    Quota(quota::Args),
    Status(status::Args),
    StandIn(stand_in::Args),
}

/// For options that take a duration.
pub(crate) fn read_duration(text: &str) -> Result<Duration, String> {
    leasehold_dispatch::duration::parse(text).map_err(|error| error.to_string())
}

/// Ends the program as clap does for a command line that it does not understand, with the usage of the subcommand.
pub(crate) fn misused(subcommand: &[&str], kind: ErrorKind, message: &str) -> ! {
    let mut root = Cli::command();
    root.build();
    let mut command = root.clone();
    for name in subcommand {
        command = command.find_subcommand(name).cloned().unwrap_or(command);
    }
    command.error(kind, message).exit()
}

#[expect(clippy::unnecessary_wraps, reason = "clap wants a parser that can fail")]
fn read_url(text: &str) -> Result<DatabaseUrl, String> {
    // Whether it can be used is said where it is opened, without showing it.
    Ok(DatabaseUrl(text.to_owned()))
}

fn help_end() -> String {
    format!("{EXAMPLES}\n{}", exit::HELP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn global_options_may_follow_the_command() {
        let cli = Cli::parse_from(["leasehold", "status", "--database-url", "postgres://x:hunter2@y/z"]);
        assert_eq!(cli.global.database_url, Some(DatabaseUrl("postgres://x:hunter2@y/z".into())));
        assert!(!format!("{cli:?}").contains("hunter2"));
    }
}
