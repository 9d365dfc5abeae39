//! What `/metrics` says: the recorder, the name, kind and meaning of each metric, and the buckets of histograms.
//!
//! Most are counted where the work is done, in the store and the dispatcher; the gauges that one look at the
//! database gives are set by [`crate::monitor`]. Labels are bounded: queues, pools, gates, codes, statements;
//! never an id, a tenant or a route.

use std::time::Duration;

use anyhow::Context;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

/// Requests of a queue, by state; bounded.
pub(crate) const REQUESTS: &str = "leasehold_requests";
/// Dead letters of a queue; bounded.
pub(crate) const DEAD_LETTERS: &str = "leasehold_dead_letters";
/// Age of a queue's oldest pending request.
pub(crate) const OLDEST_PENDING: &str = "leasehold_oldest_pending_seconds";
/// Partitions that this process owns.
pub(crate) const PARTITIONS_OWNED: &str = "leasehold_partitions_owned";
/// Live dispatchers of a queue.
pub(crate) const DISPATCHERS: &str = "leasehold_dispatchers";
/// Results that wait, over all routes; bounded.
pub(crate) const RESULTS_WAITING: &str = "leasehold_results_waiting";
/// Quota keys refused of late; bounded.
pub(crate) const QUOTA_SATURATED_KEYS: &str = "leasehold_quota_saturated_keys";
/// Whether the last look at the database succeeded.
pub(crate) const DATABASE_UP: &str = "leasehold_database_up";

/// From a statement in cache to a model that thinks for an hour, in seconds.
const BUCKETS: [f64; 20] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0,
    300.0, 900.0, 3600.0,
];

/// How often histograms are tidied when nobody scrapes.
const UPKEEP: Duration = Duration::from_secs(5);

enum Kind {
    Counter,
    Gauge,
    Histogram,
}
use Kind::{Counter, Gauge, Histogram};

