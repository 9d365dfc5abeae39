//! `leasehold quota set`: sets a limit, a budget or a rate in the database, and says what is now in force.

use std::time::Duration;

use anyhow::Context;
use clap::{ValueEnum, error::ErrorKind};
use leasehold_dispatch::duration;
use leasehold_store::{QuotaControl, Store};

use super::default_for;
use crate::{
    cli::{Global, misused, read_duration},
    exit,
    output::print,
};

/// What the database takes.
const LARGEST: i64 = 1_000_000_000_000;
const LARGEST_RATE: f64 = 1_000_000.0;
const SPAN: (Duration, Duration) = (Duration::from_millis(1), Duration::from_hours(31 * 24));

/// Set or remove a limit, a budget or a leased rate; no process has to be restarted
///
/// Prints what is now in force, and which gates use it. A limit counts from the next request on; what is under way
/// beyond it goes on to its end. With 0 nothing passes.
#[derive(Debug, clap::Args)]
#[command(
    group = clap::ArgGroup::new("change").required(true),
    after_help = after_help()
)]
pub(crate) struct Args {
    /// The whole key; quote a star
    key: String,
    /// So many at once, for gates with mode = "concurrency"
    #[arg(
        long, group = "change", value_name = "N", allow_negative_numbers = true,
        value_parser = clap::value_parser!(i64).range(0..=LARGEST)
    )]
    concurrency: Option<i64>,
    /// So many in each --window: requests for gates with mode = "rate", LLM tokens for token-rate gates
    #[arg(
        long, group = "change", value_name = "N", allow_negative_numbers = true,
        value_parser = clap::value_parser!(i64).range(0..=LARGEST)
    )]
    rate: Option<i64>,
    /// Of a rate, 1ms to 31d; a gate uses only the limit for its own window [default: 1m]
    #[arg(
        long, value_name = "DURATION", value_parser = read_span, allow_hyphen_values = true,
        conflicts_with_all = ["concurrency", "budget", "leased_rate"]
    )]
    window: Option<Duration>,
    /// How much of the room may be filled, 0 to 1, for budget gates
    #[arg(long, group = "change", value_name = "N", allow_negative_numbers = true, value_parser = read_budget)]
    budget: Option<f64>,
    /// So many a second until --ttl is over, then none, for leased-rate gates
    #[arg(
        long, group = "change", value_name = "N", allow_negative_numbers = true, value_parser = read_rate,
        requires = "ttl"
    )]
    leased_rate: Option<f64>,
    /// How long the leased rate lasts unless it is set again, 1ms to 31d
    #[arg(
        long, value_name = "DURATION", value_parser = read_span, allow_hyphen_values = true,
        requires = "leased_rate", conflicts_with_all = ["concurrency", "rate", "budget", "remove"]
    )]
    ttl: Option<Duration>,
    /// Take away what is set
    #[arg(long, group = "change", value_name = "WHAT")]
    remove: Option<What>,
}

fn after_help() -> String {
    format!(
        "\
Examples:
  leasehold quota set quota:userid:alice --concurrency 10
  leasehold quota set 'quota:userid:*' --rate 100 --window 1m
  leasehold quota set quota:userid:alice --remove rate --window 1m
  leasehold quota set gpu --budget 0.5
  leasehold quota set ingest --leased-rate 5 --ttl 60s

{}",
        super::KEYS
    )
}

/// What can be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    Concurrency,
    Rate,
    Budget,
    LeasedRate,
}

pub(super) async fn run(global: &Global, args: &Args) -> anyhow::Result<u8> {
    if args.window.is_some() && args.remove.is_some_and(|what| what != What::Rate) {
        let message = "the argument '--window' can be used only with a rate";
        misused(&["quota", "set"], ErrorKind::ArgumentConflict, message);
    }
    let key = args.key.as_str();
    if key.ends_with('*') && default_for(key).is_none() {
        eprintln!("\"{key}\" is an ordinary key: only one that ends in :* is a default");
    }
    let store = global.place()?.connect().await?;
    let window = args.window.unwrap_or(Duration::from_secs(60));
    let context = "the quota cannot be set";
    let text = match (args.concurrency, args.rate, args.budget, args.leased_rate, args.remove) {
        (Some(_), ..) | (.., Some(What::Concurrency)) => {
            store.set_quota_limit(key, args.concurrency, None).await.context(context)?;
            limit_in_force(&store, key, None).await?
        }
        (_, Some(_), ..) | (.., Some(What::Rate)) => {
            store.set_quota_limit(key, args.rate, Some(window)).await.context(context)?;
            limit_in_force(&store, key, Some(window)).await?
        }
        (_, _, Some(_), ..) | (.., Some(What::Budget)) => {
            store.set_quota_budget(key, args.budget).await.context(context)?;
            budget_in_force(&store, key).await?
        }
        (.., Some(rate), _) => {
            store.set_quota_rate(key, rate, args.ttl.unwrap_or_default()).await.context(context)?;
            rate_in_force(&store, key).await?
        }
        _ => {
            store.remove_quota_rate(key).await.context(context)?;
            rate_in_force(&store, key).await?
        }
    };
    // It is set whether or not anybody reads this.
    print(&text).or(Ok(exit::OK))
}

