//! A file of JSON lines: read line by line, handed on in batches, in its order.

use std::{io::IsTerminal, path::Path};

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use leasehold_store::Error as StoreError;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, BufReader};

use crate::{exit, signals::Signals};

/// A batch is handed on at this many lines or bytes, to go in one transaction.
const BATCH_LINES: usize = 1000;
const BATCH_BYTES: usize = 16 << 20;

/// What a line says.
pub(crate) trait Line: Sized {
    /// Reads one line; None when it is blank.
    ///
    /// # Errors
    /// What is wrong with it, for people.
    fn parse(text: &str) -> Result<Option<Self>, String>;

    /// How much of it goes to the database, roughly.
    fn bytes(&self) -> usize;
}

/// A line and its number, from 1.
pub(crate) type Numbered<T> = (u64, T);

/// Reads the file (`-`: stdin) and hands each batch to `take`, which takes all of it or nothing. `taken` is what then
/// has become of the lines, for people: `enqueued`. When that fails or is interrupted, stderr says how far it came.
///
/// # Errors
/// The first line that is at fault, once those before it are taken; what `take` says.
pub(crate) async fn read<T: Line>(
    path: &Path,
    taken: &str,
    mut take: impl AsyncFnMut(Vec<Numbered<T>>) -> anyhow::Result<()>,
) -> anyhow::Result<u8> {
    let name = if path.as_os_str() == "-" { "stdin".into() } else { path.display().to_string() };
    let mut lines = Lines::open(path).await?;
    let mut progress = Progress::new(lines.size);
    let mut signals = Signals::catch()?;
    let mut taken_to = 0;
    loop {
        let batch = tokio::select! {
            batch = lines.batch::<T>() => batch,
            signal = signals.next() => {
                progress.clear();
                eprintln!("{signal}: {}, and nothing after that", so_far(taken, taken_to));
                return Ok(exit::INTERRUPTED);
            }
        };
        // Before the batch: its lines are read, and nothing is done with them yet.
        let (batch, fault) = batch;
        if !batch.is_empty() {
            let (first, last, count) = (batch[0].0, batch[batch.len() - 1].0, batch.len());
            if let Err(error) = take(batch).await {
                progress.clear();
                let fate = fate(taken, first, last, &error);
                return Err(error.context(format!("{fate}; {}", so_far(taken, taken_to))));
            }
            taken_to = last;
            progress.advance(lines.bytes, count);
        } else if fault.is_none() {
            break;
        }
        if let Some(fault) = fault {
            progress.clear();
            bail!("{name}: {fault}; {}", so_far(taken, taken_to));
        }
    }
    progress.clear();
    Ok(exit::OK)
}

/// What became of the lines of a batch that failed.
fn fate(taken: &str, first: u64, last: u64, error: &anyhow::Error) -> String {
    let lost = error.downcast_ref::<StoreError>().is_some_and(StoreError::outcome_unknown);
    match lost {
        true => format!("lines {first} to {last} may or may not be {taken}, for the reply is lost"),
        false => format!("lines {first} to {last} were not {taken}"),
    }
}

fn so_far(taken: &str, line: u64) -> String {
    match line {
        0 => format!("nothing was {taken}"),
        line => format!("everything up to line {line} was {taken}"),
    }
}

struct Lines {
    input: Box<dyn AsyncBufRead + Unpin + Send>,
    /// Of a file; None: not known.
    size: Option<u64>,
    number: u64,
    bytes: u64,
}

impl Lines {
    async fn open(path: &Path) -> anyhow::Result<Self> {
        let named = || format!("{} cannot be read", path.display());
        let (input, size): (Box<dyn AsyncBufRead + Unpin + Send>, Option<u64>) = if path.as_os_str() == "-" {
            (Box::new(BufReader::new(tokio::io::stdin())), None)
        } else {
            let file = tokio::fs::File::open(path).await.with_context(named)?;
            let metadata = file.metadata().await.with_context(named)?;
            (Box::new(BufReader::new(file)), metadata.is_file().then_some(metadata.len()))
        };
        Ok(Self { input, size, number: 0, bytes: 0 })
    }

