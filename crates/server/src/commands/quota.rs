//! `leasehold quota`: limits shared by every process, as an operator sees and sets them.
//!
//! One file in `quota/` for each of list, show and set.

mod list;
mod set;
mod show;

use std::time::Duration;

use clap::Subcommand;
use leasehold_dispatch::duration;
use leasehold_store::{QuotaUse, SATURATED_WITHIN};
use serde::Serialize;

use crate::cli::Global;

const KEYS: &str = "\
Keys:
  A gate makes a key of its prefix, its attribute, a colon, and what the request's metadata says:
    quota:userid:alice     of { type = \"quota\", attribute = \"userid\", … }
    tokens:userid:alice    of { type = \"token-rate\", attribute = \"userid\", … }
  A key that ends in :* is the default for what stands in place of the star:
    quota:userid:*         for every user without a limit of their own
  Gates with limits = \"database\" take the key's own limit, else the default's, else that of their
  configuration. Others take only the latter. Budget and leased-rate gates name their key themselves.";

/// See and set the limits that all processes share
#[derive(Debug, clap::Args)]
#[command(after_help = KEYS)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    List(list::Args),
    Show(show::Args),
    Set(set::Args),
}

pub(crate) async fn run(global: &Global, args: &Args) -> anyhow::Result<u8> {
    match &args.action {
        Action::List(args) => list::run(global, args).await,
        Action::Show(args) => show::run(global, args).await,
        Action::Set(args) => set::run(global, args).await,
    }
}

/// A limit as programs read it: of slots, or of admissions in a window.
#[derive(Serialize)]
struct UseLine<'a> {
    key: &'a str,
    kind: &'static str,
    window_seconds: Option<f64>,
    used: i64,
    limit: Option<i64>,
    set_limit: Option<i64>,
    refused_at: Option<jiff::Timestamp>,
    refused_seconds: Option<f64>,
    saturated: bool,
}

impl<'a> UseLine<'a> {
    fn of(found: &'a QuotaUse) -> Self {
        Self {
            key: &found.key,
            kind: if found.window.is_some() { "window" } else { "slots" },
            window_seconds: found.window.map(|window| window.as_secs_f64()),
            used: found.used,
            limit: found.max,
            set_limit: found.set_max,
            refused_at: found.refused_at,
            refused_seconds: found.refused_ago.map(|ago| ago.as_secs_f64()),
            saturated: is_saturated(found),
        }
    }
}

/// Somebody was refused just now.
fn is_saturated(found: &QuotaUse) -> bool {
    found.refused_ago.is_some_and(|ago| ago < SATURATED_WITHIN)
}

/// `slots`, or `window 1m`.
fn kind_of(window: Option<Duration>) -> String {
    window.map_or("slots".into(), |window| format!("window {}", duration::show(window)))
}

/// The key for whose values a key that ends in `:*` is the default: what they begin with.
fn default_for(key: &str) -> Option<&str> {
    key.strip_suffix('*').filter(|beginning| beginning.ends_with(':'))
}

/// At most two digits after the point, and none that say nothing.
fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_star_after_a_colon_makes_a_default() {
        assert_eq!(default_for("quota:userid:*"), Some("quota:userid:"));
        for key in ["quota:userid:alice", "quota:userid*", "*", "quota:*:x"] {
            assert_eq!(default_for(key), None, "{key}");
        }
    }

    #[test]
    fn numbers_have_as_few_digits_as_say_it() {
        for (value, wanted) in [(5.0, "5"), (0.5, "0.5"), (2.126, "2.13"), (100.0, "100"), (0.0, "0")] {
            assert_eq!(number(value), wanted);
        }
    }
}
