//! A file of requests: read line by line, enqueued in batches, in its order.

use std::{io::IsTerminal, path::Path};

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use leasehold_store::{Enqueued, Error as StoreError, NewRequest, Store};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, BufReader};

use super::{Args, print};
use crate::{
    exit,
    signals::Signals,
    submission::{Clock, Submission},
};

/// A batch is enqueued at this many requests or payload bytes, in one transaction.
const BATCH_REQUESTS: usize = 1000;
const BATCH_BYTES: usize = 16 << 20;

pub(super) async fn run(store: &Store, path: &Path, args: &Args) -> anyhow::Result<u8> {
    let named = || format!("{} cannot be read", path.display());
    let (input, size): (Box<dyn AsyncBufRead + Unpin + Send>, Option<u64>) = if path.as_os_str() == "-" {
        (Box::new(BufReader::new(tokio::io::stdin())), None)
    } else {
        let file = tokio::fs::File::open(path).await.with_context(named)?;
        let metadata = file.metadata().await.with_context(named)?;
        (Box::new(BufReader::new(file)), metadata.is_file().then_some(metadata.len()))
    };
    let mut lines = Lines { input, number: 0, bytes: 0 };
    let mut progress = Progress::new(size);
    let mut signals = Signals::catch()?;
    let mut enqueued_to = 0;
    loop {
        let batch = tokio::select! {
            batch = lines.batch() => batch,
            signal = signals.next() => return Ok(interrupted(signal, enqueued_to)),
        };
        // Before the batch: its lines are read, and nothing is enqueued yet.
        let (requests, fault) = batch;
        if !requests.is_empty() {
            let (first, last) = (requests[0].0, requests[requests.len() - 1].0);
            let enqueued = match enqueue(store, args, requests).await {
                Ok(enqueued) => enqueued,
                Err(error) => {
                    progress.clear();
                    let fate = fate(first, last, &error);
                    return Err(error.context(format!("{fate}; {}", so_far(enqueued_to))));
                }
            };
            enqueued_to = last;
            // Who closed stdout does not want to read it; the work goes on.
            let _ = print(&mut std::io::BufWriter::new(std::io::stdout().lock()), &enqueued);
            progress.advance(lines.bytes, enqueued.len());
        } else if fault.is_none() {
            break;
        }
        if let Some(fault) = fault {
            progress.clear();
            bail!("{fault}; {}", so_far(enqueued_to));
        }
    }
    progress.clear();
    Ok(exit::OK)
}

async fn enqueue(
    store: &Store,
    args: &Args,
    requests: Vec<(u64, Submission)>,
) -> anyhow::Result<Vec<Enqueued>> {
    let mut clock = Clock::new(store);
    let defaults = args.defaults(&mut clock).await?;
    let mut batch = Vec::with_capacity(requests.len());
    for (number, line) in requests {
        let at = || format!("line {number}");
        batch.push(NewRequest {
            queue: defaults.queue.clone(),
            payload: Some(line.payload),
            id: line.id,
            token: line.token,
            deadline: clock.resolve(line.deadline).await.with_context(at)?.or(defaults.deadline),
            route: line.route.or_else(|| defaults.route.clone()),
            not_before: clock.resolve(line.not_before).await.with_context(at)?.or(defaults.not_before),
            headers: line.headers.unwrap_or_else(|| defaults.headers.clone()),
            metadata: line.metadata.unwrap_or_else(|| defaults.metadata.clone()),
            group_id: line.group_id.or_else(|| defaults.group_id.clone()),
        });
    }
    Ok(store.enqueue(&batch).await?)
}

/// What became of the lines of a batch that failed.
fn fate(first: u64, last: u64, error: &anyhow::Error) -> String {
    let lost = error.downcast_ref::<StoreError>().is_some_and(StoreError::outcome_unknown);
    match lost {
        true => format!("lines {first} to {last} may or may not be enqueued, for the reply is lost"),
        false => format!("lines {first} to {last} were not enqueued"),
    }
}

