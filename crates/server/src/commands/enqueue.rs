//! `leasehold enqueue`: one request from the command line, or a file of them.
//!
//! What a line of a file may say is in `submission.rs`.

use std::{collections::BTreeMap, path::PathBuf};

use anyhow::Context;
use clap::ArgGroup;
use leasehold_store::{Enqueued, NewRequest, Store};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::{
    cli::Global,
    exit,
    input::{
        argument_or_stdin,
        file::{self, Numbered},
        read_pair,
    },
    output,
    submission::Submission,
    when::{Clock, When},
};

/// Enqueue one request, or a file of them
///
/// Prints a JSON line {"id", "token", "seq"} for each. A file holds a JSON object a line, with any of: payload (any JSON value, sent as its text stands in the line) or
/// payload_base64 (bytes), id, token, deadline, route, not_before, headers, metadata, group_id. What the options say counts for
/// lines that do not say it. Lines are enqueued in their order, 1000 to a transaction. When that fails or is
/// interrupted, stderr says up to which line everything was enqueued.
///
/// A request whose id and token were submitted before with the same content is the same submission, and is not
/// enqueued again: give both, and a file can simply be repeated.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  leasehold enqueue chat '{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}' --route replies --deadline 5m
  leasehold enqueue chat - < request.json
  leasehold enqueue chat --file requests.jsonl --route replies > enqueued.jsonl
  echo '{\"payload\":{\"model\":\"m\"},\"id\":\"q-1\",\"deadline\":\"2h\"}' | leasehold enqueue chat --file -")]
#[command(group = ArgGroup::new("given").required(true))]
pub(crate) struct Args {
    /// The queue; made at first use
    queue: String,
    /// What is sent, verbatim; - reads it from stdin
    #[arg(group = "given")]
    payload: Option<String>,
    /// A JSON object a line; - reads stdin
    #[arg(long, value_name = "FILE", group = "given", conflicts_with_all = ["id", "token"])]
    file: Option<PathBuf>,
    /// Names the request; drawn when left out
    #[arg(long)]
    id: Option<String>,
    /// Names this submission of the id; drawn when left out
    #[arg(long)]
    token: Option<String>,
    /// When the outcome is of no more use: from now (5m), or a time
    #[arg(long, value_name = "WHEN")]
    deadline: Option<When>,
    /// Where the result goes
    #[arg(long)]
    route: Option<String>,
    /// Not dispatched before: from now (5m), or a time
    #[arg(long, value_name = "WHEN")]
    not_before: Option<When>,
    /// Sent with the request; may be repeated
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = read_pair)]
    headers: Vec<(String, String)>,
    /// Handed out in the order of the group, one at a time
    #[arg(long = "group", value_name = "GROUP")]
    group_id: Option<String>,
    /// Read by gates and the dispatcher; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = read_pair)]
    metadata: Vec<(String, String)>,
}

pub(crate) async fn run(global: &Global, args: Args) -> anyhow::Result<u8> {
    let store = global.place()?.connect().await?;
    match &args.file {
        Some(path) => {
            let enqueue = async |lines| print(&enqueue_lines(&store, &args, lines).await?);
            file::read(path, "enqueued", enqueue).await
        }
        None => run_one(&store, args).await,
    }
}

async fn run_one(store: &Store, args: Args) -> anyhow::Result<u8> {
    let payload = argument_or_stdin(args.payload.as_deref()).await?;
    let mut clock = Clock::new(store);
    let request = NewRequest {
        payload: Some(payload),
        id: args.id.clone(),
        token: args.token.clone(),
        ..args.defaults(&mut clock).await?
    };
    print(&store.enqueue(&[request]).await.context("the request was not enqueued")?)?;
    Ok(exit::OK)
}

async fn enqueue_lines(
    store: &Store,
    args: &Args,
    lines: Vec<Numbered<Submission>>,
) -> anyhow::Result<Vec<Enqueued>> {
    let mut clock = Clock::new(store);
    let defaults = args.defaults(&mut clock).await?;
    let mut batch = Vec::with_capacity(lines.len());
    for (number, line) in lines {
        let at = || format!("line {number}");
        batch.push(NewRequest {
            queue: defaults.queue.clone(),
            payload: Some(line.payload),
            id: line.id,
            token: line.token,
            deadline: clock.resolve(line.deadline).await.with_context(at)?.or(defaults.deadline),
            route: line.route.or_else(|| defaults.route.clone()),
            not_before: clock.resolve(line.not_before).await.with_context(at)?.or(defaults.not_before),
            headers: line.headers.unwrap_or_else(|| defaults.headers.clone()),
            metadata: line.metadata.unwrap_or_else(|| defaults.metadata.clone()),
            group_id: line.group_id.or_else(|| defaults.group_id.clone()),
        });
    }
    Ok(store.enqueue(&batch).await?)
}

impl Args {
    /// What the options say of every request.
    async fn defaults(&self, clock: &mut Clock<'_>) -> anyhow::Result<NewRequest> {
        Ok(NewRequest {
            queue: self.queue.clone(),
            deadline: clock.resolve(self.deadline).await?,
            route: self.route.clone(),
            not_before: clock.resolve(self.not_before).await?,
            group_id: self.group_id.clone(),
            headers: self.headers.iter().cloned().collect::<BTreeMap<_, _>>(),
            metadata: self
                .metadata
                .iter()
                .map(|(k, v)| (k.clone(), Value::from(v.clone())))
                .collect::<Map<_, _>>(),
            ..NewRequest::default()
        })
    }
}

#[derive(Serialize)]
struct Printed<'a> {
    id: &'a str,
    token: &'a str,
    seq: i64,
}

fn print(enqueued: &[Enqueued]) -> anyhow::Result<()> {
    let printed = enqueued.iter().map(|Enqueued { id, token, seq }| Printed { id, token, seq: *seq });
    // It is enqueued whether or not anybody reads this, and the work goes on.
    let _ = output::print(&output::json_lines(printed)?);
    Ok(())
}
