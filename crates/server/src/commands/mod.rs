//! One file per subcommand, and the one place that chooses among them.

pub(crate) mod cancel;
pub(crate) mod dlq;
pub(crate) mod enqueue;
pub(crate) mod migrate;
pub(crate) mod peek;
pub(crate) mod pop;
pub(crate) mod queue;
pub(crate) mod quota;
pub(crate) mod receive;
pub(crate) mod send;
pub(crate) mod serve;
pub(crate) mod stand_in;
pub(crate) mod status;
pub(crate) mod topic;
pub(crate) mod up;

use crate::{
    cli::{Cli, Command},
    telemetry::{LogConfig, Telemetry},
};

/// Runs the command and returns the exit code.
///
/// # Errors
/// Whatever kept it from being done; [`crate::exit`] knows the code for it.
pub(crate) async fn run(cli: Cli) -> anyhow::Result<u8> {
    let global = &cli.global;
    if let Command::Serve(args) = cli.command {
        // Its log is configured by its file, too.
        return serve::run(global, &args).await;
    }
    let telemetry = Telemetry::start(&LogConfig::choose(global, None), None)?;
    let result = match cli.command {
        Command::Up(args) => up::run(global, args).await,
        Command::Serve(_) => unreachable!("returned above"),
        Command::Migrate(args) => migrate::run(global, &args).await,
        Command::Enqueue(args) => enqueue::run(global, args).await,
        Command::Pop(args) => pop::run(global, &args).await,
        Command::Cancel(args) => cancel::run(global, &args).await,
        Command::Send(args) => send::run(global, args).await,
        Command::Receive(args) => receive::run(global, &args).await,
        Command::Peek(args) => peek::run(global, &args).await,
        Command::Dlq(args) => dlq::run(global, &args).await,
        Command::Queue(args) => queue::run(global, args).await,
        Command::Topic(args) => topic::run(global, &args).await,
        Command::Quota(args) => quota::run(global, &args).await,
        Command::Status(args) => status::run(global, &args).await,
        Command::StandIn(args) => stand_in::run(&args).await,
    };
    telemetry.flush().await;
    result
}