fn so_far(line: u64) -> String {
    match line {
        0 => "nothing was enqueued".into(),
        line => format!("everything up to line {line} was enqueued"),
    }
}

fn interrupted(signal: &str, enqueued_to: u64) -> u8 {
    eprintln!("{signal}: {}, and nothing after that", so_far(enqueued_to));
    exit::INTERRUPTED
}

struct Lines {
    input: Box<dyn AsyncBufRead + Unpin + Send>,
    number: u64,
    bytes: u64,
}

impl Lines {
    /// The next requests with their line numbers, none at the end; and what is wrong with the line after them.
    ///
    /// Dropping the future loses lines.
    async fn batch(&mut self) -> (Vec<(u64, Submission)>, Option<String>) {
        let (mut requests, mut size) = (Vec::new(), 0);
        let mut text = Vec::new();
        while requests.len() < BATCH_REQUESTS && size < BATCH_BYTES {
            text.clear();
            self.number += 1;
            let fault = |reason: String| Some(format!("line {}: {reason}", self.number));
            match self.input.read_until(b'\n', &mut text).await {
                Ok(0) => break,
                Ok(read) => self.bytes += read as u64,
                Err(error) => return (requests, fault(error.to_string())),
            }
            let line = match std::str::from_utf8(&text) {
                Ok(text) => Submission::parse(text),
                Err(_) => Err("this is no UTF-8".into()),
            };
            match line {
                Ok(None) => {}
                Ok(Some(line)) => {
                    size += line.payload.len();
                    requests.push((self.number, line));
                }
                Err(reason) => return (requests, fault(reason)),
            }
        }
        (requests, None)
    }
}

/// A bar on stderr from the second batch on, where somebody looks and stdout does not fill the same screen.
struct Progress {
    size: Option<u64>,
    wanted: bool,
    count: u64,
    bar: Option<ProgressBar>,
}

impl Progress {
    fn new(size: Option<u64>) -> Self {
        let wanted = std::io::stderr().is_terminal() && !std::io::stdout().is_terminal();
        Self { size, wanted, count: 0, bar: None }
    }

    fn advance(&mut self, bytes: u64, requests: usize) {
        self.count += requests as u64;
        if !self.wanted {
            return;
        }
        let size = self.size;
        let bar = self.bar.get_or_insert_with(|| match size {
            Some(size) => ProgressBar::new(size)
                .with_style(style("{wide_bar} {bytes}/{total_bytes}  {msg}  {eta} left")),
            None => ProgressBar::new_spinner().with_style(style("{spinner} {bytes}  {msg}")),
        });
        bar.set_position(bytes);
        bar.set_message(format!("{} requests", self.count));
    }

    fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: String) -> Lines {
        Lines { input: Box::new(std::io::Cursor::new(text.into_bytes())), number: 0, bytes: 0 }
    }

    #[tokio::test]
    async fn a_faulty_line_ends_the_batch_before_it() {
        let mut lines = lines("{\"payload\":1}\n\n{\"payload\":2}\n{\"playload\":3}\n".into());
        let (requests, fault) = lines.batch().await;
        let numbers: Vec<u64> = requests.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, [1, 3]);
        assert!(fault.unwrap().starts_with("line 4: unknown field `playload`"));
    }

    #[tokio::test]
    async fn batches_hold_a_thousand_in_order_and_the_last_line_needs_no_end() {
        let text: Vec<String> = (0..2500).map(|n| format!("{{\"payload\":{n}}}")).collect();
        let mut lines = lines(text.join("\n"));
        let mut sizes = Vec::new();
        loop {
            let (requests, fault) = lines.batch().await;
            assert_eq!(fault, None);
            if requests.is_empty() {
                break;
            }
            sizes.push((requests.len(), requests[0].1.payload.clone()));
        }
        assert_eq!(sizes, [(1000, "0".into()), (1000, "1000".into()), (500, "2000".into())]);
    }
}
