//! `leasehold quota show`: who holds what of one key, and what counts in its windows.

use std::fmt::Write;

use anyhow::Context;
use jiff::Timestamp;
use leasehold_dispatch::duration;
use leasehold_store::{QuotaAdmissions, QuotaControl, QuotaSlots, QuotaUse, Store};
use serde::Serialize;

use super::{UseLine, default_for, is_saturated, number};
use crate::{
    age::age,
    cli::Global,
    exit::NotFound,
    output::{json_line, print},
    table::{self, Align},
};

/// Windows of one key that are looked at.
const WINDOWS: i32 = 1000;

/// Show who holds what of a key, and what its windows count
///
/// A holder is one process's lease on slots: where it ends without being renewed, because the process was killed, its
/// slots are free. Admissions of a window are kept to a 64th of its length, under the time of the latest of them.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  leasehold quota show quota:userid:alice
  leasehold quota show quota:userid:alice --json | jq '.limits[].holders[].holder'")]
pub(crate) struct Args {
    /// The whole key
    key: String,
    /// As JSON, one object a line
    #[arg(long)]
    json: bool,
}

/// Everything about one key.
struct Found {
    key: String,
    now: Timestamp,
    uses: Vec<QuotaUse>,
    holders: Vec<QuotaSlots>,
    admissions: Vec<QuotaAdmissions>,
    control: Option<QuotaControl>,
}

pub(super) async fn run(global: &Global, args: &Args) -> anyhow::Result<u8> {
    let store = global.place()?.connect().await?;
    let found = Found::look(&store, &args.key).await.context("the quota cannot be looked at")?;
    if found.uses.is_empty() && found.control.is_none() {
        let problem = format!(
            "nobody uses the key \"{}\", and nothing is set for it; `leasehold quota list` lists what is",
            args.key
        );
        return Err(NotFound(problem).into());
    }
    print(&if args.json { json_line(&found.line())? } else { found.page() })
}

impl Found {
    async fn look(store: &Store, key: &str) -> Result<Self, leasehold_store::Error> {
        // Sorted by key: those of the key itself come first among those that begin with it.
        let mut uses = store.list_quotas(key, WINDOWS).await?;
        uses.retain(|found| found.key == key);
        let control = store.quota_controls(key, 1).await?.pop().filter(|control| control.key == key);
        Ok(Self {
            key: key.to_owned(),
            uses,
            holders: store.quota_holders_of(key).await?,
            admissions: store.quota_admissions_of(key).await?,
            control,
            now: store.now().await?,
        })
    }

    fn ago(&self, then: Timestamp) -> String {
        format!("{} ago", age(self.now.duration_since(then).as_secs_f64()))
    }

    fn page(&self) -> String {
        let mut page = format!("{}\n", self.key);
        if let Some(beginning) = default_for(&self.key) {
            put(&mut page, format_args!("  The default for keys that begin with {beginning}\n"));
        }
        for found in &self.uses {
            self.draw_use(&mut page, found);
        }
        let Some(QuotaControl { budget, rate, .. }) = &self.control else { return page };
        if let Some(budget) = budget {
            put(&mut page, format_args!("  Budget: {}\n", budget));
        }
        if let Some(rate) = rate {
            let (a_second, tokens) = (rate.rate, number(rate.tokens));
            let state = match rate.left {
                Some(left) => format!(
                    "for another {}; {tokens} in the bucket, of which a gate takes at most its burst",
                    age(left.as_secs_f64())
                ),
                None => format!("EXPIRED {}: nothing passes", self.ago(rate.expires_at)),
            };
            put(&mut page, format_args!("  Leased rate: {a_second} a second, {state}\n"));
        }
        page
    }

