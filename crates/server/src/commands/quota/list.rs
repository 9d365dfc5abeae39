//! `leasehold quota list`: every key in use, or with something set.

use anyhow::Context;
use leasehold_store::{QuotaControl, QuotaUse};
use serde::Serialize;

use super::{UseLine, is_saturated, kind_of};
use crate::{
    age::age,
    cli::Global,
    exit,
    output::{json_line, print},
    table::{self, Align},
};

/// List keys, with what is used of which limit
///
/// Sorted by key. LIMIT is the one last applied, wherever it came from; SET is the one in the database. A key is
/// SATURATED when somebody was refused within the last 10 seconds. Budgets and leased rates have a table of their own
/// below. A key that has not been used for a minute and has nothing set is forgotten.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  leasehold quota list
  leasehold quota list quota:userid: --json | jq -r 'select(.saturated).key'")]
pub(crate) struct Args {
    /// Only keys that begin so
    #[arg(default_value = "", hide_default_value = true)]
    prefix: String,
    /// Lines of each table at most
    #[arg(long, value_name = "N", default_value = "1000", value_parser = clap::value_parser!(i32).range(1..))]
    max: i32,
    /// As JSON lines
    #[arg(long)]
    json: bool,
}

/// A budget or a rate as programs read it.
#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
enum ControlLine<'a> {
    Budget { key: &'a str, budget: f64 },
    LeasedRate { key: &'a str, rate: f64, tokens: f64, expires_at: jiff::Timestamp, expires_seconds: f64 },
}

pub(super) async fn run(global: &Global, args: &Args) -> anyhow::Result<u8> {
    let store = global.place()?.connect().await?;
    let context = "the quotas cannot be looked at";
    let uses = store.list_quotas(&args.prefix, args.max).await.context(context)?;
    let controls = store.quota_controls(&args.prefix, args.max).await.context(context)?;
    if uses.is_empty() && controls.is_empty() {
        let whose = if args.prefix.is_empty() {
            String::new()
        } else {
            format!(" that begins with \"{}\"", args.prefix)
        };
        eprintln!("no key{whose} is in use, or has anything set");
        return Ok(exit::OK);
    }
    let code = print(&if args.json { lines(&uses, &controls)? } else { page(&uses, &controls) })?;
    let full = usize::try_from(args.max).unwrap_or(usize::MAX);
    if uses.len() >= full || controls.len() >= full {
        eprintln!("only the first {full} are shown: give a longer prefix, or more with --max");
    }
    Ok(code)
}

fn lines(uses: &[QuotaUse], controls: &[QuotaControl]) -> anyhow::Result<String> {
    let mut lines = String::new();
    for found in uses {
        lines.push_str(&json_line(&UseLine::of(found))?);
    }
    for QuotaControl { key, budget, rate } in controls {
        if let Some(budget) = *budget {
            lines.push_str(&json_line(&ControlLine::Budget { key, budget })?);
        }
        if let Some(rate) = rate {
            lines.push_str(&json_line(&ControlLine::LeasedRate {
                key,
                rate: rate.rate,
                tokens: rate.tokens,
                expires_at: rate.expires_at,
                expires_seconds: rate.left.unwrap_or_default().as_secs_f64(),
            })?);
        }
    }
    Ok(lines)
}

fn page(uses: &[QuotaUse], controls: &[QuotaControl]) -> String {
    let columns = [
        ("KEY", Align::Left),
        ("KIND", Align::Left),
        ("USED", Align::Right),
        ("LIMIT", Align::Right),
        ("SET", Align::Right),
        ("REFUSED", Align::Left),
        ("", Align::Left),
    ];
    let none = || "-".to_owned();
    let rows: Vec<[String; 7]> = uses
        .iter()
        .map(|found| {
            [
                found.key.clone(),
                kind_of(found.window),
                // One that nobody has asked for is only a limit, such as a default.
                found.max.map_or_else(none, |_| found.used.to_string()),
                found.max.map_or_else(none, |max| max.to_string()),
                found.set_max.map_or_else(none, |max| max.to_string()),
                found.refused_ago.map_or_else(none, |ago| format!("{} ago", age(ago.as_secs_f64()))),
                if is_saturated(found) { "SATURATED".into() } else { String::new() },
            ]
        })
        .collect();
    let mut page = table::draw("", columns, &rows);
    if !uses.is_empty() && !controls.is_empty() {
        page.push('\n');
    }
    page.push_str(&controls_table(controls));
    page
}

fn controls_table(controls: &[QuotaControl]) -> String {
    let columns = [
        ("KEY", Align::Left),
        ("BUDGET", Align::Right),
        ("LEASED RATE", Align::Right),
        ("ENDS", Align::Left),
    ];
    let none = || "-".to_owned();
    let rows: Vec<[String; 4]> = controls
        .iter()
        .map(|QuotaControl { key, budget, rate }| {
            let ends = rate.as_ref().map(|rate| match rate.left {
                Some(left) => format!("in {}", age(left.as_secs_f64())),
                None => "EXPIRED".into(),
            });
            [
                key.clone(),
                budget.map_or_else(none, |budget| budget.to_string()),
                rate.as_ref().map_or_else(none, |rate| format!("{}/s", rate.rate)),
                ends.unwrap_or_else(none),
            ]
        })
        .collect();
    table::draw("", columns, &rows)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn saturated_keys_stand_out_and_columns_are_aligned() {
        let quiet = QuotaUse {
            key: "quota:userid:*".into(),
            window: None,
            used: 0,
            max: None,
            set_max: Some(4),
            refused_at: None,
            refused_ago: None,
        };
        let busy = QuotaUse {
            key: "tokens:userid:alice".into(),
            window: Some(Duration::from_secs(60)),
            used: 99_000,
            max: Some(100_000),
            set_max: None,
            refused_at: Some(jiff::Timestamp::UNIX_EPOCH),
            refused_ago: Some(Duration::from_secs(2)),
        };
        let budget = QuotaControl { key: "spend".into(), budget: Some(0.5), rate: None };
        assert_eq!(
            page(&[quiet, busy], &[budget]),
            "KEY                  KIND        USED   LIMIT  SET  REFUSED\n\
             quota:userid:*       slots          -       -    4  -\n\
             tokens:userid:alice  window 1m  99000  100000    -  2 s ago  SATURATED\n\n\
             KEY    BUDGET  LEASED RATE  ENDS\n\
             spend     0.5            -  -\n"
        );
    }
}
