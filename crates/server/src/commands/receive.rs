//! `leasehold receive`: messages of a queue, as JSON lines, at least once.

use std::time::Duration;

use anyhow::Context;
use leasehold_dispatch::receiver::{LONGEST_WAIT, Receiver};
use leasehold_store::{Error as StoreError, Lock, Receive, ReceiveMode, ReceivedMessage, Store};
use tokio::time::sleep;

use crate::{
    cli::{Global, read_duration},
    database::survive,
    exit,
    output::{self, message::ReceivedLine},
    signals::Signals,
};

/// Without --follow and --max.
const DEFAULT_MAX: u64 = 100;
/// Messages received at a time.
const BATCH: u64 = 256;
/// How soon a queue is looked at again when the database was away.
const PAUSE: Duration = Duration::from_secs(1);
/// Locks are renewed no more often than this.
const SHORTEST_RENEWAL: Duration = Duration::from_millis(50);

/// Receive messages from a queue or subscription, as JSON lines
///
/// Lowest seq first, and of a group one after the other. At least once: a message is locked, written to stdout, and
/// only then completed. When this program is killed in between, it comes again when the lock has lapsed. A reader
/// that goes away, as `head` does, is no failure; the batch that could not be written is abandoned: it comes again
/// at once, and this counts as a delivery. While a slow reader reads, locks are renewed; a second SIGINT or SIGTERM
/// does not wait for it.
///
/// A body that is text is the string `body`, any other is `body_base64`. Where a message has a reply_to, a result
/// without a body is recorded on that route when it is completed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  leasehold receive orders                          up to 100 messages
  leasehold receive orders --max 1 --wait 1m        one, if it comes within a minute
  leasehold receive orders --follow | jq -r .body   as they come, until SIGINT")]
pub(crate) struct Args {
    /// The queue or subscription
    queue: String,
    /// Messages at most [default: 100, or with --follow no end]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    max: Option<u64>,
    /// How long to wait for the first message
    #[arg(long, value_name = "DURATION", default_value = "0s", allow_hyphen_values = true, value_parser = read_duration, conflicts_with = "follow")]
    wait: Duration,
    /// Go on waiting for more, until SIGINT or SIGTERM
    #[arg(long)]
    follow: bool,
    /// Without locks: each is gone when it is received, and lost when it cannot be written
    #[arg(long)]
    delete: bool,
}

pub(crate) async fn run(global: &Global, args: &Args) -> anyhow::Result<u8> {
    let store = global.place()?.connect().await?;
    let left = args.max.unwrap_or(if args.follow { u64::MAX } else { DEFAULT_MAX });
    let mode = if args.delete { ReceiveMode::ReceiveAndDelete } else { ReceiveMode::PeekLock };
    let mut consumer = Consumer { store, queue: &args.queue, mode, left, reader_gone: false };
    if args.follow {
        return consumer.follow().await;
    }
    consumer.empty(args.wait).await?;
    Ok(exit::OK)
}

struct Consumer<'a> {
    store: Store,
    queue: &'a str,
    mode: ReceiveMode,
    left: u64,
    reader_gone: bool,
}

