//! `leasehold send`: one message from the command line, or a file of them.
//!
//! What a line of a file may say is in `send/line.rs`.

mod line;

use std::{path::PathBuf, time::Duration};

use anyhow::Context;
use clap::ArgGroup;
use jiff::Timestamp;
use leasehold_store::{NewMessage, Store};
use serde::Serialize;

use crate::{
    cli::{Global, read_duration},
    exit,
    input::{
        argument_or_stdin,
        file::{self, Numbered},
        read_pair,
    },
    output,
    when::{Clock, When},
};

use line::Line;

/// Send one message to a queue or topic, or a file of them
///
/// Prints a JSON line {"seq"} for each: its sequence number; of a topic, the lowest of the copies' numbers; of a
/// repeat within the queue's deduplication window, the first one's. It is 0 where nothing was put anywhere: no
/// subscription accepted it, or its id was accepted before with another body (which, without --file or --at, is an
/// error).
///
/// A file holds a JSON object a line, with any of: body (any JSON value, sent as its text stands in the line) or
/// body_base64 (bytes), message_id, group_id, correlation_id, reply_to, subject, content_type, properties, ttl, at.
/// What the options say counts for lines that do not say it. Lines are sent in their order, 1000 to a transaction.
/// When that fails or is interrupted, stderr says up to which line everything was sent.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  leasehold send orders '{\"order\":17}' --id order-17 --subject orders.new --property tier=gold
  leasehold send orders - --content-type application/pdf < invoice.pdf
  leasehold send orders reminder --at 30m --ttl 1h
  leasehold send orders --file orders.jsonl --group customer-7 > sent.jsonl
  echo '{\"body\":{\"order\":17},\"message_id\":\"order-17\",\"at\":\"2h\"}' | leasehold send orders --file -

Units:
  Durations are written with theirs: 250ms, 30s, 5m, 7d. Times are RFC 3339: 2026-01-31T12:00:00Z.")]
#[command(group = ArgGroup::new("given").required(true))]
pub(crate) struct Args {
    /// The queue or topic
    queue: String,
    /// What is sent, verbatim; - reads it from stdin
    #[arg(group = "given")]
    body: Option<String>,
    /// A JSON object a line; - reads stdin
    #[arg(long, value_name = "FILE", group = "given", conflicts_with = "message_id")]
    file: Option<PathBuf>,
    /// The message's id, the key of deduplication; drawn when left out, and then the body is the key
    #[arg(long = "id", value_name = "ID")]
    message_id: Option<String>,
    /// Received in the order of the group, one at a time
    #[arg(long = "group", value_name = "GROUP")]
    group_id: Option<String>,
    /// For the receiver
    #[arg(long, value_name = "ID")]
    correlation_id: Option<String>,
    /// The route where the receiver's reply goes
    #[arg(long, value_name = "ROUTE")]
    reply_to: Option<String>,
    /// For the receiver, and for filters
    #[arg(long)]
    subject: Option<String>,
    /// Of the body
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,
    /// For the receiver, and for filters; may be repeated
    #[arg(long = "property", value_name = "KEY=VALUE", value_parser = read_pair)]
    properties: Vec<(String, String)>,
    /// How long it may be delivered, from when it becomes visible; capped by the queue's own
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = read_duration)]
    ttl: Option<Duration>,
    /// Not received before: from now (5m), or a time
    #[arg(long, value_name = "WHEN")]
    at: Option<When>,
}

pub(crate) async fn run(global: &Global, args: Args) -> anyhow::Result<u8> {
    let store = global.place()?.connect().await?;
    match &args.file {
        Some(path) => {
            let send = async |lines| print(&send_lines(&store, &args, lines).await?);
            file::read(path, "sent", send).await
        }
        None => run_one(&store, &args).await,
    }
}

async fn run_one(store: &Store, args: &Args) -> anyhow::Result<u8> {
    let body = argument_or_stdin(args.body.as_deref()).await?;
    let message = NewMessage { body, message_id: args.message_id.clone(), ..args.defaults() };
    let sent = match Clock::new(store).resolve(args.at).await? {
        None => store.send_one(&args.queue, &message).await.map(|seq| vec![seq]),
        Some(at) => store.schedule(&args.queue, &[message], at).await,
    };
    print(&sent.context("the message was not sent")?)?;
    Ok(exit::OK)
}

async fn send_lines(store: &Store, args: &Args, lines: Vec<Numbered<Line>>) -> anyhow::Result<Vec<i64>> {
    let mut clock = Clock::new(store);
    let defaults = args.defaults();
    let default_at = clock.resolve(args.at).await?;
    let mut messages = Vec::with_capacity(lines.len());
    let mut ats: Vec<Option<Timestamp>> = Vec::with_capacity(lines.len());
    for (number, line) in lines {
        let at = clock.resolve(line.at).await.with_context(|| format!("line {number}"))?;
        ats.push(at.or(default_at));
        messages.push(line.message(&defaults));
    }
    Ok(store.send_at(&args.queue, &messages, &ats).await?)
}

impl Args {
    /// What the options say of every message.
    fn defaults(&self) -> NewMessage {
        NewMessage {
            group_id: self.group_id.clone(),
            correlation_id: self.correlation_id.clone(),
            reply_to: self.reply_to.clone(),
            subject: self.subject.clone(),
            content_type: self.content_type.clone(),
            properties: self.properties.iter().cloned().collect(),
            ttl: self.ttl,
            ..NewMessage::default()
        }
    }
}

#[derive(Serialize)]
struct Printed {
    seq: i64,
}

fn print(seqs: &[i64]) -> anyhow::Result<()> {
    // It is sent whether or not anybody reads this, and the work goes on.
    let _ = output::print(&output::json_lines(seqs.iter().map(|&seq| Printed { seq }))?);
    Ok(())
}