    /// The next lines with their numbers, none at the end; and what is wrong with the line after them.
    ///
    /// Dropping the future loses lines.
    async fn batch<T: Line>(&mut self) -> (Vec<Numbered<T>>, Option<String>) {
        let (mut batch, mut size) = (Vec::new(), 0);
        let mut text = Vec::new();
        while batch.len() < BATCH_LINES && size < BATCH_BYTES {
            text.clear();
            self.number += 1;
            let fault = |reason: String| Some(format!("line {}: {reason}", self.number));
            match self.input.read_until(b'\n', &mut text).await {
                Ok(0) => break,
                Ok(read) => self.bytes += read as u64,
                Err(error) => return (batch, fault(error.to_string())),
            }
            let line = match std::str::from_utf8(&text) {
                Ok(text) => T::parse(text),
                Err(_) => Err("this is no UTF-8".into()),
            };
            match line {
                Ok(None) => {}
                Ok(Some(line)) => {
                    size += line.bytes();
                    batch.push((self.number, line));
                }
                Err(reason) => return (batch, fault(reason)),
            }
        }
        (batch, None)
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

    fn advance(&mut self, bytes: u64, lines: usize) {
        self.count += lines as u64;
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
        bar.set_message(format!("{} lines", self.count));
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
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, PartialEq)]
    struct Number(u64);

    impl Line for Number {
        fn parse(text: &str) -> Result<Option<Self>, String> {
            let text = text.trim();
            let number = |text: &str| text.parse().map(Self).map_err(|_| format!("{text} is no number"));
            (!text.is_empty()).then(|| number(text)).transpose()
        }

        fn bytes(&self) -> usize {
            8
        }
    }

    fn lines(text: String) -> Lines {
        Lines { input: Box::new(std::io::Cursor::new(text.into_bytes())), size: None, number: 0, bytes: 0 }
    }

    #[tokio::test]
    async fn a_faulty_line_ends_the_batch_before_it() {
        let (batch, fault) = lines("1\n\n2\nthree\n".into()).batch().await;
        assert_eq!(batch, [(1, Number(1)), (3, Number(2))]);
        assert_eq!(fault.unwrap(), "line 4: three is no number");
    }

    proptest! {
        /// No line is lost, and a faulty one is named by its number, whatever stands in the file.
        #[test]
        fn any_file_is_read_up_to_its_first_faulty_line(
            text in prop::collection::vec("[0-9]{1,3}|[0-9]{1,3}|[0-9]{1,3}\r| {0,2}|[0-9]{30}|x", 0..30), last in prop::collection::vec(any::<u8>(), 0..4),
        ) {
            let bytes = [text.join("\n").as_bytes(), b"\n", &last].concat();
            let mut lines = Lines { input: Box::new(std::io::Cursor::new(bytes.clone())), size: None, number: 0, bytes: 0 };
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let (batch, fault) = runtime.block_on(lines.batch::<Number>());
            let read = |line: &[u8]| std::str::from_utf8(line).map_err(|_| String::new()).and_then(Number::parse);
            let mut wanted = Vec::new();
            let mut first_fault = None;
            for (n, line) in (1..).zip(bytes.split(|byte| *byte == b'\n')) {
                match read(line) {
                    Ok(number) => wanted.extend(number.map(|number| (n, number))),
                    Err(_) => {
                        first_fault = Some(format!("line {n}: "));
                        break;
                    }
                }
            }
            prop_assert_eq!(batch, wanted);
            prop_assert_eq!(fault.is_some(), first_fault.is_some());
            prop_assert!(fault.unwrap_or_default().starts_with(&first_fault.unwrap_or_default()));
        }
    }

    #[tokio::test]
    async fn batches_hold_a_thousand_in_order_and_the_last_line_needs_no_end() {
        let text: Vec<String> = (0..2500).map(|n| n.to_string()).collect();
        let mut lines = lines(text.join("\n"));
        let mut sizes = Vec::new();
        loop {
            let (mut batch, fault) = lines.batch::<Number>().await;
            assert_eq!(fault, None);
            if batch.is_empty() {
                break;
            }
            sizes.push((batch.len(), batch.remove(0).1.0));
        }
        assert_eq!(sizes, [(1000, 0), (1000, 1000), (500, 2000)]);
    }
}
