//! `leasehold pop`: results of a route, as JSON lines, at least once.

use std::time::Duration;

use anyhow::Context;
use leasehold_store::{Listener, ResultRow, Store};

use crate::{
    cli::{Global, read_duration},
    database::survive,
    exit, output,
    route::{ResultJson, RouteBell},
    signals::Signals,
};

/// Without --follow and --max.
const DEFAULT_MAX: u64 = 100;
/// Results leased at a time.
const BATCH: u64 = 500;
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
        let refused = "the route cannot be listened to";
        let mut bell = RouteBell::subscribe(&self.store, &listener, self.route).await.context(refused)?;
        loop {
            // Not cancelled by a signal: a batch that is leased is written and acked first.
            self.empty().await.or_else(survive)?;
            if self.is_done() {
                return Ok(());
            }
            tokio::select! {
                () = bell.rung() => {}
                _ = signals.next() => return Ok(()),
            }
            bell.keep().await.context(refused).or_else(survive)?;
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
        match output::hand_over(&output::json_lines(rows.iter().map(ResultJson::of))?).await {
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

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use jiff::Timestamp;
    use serde_json::Value;

    use super::*;

    fn printed(body: Option<&'static [u8]>) -> Value {
        let row = ResultRow {
            seq: 7,
            id: "q-1".into(),
            token: "t".into(),
            queue: "chat".into(),
            status: Some(200),
            code: None,
            message: None,
            content_type: Some("application/json".into()),
            body: body.map(Bytes::from_static),
            attempt: 3,
            deliveries: 1,
            enqueued_at: Timestamp::UNIX_EPOCH,
            dispatched_at: None,
            finished_at: Timestamp::UNIX_EPOCH,
            expires_at: None,
            lease: None,
            leased_until: None,
        };
        serde_json::to_value(ResultJson::of(&row)).unwrap()
    }

    #[test]
    fn a_body_is_text_where_it_can_be() {
        assert_eq!(printed(Some(b"{\"a\":1}"))["body"], "{\"a\":1}");
        assert_eq!(printed(Some(b""))["body"], "");
        let bytes = printed(Some(b"\xff\x00"));
        assert_eq!((&bytes["body_base64"], bytes.get("body")), (&Value::from("/wA="), None));
        let none = printed(None);
        assert!(none.get("body").is_none() && none.get("body_base64").is_none());
    }

    #[test]
    fn times_are_rfc_3339_and_what_is_absent_is_null() {
        let row = printed(None);
        assert_eq!(row["enqueued_at"], "1970-01-01T00:00:00Z");
        assert_eq!((&row["dispatched_at"], &row["code"]), (&Value::Null, &Value::Null));
    }
}
