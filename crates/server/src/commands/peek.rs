//! `leasehold peek`: messages of a queue, as JSON lines, without touching them.

use anyhow::Context;
use leasehold_store::{MessageState, PeekedMessage, Store};

use crate::{api::PeekedJson, cli::Global, exit, output};

/// Messages looked at in one statement.
const PAGE: u64 = 1000;

/// Look at messages without touching them, as JSON lines
///
/// In sequence order, whatever their state: active (they wait for a receiver, or for their group's turn), locked (a
/// receiver has them), scheduled (they wait for their time), deferred (a receiver put them aside), dead. Nothing is
/// locked, counted or changed. A body that is text is the string `body`, any other is `body_base64`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  leasehold peek orders
  leasehold peek orders --state scheduled --max 1000 | jq -r '\"\\(.visible_at) \\(.subject)\"'
  leasehold peek orders --from 4711 --max 1")]
pub(crate) struct Args {
    /// The queue or subscription
    queue: String,
    /// From this sequence number on
    #[arg(long, value_name = "SEQ", default_value = "0", hide_default_value = true, value_parser = clap::value_parser!(i64).range(0..))]
    from: i64,
    /// Only these: active, locked, scheduled, deferred or dead
    #[arg(long, value_name = "STATE", value_parser = ["active", "locked", "scheduled", "deferred", "dead"], hide_possible_values = true)]
    state: Option<String>,
    /// Messages at most
    #[arg(long, value_name = "N", default_value = "32", value_parser = clap::value_parser!(u64).range(1..))]
    max: u64,
}

pub(crate) async fn run(global: &Global, args: &Args) -> anyhow::Result<u8> {
    let store = global.place()?.connect().await?;
    let state = args.state.as_deref().map(str::parse).transpose()?;
    let mut pages = Pages { store: &store, queue: &args.queue, from: args.from, state, left: args.max };
    while let Some(messages) = pages.next().await? {
        match output::hand_over(&output::json_lines(messages.iter().map(PeekedJson::of))?).await {
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => break,
            written => written.context("stdout cannot be written")?,
        }
    }
    Ok(exit::OK)
}

/// A queue's messages, page by page.
pub(super) struct Pages<'a> {
    pub(super) store: &'a Store,
    pub(super) queue: &'a str,
    pub(super) from: i64,
    pub(super) state: Option<MessageState>,
    /// Messages at most.
    pub(super) left: u64,
}

impl Pages<'_> {
    /// The next page; None at the end.
    pub(super) async fn next(&mut self) -> anyhow::Result<Option<Vec<PeekedMessage>>> {
        let max = u32::try_from(self.left.min(PAGE)).unwrap_or(u32::MAX);
        if max == 0 {
            return Ok(None);
        }
        let messages = self
            .store
            .peek(self.queue, self.from, self.state, max)
            .await
            .context("the queue cannot be looked at")?;
        // A page that is not full may have been cut where its bodies grew too large.
        let Some(last) = messages.last() else { return Ok(None) };
        self.from = last.seq + 1;
        self.left -= messages.len() as u64;
        Ok(Some(messages))
    }
}