async fn limit_in_force(store: &Store, key: &str, window: Option<Duration>) -> anyhow::Result<String> {
    let found = store.list_quotas(key, 1000).await.context("what is in force cannot be read")?;
    let set = found.iter().find(|found| found.key == key && found.window == window);
    Ok(say_limit(key, window, set.and_then(|found| found.set_max)))
}

fn say_limit(key: &str, window: Option<Duration>, set: Option<i64>) -> String {
    let (unit, what, gates) = match window.map(duration::show) {
        None => (
            "at once".to_owned(),
            "of slots".to_owned(),
            "quota gates with mode = \"concurrency\"".to_owned(),
        ),
        Some(window) => {
            let gates = "quota gates with mode = \"rate\" and token-rate gates, all with window =";
            (format!("in {window}"), format!("in {window}"), format!("{gates} \"{window}\""))
        }
    };
    let (limit, otherwise) = match (set, default_for(key)) {
        (Some(max), None) => (format!("{max} {unit}"), None),
        (Some(max), Some(start)) => {
            (format!("{max} {unit}, the default for keys that begin with {start}"), None)
        }
        (None, None) => (
            format!("no limit {what} of its own"),
            Some("the default (a key that ends in :*), or else their own limit"),
        ),
        (None, Some(start)) => {
            (format!("no default {what} for keys that begin with {start}"), Some("their own limit"))
        }
    };
    let gates = format!("{gates} and limits = \"database\"");
    match otherwise {
        None => format!("{key}: {limit}\nused by {gates}\n"),
        Some(otherwise) => format!("{key}: {limit}\n{gates} use {otherwise}\n"),
    }
}

async fn budget_in_force(store: &Store, key: &str) -> anyhow::Result<String> {
    let budget = match control_of(store, key).await?.and_then(|control| control.budget) {
        Some(budget) => budget.to_string(),
        None => "1, as none is set".into(),
    };
    Ok(format!("{key}: budget {budget}\nused by budget gates with key = \"{key}\"\n"))
}

async fn rate_in_force(store: &Store, key: &str) -> anyhow::Result<String> {
    let rate = match control_of(store, key).await?.and_then(|control| control.rate) {
        Some(rate) => format!("{} a second until {}", rate.rate, rate.expires_at),
        None => "no leased rate, so nothing passes".into(),
    };
    Ok(format!("{key}: {rate}\nused by leased-rate gates with key = \"{key}\"\n"))
}

async fn control_of(store: &Store, key: &str) -> anyhow::Result<Option<QuotaControl>> {
    let mut found = store.quota_controls(key, 1).await.context("what is in force cannot be read")?;
    Ok(found.pop().filter(|control| control.key == key))
}

fn read_span(text: &str) -> Result<Duration, String> {
    let span = read_duration(text)?;
    if (SPAN.0..=SPAN.1).contains(&span) {
        return Ok(span);
    }
    Err("it must be from 1ms to 31d".into())
}

fn read_budget(text: &str) -> Result<f64, String> {
    let budget = read_number(text)?;
    if (0.0..=1.0).contains(&budget) { Ok(budget) } else { Err("it must be from 0 to 1".into()) }
}

fn read_rate(text: &str) -> Result<f64, String> {
    let rate = read_number(text)?;
    if (0.0..=LARGEST_RATE).contains(&rate) {
        return Ok(rate);
    }
    Err(format!("it must be from 0 to {LARGEST_RATE} a second"))
}

fn read_number(text: &str) -> Result<f64, String> {
    text.parse().map_err(|_| "it is no number".into())
}