impl Consumer<'_> {
    fn is_done(&self) -> bool {
        self.left == 0 || self.reader_gone
    }

    fn next(&self, wait: Duration) -> Receive {
        let max = u32::try_from(self.left.min(BATCH)).unwrap_or(u32::MAX);
        Receive { max, wait, mode: self.mode, attempt_id: None }
    }

    /// Prints what is there; waits only for the first.
    async fn empty(&mut self, wait: Duration) -> anyhow::Result<()> {
        let context = "no messages can be had";
        if !wait.is_zero() {
            let receiver = Receiver::new(&self.store, self.queue);
            let mut left = wait;
            loop {
                let step = left.min(LONGEST_WAIT);
                let messages = receiver.receive(&self.next(step)).await.context(context)?;
                left -= step;
                if !messages.is_empty() {
                    self.hand_over(&messages).await?;
                    break;
                } else if left.is_zero() {
                    return Ok(());
                }
            }
        }
        while !self.is_done() {
            let messages =
                self.store.receive(self.queue, &self.next(Duration::ZERO)).await.context(context)?;
            if messages.is_empty() {
                break;
            }
            // A batch that is not full is not the last: the next of a group comes when the one before it is done.
            self.hand_over(&messages).await?;
        }
        Ok(())
    }

    async fn follow(&mut self) -> anyhow::Result<u8> {
        let mut signals = Signals::catch()?;
        let receiver = Receiver::new(&self.store, self.queue);
        let mut stopping = false;
        while !stopping && !self.is_done() {
            let receive = self.next(LONGEST_WAIT);
            let look = receiver.receive(&receive);
            tokio::pin!(look);
            let messages = tokio::select! {
                messages = &mut look => messages,
                _ = signals.next() => {
                    stopping = true;
                    // What a look under way has locked is written and completed first.
                    tokio::join!(look, receiver.close()).0
                }
            };
            match messages {
                Ok(messages) => {
                    let handing = self.hand_over(&messages);
                    tokio::pin!(handing);
                    loop {
                        tokio::select! {
                            handed = &mut handing => break handed.or_else(survive)?,
                            signal = signals.next() => {
                                if stopping {
                                    eprintln!("{signal}: what was not read comes again when its locks have lapsed");
                                    return Ok(exit::KILLED);
                                }
                                stopping = true;
                            }
                        }
                    }
                }
                Err(StoreError::Closed(_)) => {}
                Err(error) => {
                    survive(anyhow::Error::new(error).context("no messages can be had"))?;
                    tokio::select! {
                        () = sleep(PAUSE) => {}
                        _ = signals.next() => stopping = true,
                    }
                }
            }
        }
        Ok(exit::OK)
    }

    /// Writes a batch and completes it, or gives it back.
    async fn hand_over(&mut self, messages: &[ReceivedMessage]) -> anyhow::Result<()> {
        if messages.is_empty() {
            return Ok(());
        }
        let locks: Vec<Lock<'_>> = messages.iter().filter_map(ReceivedMessage::lock).collect();
        let lines = output::json_lines(messages.iter().map(ReceivedLine::of))?;
        let lock_time = messages.iter().filter_map(|message| message.locked_for).min();
        let written = tokio::select! {
            written = output::hand_over(&lines) => written,
            never = self.keep(&locks, lock_time) => match never {},
        };
        match written {
            Ok(()) => {
                self.left -= messages.len() as u64;
                self.complete(&locks).await
            }
            Err(error) => {
                self.reader_gone = error.kind() == std::io::ErrorKind::BrokenPipe;
                if self.mode == ReceiveMode::ReceiveAndDelete {
                    eprintln!("{} messages are deleted, and were not written or not read", messages.len());
                }
                // How much of the batch was read is not known, so all of it comes again.
                let abandoned = self.abandon(&locks).await;
                if !self.reader_gone {
                    return Err(error).context("stdout cannot be written");
                }
                abandoned
            }
        }
    }

    /// Renews locks for as long as it is polled.
    async fn keep(&self, locks: &[Lock<'_>], lock_time: Option<Duration>) -> std::convert::Infallible {
        let Some(lock_time) = lock_time.filter(|_| !locks.is_empty()) else {
            return std::future::pending().await;
        };
        loop {
            sleep((lock_time / 3).max(SHORTEST_RENEWAL)).await;
            if let Err(error) = self.store.renew_batch(self.queue, locks).await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "locks cannot be renewed while the reader reads");
            }
        }
    }

    async fn complete(&self, locks: &[Lock<'_>]) -> anyhow::Result<()> {
        let completed = self.store.complete_batch(self.queue, locks).await;
        let completed =
            completed.context("messages were printed, but perhaps not completed: they come again")?;
        let lost = completed.iter().filter(|completed| !**completed).count();
        if lost > 0 {
            tracing::warn!(count = lost, "locks lapsed before the messages were written: they come again");
        }
        Ok(())
    }

    async fn abandon(&self, locks: &[Lock<'_>]) -> anyhow::Result<()> {
        for lock in locks {
            match self.store.abandon(self.queue, *lock, Duration::ZERO).await {
                // Lapsed, and so it comes again anyway.
                Ok(()) | Err(StoreError::LockLost(_)) => {}
                Err(error) => {
                    return Err(error)
                        .context("messages that were not written come again when their locks have lapsed");
                }
            }
        }
        Ok(())
    }
}
