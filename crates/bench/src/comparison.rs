//! Turns of systems at points: what every comparison is told, and how it goes. In each round each point has a turn of each
//! system, one after the other, so that what disturbs the machine disturbs them alike.

use std::{fs, path::PathBuf, time::Duration};

use anyhow::{Context, ensure};
use clap::Args;

use crate::{
    meter::Content,
    report::{self, Entry},
    site, statements,
    system::{Name, Peer, Work},
    turn::{self, Stretch, Times},
};

/// What every comparison is told.
#[derive(Args, Clone)]
pub(crate) struct Comparison {
    /// Who takes part, instead of the usual ones; what cannot be fetched is left out.
    #[arg(long, value_enum, value_delimiter = ',')]
    systems: Vec<Name>,
    /// Turns of each system at each point; medians of them are shown.
    #[arg(long, visible_alias = "runs", default_value_t = 3)]
    rounds: usize,
    /// Seconds of a turn that do not count, instead of the usual ones.
    #[arg(long)]
    warm_up: Option<u64>,
    /// Seconds of a turn that count, instead of the usual ones.
    #[arg(long)]
    seconds: Option<u64>,
    /// Also show each so many seconds by themselves.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    every: Option<u64>,
    /// Bytes of a payload, which is JSON (2048 usually); each is measured in turn.
    #[arg(long, value_delimiter = ',')]
    pub(crate) payload: Vec<usize>,
    /// Bytes of an answer, which is the beginning of its request's payload; as a rule, all of it.
    #[arg(long)]
    answer: Option<usize>,
    /// Payloads of words, which compress as chats do, instead of random letters.
    #[arg(long)]
    text: bool,
    /// Requests of one poll, one ack and one pop (256 usually); each is measured in turn.
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) batch: Vec<u32>,
    /// Workers that poll and ack (4 usually); each is measured in turn.
    #[arg(long, visible_alias = "dispatchers", value_delimiter = ',')]
    pub(crate) workers: Vec<usize>,
    /// Producers (8 usually).
    #[arg(long)]
    producers: Option<usize>,
    /// Requests of one enqueue, instead of the usual ones.
    #[arg(long)]
    rows: Option<usize>,
    /// Milliseconds for which a client waits that found less than a full batch, if nobody rings for it.
    #[arg(long, default_value_t = 5)]
    pause: u64,
    /// Also count the statements that clients send, and show which took most (slower: needs `pg_stat_statements`).
    #[arg(long)]
    pub(crate) statements: bool,
    /// A setting of the server for everybody, as `name=value`; repeatable.
    #[arg(long = "set", value_parser = read_setting, value_name = "NAME=VALUE")]
    settings: Vec<(String, String)>,
    /// A file for every turn's figures.
    #[arg(long)]
    csv: Option<PathBuf>,
    /// A file for a picture of the medians.
    #[arg(long)]
    svg: Option<PathBuf>,
}

/// A turn that lasts so long is to show how things go on.
const LONG: Duration = Duration::from_secs(30);

fn read_setting(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected name=value")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// What is usual for a workload.
pub(crate) struct Usual<'a> {
    pub(crate) systems: &'a [Name],
    pub(crate) warm_up: u64,
    pub(crate) seconds: u64,
    /// Seconds of a part, by how many there are in all; none: the whole only.
    pub(crate) every: fn(u64) -> Option<u64>,
    /// Of what was measured in parts: so many seconds, after so many, are compared with the last of as many.
    pub(crate) compared: (u64, u64),
}

/// What is done at one point; where there are several, the label tells them apart.
#[derive(Clone)]
pub(crate) struct Point {
    pub(crate) label: String,
    pub(crate) work: Work,
}

impl Usual<'_> {
    /// Of a workload that is measured as a whole.
    pub(crate) const WHOLE: Usual<'static> =
        Usual { systems: &[], warm_up: 2, seconds: 12, every: |_| None, compared: (0, 30) };
}