    fn draw_use(&self, page: &mut String, found: &QuotaUse) {
        let name = found.window.map_or("Slots".into(), |window| format!("Window {}", duration::show(window)));
        let used = match found.max {
            Some(max) => format!("{} of {max} used (the limit last applied)", found.used),
            None => "nobody has asked for any".into(),
        };
        let set = found.set_max.map_or("none".into(), |max| max.to_string());
        put(page, format_args!("  {name}: {used}; set in the database: {set}"));
        if let Some(ago) = found.refused_ago {
            put(page, format_args!("; refused {} ago", age(ago.as_secs_f64())));
        }
        page.push_str(if is_saturated(found) { "  SATURATED\n" } else { "\n" });
        page.push_str(&match found.window {
            None => self.holders_table(),
            Some(_) => self.admissions_table(found),
        });
    }

    fn holders_table(&self) -> String {
        let columns = [
            ("HOLDER", Align::Left),
            ("SLOTS", Align::Right),
            ("SINCE", Align::Left),
            ("LEASE ENDS", Align::Left),
        ];
        let rows: Vec<[String; 4]> = self
            .holders
            .iter()
            .map(|held| {
                let left = held.expires_at.duration_since(self.now).as_secs_f64();
                let ends = format!("in {} unless renewed", age(left));
                [held.holder.clone(), held.slots.to_string(), self.ago(held.since), ends]
            })
            .collect();
        table::draw("    ", columns, &rows)
    }

    fn admissions_table(&self, found: &QuotaUse) -> String {
        let rows: Vec<[String; 2]> = self
            .admissions_in(found)
            .map(|admitted| [admitted.count.to_string(), self.ago(admitted.admitted_at)])
            .collect();
        table::draw("    ", [("COUNT", Align::Right), ("ADMITTED", Align::Left)], &rows)
    }

    fn admissions_in(&self, found: &QuotaUse) -> impl Iterator<Item = &QuotaAdmissions> {
        let window = found.window;
        self.admissions.iter().filter(move |admitted| Some(admitted.window) == window)
    }

    fn line(&self) -> KeyLine<'_> {
        let limits = self.uses.iter().map(|found| LimitLine {
            found: UseLine::of(found),
            holders: (found.window.is_none()).then(|| self.holders.iter().map(HolderLine::of).collect()),
            admissions: (found.window.is_some())
                .then(|| self.admissions_in(found).map(AdmissionLine::of).collect()),
        });
        let control = self.control.as_ref();
        KeyLine {
            key: &self.key,
            limits: limits.collect(),
            budget: control.and_then(|control| control.budget),
            leased_rate: control.and_then(|control| control.rate.as_ref()).map(|rate| RateLine {
                rate: rate.rate,
                tokens: rate.tokens,
                expires_at: rate.expires_at,
                expires_seconds: rate.left.unwrap_or_default().as_secs_f64(),
            }),
        }
    }
}

/// A key as programs read it.
#[derive(Serialize)]
struct KeyLine<'a> {
    key: &'a str,
    limits: Vec<LimitLine<'a>>,
    budget: Option<f64>,
    leased_rate: Option<RateLine>,
}

#[derive(Serialize)]
struct LimitLine<'a> {
    #[serde(flatten)]
    found: UseLine<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    holders: Option<Vec<HolderLine<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    admissions: Option<Vec<AdmissionLine>>,
}

#[derive(Serialize)]
struct HolderLine<'a> {
    holder: &'a str,
    slots: i32,
    since: Timestamp,
    expires_at: Timestamp,
}

impl<'a> HolderLine<'a> {
    fn of(held: &'a QuotaSlots) -> Self {
        Self { holder: &held.holder, slots: held.slots, since: held.since, expires_at: held.expires_at }
    }
}

#[derive(Serialize)]
struct AdmissionLine {
    admitted_at: Timestamp,
    count: i64,
}

impl AdmissionLine {
    fn of(admitted: &QuotaAdmissions) -> Self {
        Self { admitted_at: admitted.admitted_at, count: admitted.count }
    }
}

#[derive(Serialize)]
struct RateLine {
    rate: f64,
    tokens: f64,
    expires_at: Timestamp,
    expires_seconds: f64,
}

/// Writing to a `String` does not fail.
fn put(page: &mut String, text: std::fmt::Arguments<'_>) {
    let _ = page.write_fmt(text);
}
