//! `leasehold pop`: results of a route, as JSON lines, at least once.

use std::time::Duration;

use anyhow::Context;
use jiff::Timestamp;
use leasehold_store::{Bell, Listener, ResultRow, Store};
use serde::Serialize;
use tokio::{
    sync::mpsc,
    time::{Instant, interval_at},
};

use crate::{
    cli::{Global, read_duration},
    database::survive,
    exit,
    output::{self, Body},
    signals::Signals,
};

/// Without --follow and --max.
const DEFAULT_MAX: u64 = 100;
/// Results leased at a time.
const BATCH: u64 = 500;
/// How often a route is looked at although nothing rang.
const FALLBACK_POLL: Duration = Duration::from_secs(5);
/// How often the route is asked again to ring: it does so for a minute.
const LISTEN_AGAIN: Duration = Duration::from_secs(30);

/// Take results off a route, as JSON lines
///
/// Lowest seq first. At least once: a result is leased, written to stdout, and only then removed. When this program or its reader ends
/// in between, it comes again after --lease. A reader that goes away, as `head` does, is no failure; what was not written is
/// given back at once.
///
/// A body that is text is the string `body`, any other is `body_base64`, and no body is neither. `code` is null on
/// success, else an error code such as DEADLINE_EXCEEDED.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  leasehold pop replies                          up to 100 results
  leasehold pop replies --follow | jq -r .body   as they come, until SIGINT
  leasehold pop replies --follow --max 1         wait for one")]
pub(crate) struct Args {
    /// The route
    route: String,
    /// Results at most [default: 100, or with --follow no end]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max: Option<u64>,
    /// Go on waiting for more, until SIGINT or SIGTERM
    #[arg(long)]
    follow: bool,
    /// How long a result is hidden from others until it is written; 1ms to 12h
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = read_duration)]
    lease: Duration,
}

pub(crate) async fn run(global: &Global, args: &Args) -> anyhow::Result<u8> {
    let store = global.place()?.connect().await?;
    let left = args.max.unwrap_or(if args.follow { u64::MAX } else { DEFAULT_MAX });
    let mut poller = Poller { store, route: &args.route, lease: args.lease, left, reader_gone: false };
    if args.follow {
        poller.follow().await?;
    } else {
        poller.empty().await?;
    }
    Ok(exit::OK)
}

struct Poller<'a> {
    store: Store,
    route: &'a str,
    lease: Duration,
    left: u64,
    reader_gone: bool,
}