impl Comparison {
    /// Measures and shows what is to be done at each of `points`.
    pub(crate) async fn run(&self, title: &str, usual: &Usual<'_>, points: &[Point]) -> anyhow::Result<()> {
        let (points, times) = (self.grid(points), self.times(usual));
        ensure!(!points.is_empty() && self.rounds > 0, "there is nothing to do");
        let peers = self.peers(usual.systems, &points).await?;
        let mut entries: Vec<Entry> = points
            .iter()
            .flat_map(|point| peers.iter().map(|(name, _)| Entry::new(&point.label, *name)))
            .collect();
        let set = self.settings.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let settings: Vec<(&str, &str)> =
            set.chain(site::statements(self.statements).iter().copied()).collect();
        let mut cluster = site::start(&settings).await?;
        let control = site::connect(&cluster.url("postgres")).await?;
        if times.counted >= LONG {
            site::age(&control).await?;
        }
        for round in 1..=self.rounds {
            let turns = points.iter().flat_map(|point| peers.iter().map(move |(_, peer)| (point, peer)));
            for (entry, (point, peer)) in entries.iter_mut().zip(turns) {
                eprintln!("round {round} of {}: {}", self.rounds, entry.text());
                let turn = turn::measure(&cluster, "turn", peer, &point.work, &times, self.statements)
                    .await
                    .with_context(|| format!("{} failed", entry.text()))?;
                if self.statements {
                    statements::show(&cluster.url("turn"), turn.whole.requests).await?;
                }
                entry.turns.push(turn);
                // Its vacuums shall not disturb the next turn.
                control.execute("DROP DATABASE turn WITH (FORCE)", &[]).await?;
            }
        }
        cluster.stop().await?;
        self.show(title, &points, &entries, &times)
    }

    fn show(&self, title: &str, points: &[Point], entries: &[Entry], times: &Times) -> anyhow::Result<()> {
        println!(
            "{title}: {} B payload{}, batch {}, {} workers, {} producers of {} rows; medians of {}, of {} s each after {} s{}",
            listed(points, |work| work.payload),
            if self.text { " of words" } else { "" },
            listed(points, |work| work.batch as usize),
            listed(points, |work| work.workers),
            listed(points, |work| work.producers),
            listed(points, |work| work.rows),
            self.rounds,
            times.counted.as_secs(),
            times.warm_up.as_secs(),
            self.settings.iter().map(|(name, value)| format!(", {name}={value}")).collect::<String>()
        );
        print!("{}{}", report::table(entries), report::course(entries, times));
        if let Some(file) = &self.csv {
            fs::write(file, report::csv(entries)).with_context(|| format!("writing {}", file.display()))?;
        }
        if let Some(file) = &self.svg {
            fs::write(file, report::picture(entries))
                .with_context(|| format!("writing {}", file.display()))?;
        }
        Ok(())
    }

    /// Each point with each size that was asked for.
    fn grid(&self, points: &[Point]) -> Vec<Point> {
        let mut grid = Vec::new();
        for Point { label, work } in points {
            let payloads = some(&self.payload, work.payload);
            let (workers, batches) = (some(&self.workers, work.workers), some(&self.batch, work.batch));
            let sizes = payloads.iter().flat_map(|payload| {
                let (workers, batches) = (&workers, &batches);
                workers
                    .iter()
                    .flat_map(move |workers| batches.iter().map(move |batch| (*payload, *workers, *batch)))
            });
            for (payload, workers_now, batch) in sizes {
                let mut words = vec![label.clone()];
                words.extend((payloads.len() > 1).then(|| format!("{payload} B")));
                words.extend((workers.len() > 1).then(|| format!("{workers_now} workers")));
                words.extend((batches.len() > 1).then(|| format!("batch {batch}")));
                words.retain(|word| !word.is_empty());
                let work = Work {
                    payload,
                    answer: self.answer.unwrap_or(usize::MAX),
                    content: if self.text { Content::Words } else { Content::Letters },
                    workers: workers_now,
                    batch,
                    producers: self.producers.unwrap_or(work.producers),
                    rows: self.rows.unwrap_or(work.rows),
                    pause: Duration::from_millis(self.pause),
                    ..work.clone()
                };
                grid.push(Point { label: words.join(", "), work });
            }
        }
        grid
    }

