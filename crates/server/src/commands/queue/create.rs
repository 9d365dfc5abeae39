//! `leasehold queue create`: makes a queue for messages, or gives one its whole configuration.

use anyhow::Context;
use clap::error::ErrorKind;
use serde_json::{Map, Value};

use super::settings::{count, count_or_unbounded, span, span_or_off, span_or_unbounded, switch};
use crate::{
    cli::{Global, misused},
    exit,
};

/// Make a queue for messages, or set all of one
///
/// A queue that is there keeps what is in it and gets exactly these settings: what is left out gets its default.
/// To change single ones, use leasehold queue configure.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  leasehold queue create orders
  leasehold queue create orders --ordering group_fifo --lock-time 1m --max-deliveries 5
  leasehold queue create orders --dedup-window 10m --ttl 7d --dead-letter-max-age unbounded
  leasehold queue create orders --config '{\"lock_time\": \"1m\", \"max_deliveries\": 5}'

Units:
  Durations are written with theirs: 250ms, 30s, 5m, 7d. Sizes are bytes.")]
pub(crate) struct Args {
    /// The queue's name, 1 to 255 bytes
    name: String,
    /// standard; group_fifo: every message needs a group; strict_fifo: the whole queue is one group [default: standard]
    #[arg(long, value_name = "ORDERING", value_parser = ["standard", "group_fifo", "strict_fifo"], hide_possible_values = true)]
    ordering: Option<String>,
    /// How long a received message is locked, 1ms to 12h [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = span)]
    lock_time: Option<Value>,
    /// A message received so often without success is dead, from 1 [default: 10]
    #[arg(long, value_name = "N", value_parser = count)]
    max_deliveries: Option<Value>,
    /// How long messages may be delivered; caps their own [default: without end]
    #[arg(long, value_name = "DURATION", value_parser = span)]
    ttl: Option<Value>,
    /// How long a message id (or else the body) is known, so that a repeat is not sent, or off [default: off]
    #[arg(long, value_name = "DURATION", value_parser = span_or_off)]
    dedup_window: Option<Value>,
    /// Larger bodies are refused, in bytes [default: 1048576]
    #[arg(long, value_name = "BYTES", value_parser = count)]
    max_payload_bytes: Option<Value>,
    /// Keep what is dead: on or off [default: on]
    #[arg(long, value_name = "ON|OFF", value_parser = switch)]
    dead_letters: Option<Value>,
    /// Keep also what expired: on or off [default: on]
    #[arg(long, value_name = "ON|OFF", value_parser = switch)]
    dead_letter_on_expiry: Option<Value>,
    /// Dead letters are dropped after so long, or unbounded [default: 14d]
    #[arg(long, value_name = "DURATION", value_parser = span_or_unbounded)]
    dead_letter_max_age: Option<Value>,
    /// More dead letters than this are dropped, oldest first, or unbounded [default: 1000000]
    #[arg(long, value_name = "N", value_parser = count_or_unbounded)]
    dead_letter_max_count: Option<Value>,
    /// As well by the bytes of their bodies, or unbounded [default: unbounded]
    #[arg(long, value_name = "BYTES", value_parser = count_or_unbounded)]
    dead_letter_max_bytes: Option<Value>,
    /// Messages can be received, besides being dispatched: on or off [default: on]
    #[arg(long, value_name = "ON|OFF", value_parser = switch)]
    receivers: Option<Value>,
    /// Overrides where results go
    #[arg(long, value_name = "ROUTE")]
    route: Option<String>,
    /// How long results are kept [default: until they are popped]
    #[arg(long, value_name = "DURATION", value_parser = span)]
    result_ttl: Option<Value>,
    /// For what is enqueued without a deadline [default: none]
    #[arg(long, value_name = "DURATION", value_parser = span)]
    default_deadline: Option<Value>,
    /// Settings as a JSON object; an option of the same name counts more
    #[arg(long, value_name = "JSON", value_parser = object)]
    config: Option<Value>,
}

pub(super) async fn run(global: &Global, args: Args) -> anyhow::Result<u8> {
    let name = args.name.clone();
    let config = args.settings();
    if config.get("kind").is_some_and(|kind| kind != "queue") {
        let message = "kind: a topic is made by leasehold topic create";
        misused(&["queue", "create"], ErrorKind::ValueValidation, message);
    }
    let store = global.place()?.connect().await?;
    store
        .create_queue(&name, &Value::Object(config))
        .await
        .with_context(|| format!("queue \"{name}\" cannot be made"))?;
    eprintln!("queue \"{name}\" is ready");
    Ok(exit::OK)
}

impl Args {
    fn settings(self) -> Map<String, Value> {
        let mut config = match self.config {
            Some(Value::Object(config)) => config,
            _ => Map::new(),
        };
        let options = [
            ("ordering", self.ordering.map(Value::from)),
            ("lock_time", self.lock_time),
            ("max_deliveries", self.max_deliveries),
            ("ttl", self.ttl),
            ("dedup_window", self.dedup_window),
            ("max_payload_bytes", self.max_payload_bytes),
            ("dead_letters", self.dead_letters),
            ("dead_letter_on_expiry", self.dead_letter_on_expiry),
            ("dead_letter_max_age", self.dead_letter_max_age),
            ("dead_letter_max_count", self.dead_letter_max_count),
            ("dead_letter_max_bytes", self.dead_letter_max_bytes),
            ("receivers", self.receivers),
            ("route", self.route.map(Value::from)),
            ("result_ttl", self.result_ttl),
            ("default_deadline", self.default_deadline),
        ];
        config.extend(options.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
        config
    }
}

fn object(text: &str) -> Result<Value, String> {
    match serde_json::from_str(text) {
        Ok(object @ Value::Object(_)) => Ok(object),
        Ok(_) => Err("a JSON object is wanted".into()),
        Err(error) => Err(error.to_string()),
    }
}