const METRICS: [(Kind, &str, &str); 34] = [
    (Counter, "leasehold_dispatches_total", "Requests handed out by polls, by queue."),
    (Counter, "leasehold_outcomes_total", "Outcomes settled, by queue and code (OK or an error code)."),
    (Counter, "leasehold_retries_total", "Requests parked to be tried again, by queue."),
    (Counter, "leasehold_sheds_total", "Calls that the backend turned away (429, 503), by pool."),
    (Counter, "leasehold_llm_tokens_total", "LLM tokens that backends reported, by queue and direction."),
    (Counter, "leasehold_takeovers_total", "Partitions acquired, each with a new epoch, by queue."),
    (
        Counter,
        "leasehold_fenced_total",
        "Settlements of dispatches that were not the live one, by queue and verb.",
    ),
    (Counter, "leasehold_handled_total", "Messages that workers handled, by queue and outcome."),
    (Counter, "leasehold_lost_total", "Calls given up because their partition was lost, by queue."),
    (
        Counter,
        "leasehold_orphans_total",
        "Outcomes that could not be written; their requests are handed back, by queue.",
    ),
    (Counter, "leasehold_redeliveries_total", "Requests of former dispatches made pending again, by queue."),
    (Counter, "leasehold_gate_decisions_total", "Decisions of gates, by gate and decision."),
    (
        Counter,
        "leasehold_quota_holders_retired_total",
        "Leases on quota slots given up, by reason: idle and closed are ordinary; lapsed, late grant, lost grant and \
         lost release are not.",
    ),
    (
        Counter,
        "leasehold_token_estimates_total",
        "LLM tokens at token-rate gates, by kind: reserved by estimates, spent beyond them (under), given back (over).",
    ),
    (Counter, "leasehold_statement_errors_total", "Statements that failed, by statement."),
    (
        Counter,
        "leasehold_statement_repeats_total",
        "Statements repeated after a rollback by the server, by statement.",
    ),
    (
        Counter,
        "leasehold_missed_arrivals_total",
        "Pending requests that an owner had forgotten and an audit found: a server crashed behind its pooler, or a fault.",
    ),
    (Counter, "leasehold_vacuums_total", "Vacuums begun because many rows were dead, by table."),
    (Counter, "leasehold_listener_reconnects_total", "Times that the listening connection was opened again."),
    (Histogram, "leasehold_backend_duration_seconds", "Time of a call to the backend, by pool."),
    (Histogram, "leasehold_queued_duration_seconds", "Time from enqueue to dispatch, by queue."),
    (
        Histogram,
        "leasehold_end_to_end_duration_seconds",
        "Time from enqueue to the recorded result, by queue.",
    ),
    (
        Histogram,
        "leasehold_statement_duration_seconds",
        "Time of a statement, waiting for a connection included.",
    ),
    (Gauge, "leasehold_in_flight", "Requests that this process has in flight, by queue."),
    (Gauge, "leasehold_budget", "The gate's budget at the last poll, 0 to 1, by queue."),
    (
        Gauge,
        REQUESTS,
        "Requests by queue and state (pending, in_flight, locked, parked, deferred), counted up to 10,000 each.",
    ),
    (Gauge, DEAD_LETTERS, "Dead letters by queue, counted up to 10,000 each."),
    (
        Gauge,
        OLDEST_PENDING,
        "Age of the oldest pending request (of those counted), by queue; 0 when there is none.",
    ),
    (Gauge, PARTITIONS_OWNED, "Partitions that this process owns, by queue."),
    (Gauge, DISPATCHERS, "Live dispatchers of a queue, in whatever process, by queue."),
    (Gauge, RESULTS_WAITING, "Results that wait to be popped, over all routes, counted up to 10,000 each."),
    (
        Gauge,
        QUOTA_SATURATED_KEYS,
        "Quota keys refused within 10 s, counted up to 1,000 of slots and 1,000 of windows.",
    ),
    (
        Gauge,
        DATABASE_UP,
        "Whether the last look at the database succeeded: 1 or 0. At 0, the gauges above are old.",
    ),
    (Gauge, "leasehold_build_info", "Always 1; the label is the version."),
];

/// Makes the process's recorder, with every metric described, and keeps it tidy. To be called once.
///
/// # Errors
/// When there is one already.
pub(crate) fn install() -> anyhow::Result<PrometheusHandle> {
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_duration_seconds".to_owned()), &BUCKETS)
        .and_then(PrometheusBuilder::install_recorder)
        .context("metrics cannot be recorded")?;
    for (kind, name, meaning) in METRICS {
        match kind {
            Counter => metrics::describe_counter!(name, meaning),
            Gauge => metrics::describe_gauge!(name, meaning),
            Histogram => metrics::describe_histogram!(name, metrics::Unit::Seconds, meaning),
        }
    }
    metrics::gauge!("leasehold_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    let tidy = handle.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(UPKEEP).await;
            tidy.run_upkeep();
        }
    });
    Ok(handle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_prometheus() {
        for (kind, name, meaning) in METRICS {
            assert!(name.starts_with("leasehold_") && meaning.ends_with('.'), "{name}");
            assert_eq!(name.ends_with("_total"), matches!(kind, Counter), "{name}");
            assert_eq!(name.ends_with("_duration_seconds"), matches!(kind, Histogram), "{name}");
        }
    }

    #[test]
    fn the_manual_has_every_metric_and_no_other() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
        let manual = std::fs::read_to_string(path).unwrap();
        let found: Vec<&str> = manual.lines().filter(|line| line.starts_with("| `leasehold_")).collect();
        let expected = METRICS.map(|(kind, name, meaning)| {
            let kind = match kind {
                Counter => "counter",
                Gauge => "gauge",
                Histogram => "histogram",
            };
            format!("| `{name}` | {kind} | {meaning} |")
        });
        assert_eq!(found, expected);
    }
}