    fn times(&self, usual: &Usual<'_>) -> Times {
        let counted = self.seconds.unwrap_or(usual.seconds).max(1);
        let part = self.every.or((usual.every)(counted)).map(|part| part.min(counted));
        let compared = part.filter(|part| counted >= 2 * part).map(|part| {
            let (after, length) = usual.compared;
            let fits = after + 2 * length <= counted && after % part == 0 && length % part == 0;
            let (after, length) = if fits { (after, length) } else { (0, counted / part / 2 * part) };
            // Whole parts only: what is over at the end belongs to neither.
            let end = counted / part * part;
            let stretch = |label: String, from: u64| Stretch {
                label,
                time: Duration::from_secs(from)..Duration::from_secs(from + length),
            };
            let early = match after {
                0 => format!("first {length} s"),
                after => format!("{after} to {} s", after + length),
            };
            [stretch(early, after), stretch(format!("last {length} s"), end - length)]
        });
        Times {
            warm_up: Duration::from_secs(self.warm_up.unwrap_or(usual.warm_up)),
            counted: Duration::from_secs(counted),
            part: part.map(Duration::from_secs),
            compared,
        }
    }

    async fn peers(&self, usual: &[Name], points: &[Point]) -> anyhow::Result<Vec<(Name, Peer)>> {
        let systems = if self.systems.is_empty() { usual } else { &self.systems };
        let mut peers = Vec::new();
        for name in systems {
            let able = points.iter().all(|point| name.can(&point.work));
            ensure!(able, "{} cannot take part in this", name.text());
            match name.fetch().await {
                Ok(peer) => peers.push((*name, peer)),
                Err(error) => eprintln!("{} {} is left out: {error:#}", name.text(), name.version()),
            }
        }
        ensure!(!peers.is_empty(), "nobody is left to measure");
        Ok(peers)
    }
}

/// What was asked for, or what is usual.
fn some<T: Copy>(asked: &[T], usual: T) -> Vec<T> {
    if asked.is_empty() { vec![usual] } else { asked.to_vec() }
}

/// The sizes of all points, each once.
fn listed(points: &[Point], size: impl Fn(&Work) -> usize) -> String {
    let mut sizes: Vec<usize> = points.iter().map(|point| size(&point.work)).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes.iter().map(usize::to_string).collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Told {
        #[command(flatten)]
        comparison: Comparison,
    }

    fn told(words: &str) -> Comparison {
        Told::parse_from(format!("bench {words}").split_whitespace()).comparison
    }

    fn compared(words: &str, usual: &Usual<'_>) -> Option<[(String, u64, u64); 2]> {
        let stretches = told(words).times(usual).compared?;
        Some(stretches.map(|Stretch { label, time }| (label, time.start.as_secs(), time.end.as_secs())))
    }

    #[test]
    fn every_size_meets_every_other_and_what_differs_is_named() {
        let point = |label: &str| Point { label: label.into(), work: Work::default() };
        let grid = told("--payload 512,2048 --batch 32,256 --workers 1").grid(&[point("a"), point("b")]);
        let labels: Vec<&str> = grid.iter().map(|point| point.label.as_str()).collect();
        assert_eq!(labels[..3], ["a, 512 B, batch 32", "a, 512 B, batch 256", "a, 2048 B, batch 32"]);
        assert!(labels.len() == 8 && grid[7].work.payload == 2048 && grid[7].work.workers == 1);
        assert_eq!(told("").grid(&[point("")])[0].label, "");
    }

    #[test]
    fn the_second_minute_is_compared_with_the_last_where_there_is_one() {
        let minutes = Usual { every: |_| Some(60), compared: (60, 60), ..Usual::WHOLE };
        let compared = |words| compared(words, &minutes);
        assert_eq!(
            compared("--seconds 600"),
            Some([("60 to 120 s".into(), 60, 120), ("last 60 s".into(), 540, 600)])
        );
        assert_eq!(
            compared("--seconds 7 --every 2"),
            Some([("first 2 s".into(), 0, 2), ("last 2 s".into(), 4, 6)]),
            "halves, of whole parts"
        );
        assert_eq!(compared("--seconds 60"), None, "one part");
    }
}
