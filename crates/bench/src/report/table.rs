//! The figures as a table for people, and as CSV with a line for every turn and every part of one.

use std::fmt::Write;

use super::Entry;
use crate::turn::Measured;

/// A column; where no entry has anything in it, it is left out.
struct Column {
    head: &'static str,
    /// Words stand at its left.
    words: bool,
    cell: fn(&Entry, &[Entry]) -> Option<String>,
}

const fn words(head: &'static str, cell: fn(&Entry, &[Entry]) -> Option<String>) -> Column {
    Column { head, words: true, cell }
}

const fn figures(head: &'static str, cell: fn(&Entry, &[Entry]) -> Option<String>) -> Column {
    Column { head, words: false, cell }
}

const COLUMNS: [Column; 19] = [
    words("point", |entry, _| Some(entry.point.clone()).filter(|point| !point.is_empty())),
    words("system", |entry, _| Some(entry.name.text().to_owned())),
    words("version", |entry, _| Some(entry.name.version().to_owned())),
    figures("requests/s", |entry, _| (entry.requests() > 0).then(|| format!("{:.0}", entry.per_second()))),
    figures("of Leasehold", |entry, all| show(entry.share_of_leasehold(all), 2)),
    figures("of first", |entry, all| show(entry.share_of_first(all).filter(|_| entry.requests() > 0), 2)),
    figures("first out s", |entry, _| {
        show(entry.median(|turn| turn.first_out.map(|first| first.as_secs_f64())), 2)
    }),
    figures("p50 ms", |entry, _| latency(entry, 0)),
    figures("p95 ms", |entry, _| latency(entry, 1)),
    figures("p99 ms", |entry, _| latency(entry, 2)),
    figures("WAL B", |entry, _| show(each_request(entry, |whole| Some(whole.wal_bytes as f64)), 0)),
    figures("statements", |entry, _| show(each_request(entry, statements), 3)),
    figures("database µs", |entry, _| show(each_request(entry, |whole| micros(whole.database_cpu)), 0)),
    figures("client µs", |entry, _| show(each_request(entry, |whole| micros(whole.client_cpu)), 0)),
    figures("WAL B/s", |entry, _| show(idle(entry, |whole| Some(whole.wal_bytes as f64)), 0)),
    figures("statements/s", |entry, _| show(idle(entry, statements), 1)),
    figures("database ms/s", |entry, _| show(idle(entry, |whole| millis(whole.database_cpu)), 1)),
    figures("client ms/s", |entry, _| show(idle(entry, |whole| millis(whole.client_cpu)), 1)),
    words("through when", |entry, _| (entry.requests() > 0).then(|| entry.name.through().to_owned())),
];

fn show(figure: Option<f64>, digits: usize) -> Option<String> {
    figure.map(|figure| format!("{figure:.digits$}"))
}

fn latency(entry: &Entry, n: usize) -> Option<String> {
    let figure = entry.median_of_whole(|whole| whole.latency_ms.map(|latency| latency[n]))?;
    Some(format!("{figure:.*}", usize::from(figure < 100.0)))
}

fn each_request(entry: &Entry, amount: impl Fn(&Measured) -> Option<f64>) -> Option<f64> {
    entry.median_of_whole(|whole| whole.each_request(amount(whole)?))
}

/// A second, where there were no requests.
fn idle(entry: &Entry, amount: impl Fn(&Measured) -> Option<f64>) -> Option<f64> {
    entry.median_of_whole(|whole| Some(whole.each_second(amount(whole)?))).filter(|_| entry.requests() == 0)
}

fn statements(whole: &Measured) -> Option<f64> {
    whole.statements.map(|count| count as f64)
}

fn micros(time: std::time::Duration) -> Option<f64> {
    Some(time.as_secs_f64() * 1e6)
}

fn millis(time: std::time::Duration) -> Option<f64> {
    Some(time.as_secs_f64() * 1e3)
}

/// Medians over the turns. WAL, statements and processor time are for one request.
pub(crate) fn table(entries: &[Entry]) -> String {
    let mut columns = Vec::new();
    for column in &COLUMNS {
        let cells: Vec<Option<String>> = entries.iter().map(|entry| (column.cell)(entry, entries)).collect();
        if cells.iter().any(Option::is_some) {
            let cells = cells.into_iter().map(|cell| cell.unwrap_or_else(|| "–".to_owned()));
            columns.push((column.words, std::iter::once(column.head.to_owned()).chain(cells).collect()));
        }
    }
    aligned(&columns)
}

/// Columns of cells beside each other; those of words begin at the left.
pub(super) fn aligned(columns: &[(bool, Vec<String>)]) -> String {
    let lines = columns.iter().map(|(_, cells)| cells.len()).max().unwrap_or(0);
    let mut table = String::new();
    for n in 0..lines {
        let cells: Vec<String> = columns
            .iter()
            .map(|(words, cells)| {
                let width = cells.iter().map(|cell| cell.chars().count()).max().unwrap_or(0);
                let cell = &cells[n];
                if *words { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
            })
            .collect();
        table += cells.join("  ").trim_end();
        table.push('\n');
    }
    table
}

/// Each turn's figures, whole first, then its parts; what is in an amount is all of it, and an empty field was not measured.
pub(crate) fn csv(entries: &[Entry]) -> String {
    let mut csv = String::from(
        "round,point,system,version,from_s,seconds,requests,per_second,p50_ms,p95_ms,p99_ms,wal_bytes,statements,\
         database_cpu_s,client_cpu_s,first_out_s,through_when\n",
    );
    let rounds = entries.iter().map(|entry| entry.turns.len()).max().unwrap_or(0);
    for round in 0..rounds {
        for entry in entries {
            let Some(turn) = entry.turns.get(round) else { continue };
            let first_out = turn.first_out.map(|first| format!("{:.3}", first.as_secs_f64()));
            for (n, span) in std::iter::once(&turn.whole).chain(&turn.parts).enumerate() {
                let latency = span.latency_ms.map(|[p50, p95, p99]| format!("{p50:.3},{p95:.3},{p99:.3}"));
                let _ = writeln!(
                    csv,
                    "{},\"{}\",{},{},{:.3},{:.3},{},{:.1},{},{},{},{:.3},{:.3},{},{}",
                    round + 1,
                    entry.point,
                    entry.name.text(),
                    entry.name.version(),
                    span.from.as_secs_f64(),
                    span.seconds,
                    span.requests,
                    span.per_second(),
                    latency.as_deref().unwrap_or(",,"),
                    span.wal_bytes,
                    span.statements.map(|count| count.to_string()).unwrap_or_default(),
                    span.database_cpu.as_secs_f64(),
                    span.client_cpu.as_secs_f64(),
                    first_out.as_deref().filter(|_| n == 0).unwrap_or_default(),
                    entry.name.through(),
                );
            }
        }
    }
    csv
}