impl Poller<'_> {
    fn is_done(&self) -> bool {
        self.left == 0 || self.reader_gone
    }

    async fn follow(&mut self) -> anyhow::Result<()> {
        let mut signals = Signals::catch()?;
        let listener = Listener::start(&self.store);
        let channel =
            self.store.listen_results(self.route).await.context("the route cannot be listened to")?;
        let mut bells = listener.subscribe(&channel).await?;
        let mut asked = Instant::now();
        let mut fallback = interval_at(Instant::now() + FALLBACK_POLL, FALLBACK_POLL);
        loop {
            // Not cancelled by a signal: a batch that is leased is written and acked first.
            self.empty().await.or_else(survive)?;
            if self.is_done() {
                return Ok(());
            }
            tokio::select! {
                () = rung(&mut bells) => {}
                _ = fallback.tick() => {}
                _ = signals.next() => return Ok(()),
            }
            if asked.elapsed() >= LISTEN_AGAIN {
                let again = self.store.listen_results(self.route).await;
                again.map(|_| ()).context("the route cannot be listened to").or_else(survive)?;
                asked = Instant::now();
            }
        }
    }

    /// Prints what is there.
    async fn empty(&mut self) -> anyhow::Result<()> {
        while !self.is_done() {
            let limit = self.left.min(BATCH);
            let rows = self
                .store
                .lease_results(self.route, i32::try_from(limit)?, self.lease)
                .await
                .context("no results can be had")?;
            self.hand_over(&rows).await?;
            self.left -= rows.len() as u64;
            if (rows.len() as u64) < limit {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Writes a batch and removes it, or gives it back.
    async fn hand_over(&mut self, rows: &[ResultRow]) -> anyhow::Result<()> {
        let Some(lease) = rows.first().and_then(|row| row.lease) else { return Ok(()) };
        let seqs: Vec<i64> = rows.iter().map(|row| row.seq).collect();
        match output::hand_over(&output::json_lines(rows.iter().map(Printed::of))?).await {
            Ok(()) => {
                let acked = self.store.ack_results(self.route, lease, &seqs).await;
                let acked = acked.context("results were printed, but not removed: they come again")?;
                if acked.len() < seqs.len() {
                    tracing::warn!(
                        count = seqs.len() - acked.len(),
                        "leases lapsed before the results were written: they come again"
                    );
                }
                Ok(())
            }
            Err(error) => {
                // How much of the batch was read is not known, so all of it comes again.
                let released = self.store.release_results(self.route, lease, &seqs).await;
                self.reader_gone = error.kind() == std::io::ErrorKind::BrokenPipe;
                if !self.reader_gone {
                    return Err(error).context("stdout cannot be written");
                }
                released
                    .map(|_| ())
                    .context("results that were not written come again when their lease has lapsed")
            }
        }
    }
}

/// Waits for a bell, and takes all that wait.
async fn rung(bells: &mut mpsc::Receiver<Bell>) {
    if bells.recv().await.is_none() {
        // The listener is gone with its runtime; the fallback remains.
        std::future::pending::<()>().await;
    }
    while bells.try_recv().is_ok() {}
}

#[derive(Serialize)]
struct Printed<'a> {
    seq: i64,
    id: &'a str,
    token: &'a str,
    queue: &'a str,
    status: Option<i32>,
    code: Option<&'a str>,
    message: Option<&'a str>,
    content_type: Option<&'a str>,
    #[serde(flatten)]
    body: Body<'a>,
    attempt: i64,
    deliveries: i32,
    enqueued_at: Timestamp,
    dispatched_at: Option<Timestamp>,
    finished_at: Timestamp,
    expires_at: Option<Timestamp>,
}

impl<'a> Printed<'a> {
    fn of(row: &'a ResultRow) -> Self {
        Self {
            seq: row.seq,
            id: &row.id,
            token: &row.token,
            queue: &row.queue,
            status: row.status,
            code: row.code.as_deref(),
            message: row.message.as_deref(),
            content_type: row.content_type.as_deref(),
            body: Body::of(row.body.as_deref()),
            attempt: row.attempt,
            deliveries: row.deliveries,
            enqueued_at: row.enqueued_at,
            dispatched_at: row.dispatched_at,
            finished_at: row.finished_at,
            expires_at: row.expires_at,
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde_json::Value;

    use super::*;

    fn printed(body: Option<&'static str>) -> Value {
        let row = ResultRow {
            seq: 7,
            id: "q-1".into(),
            token: "t".into(),
            queue: "chat".into(),
            status: Some(200),
            code: None,
            message: None,
            content_type: Some("application/json".into()),
            body: body.map(Bytes::from),
            attempt: 3,
            deliveries: 1,
            enqueued_at: Timestamp::UNIX_EPOCH,
            dispatched_at: None,
            finished_at: Timestamp::UNIX_EPOCH,
            expires_at: None,
            lease: None,
            leased_until: None,
        };
        serde_json::to_value(Printed::of(&row)).unwrap()
    }

    #[test]
    fn times_are_rfc_3339_and_what_is_absent_is_null() {
        let row = printed(Some("{}"));
        assert_eq!(row["body"], "{}");
        assert_eq!(row["enqueued_at"], "1970-01-01T00:00:00Z");
        assert_eq!((&row["dispatched_at"], &row["code"]), (&Value::Null, &Value::Null));
    }
}
