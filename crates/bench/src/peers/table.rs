//! The figures as a table for people, and as CSV with a line for every turn.

use std::fmt::Write;

use super::Entry;

const HEAD: [&str; 12] = [
    "system",
    "version",
    "requests/s",
    "of Leasehold",
    "p50 ms",
    "p95 ms",
    "p99 ms",
    "WAL B",
    "statements",
    "database µs",
    "client µs",
    "through when",
];

/// Medians over the turns. WAL, statements and processor time are for one request.
pub(super) fn aligned(entries: &[Entry]) -> String {
    let mut lines = vec![HEAD.map(str::to_owned)];
    lines.extend(entries.iter().map(|entry| line(entry, entries)));
    let widths: Vec<usize> = (0..HEAD.len())
        .map(|column| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0))
        .collect();
    let mut table = String::new();
    for line in &lines {
        let cells: Vec<String> = line
            .iter()
            .zip(&widths)
            .enumerate()
            .map(|(column, (cell, width))| {
                let left = column < 2 || column == HEAD.len() - 1;
                if left { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
            })
            .collect();
        table += cells.join("  ").trim_end();
        table.push('\n');
    }
    table
}

fn line(entry: &Entry, entries: &[Entry]) -> [String; HEAD.len()] {
    let optional = |value: Option<f64>, digits: usize| {
        value.map_or_else(|| "–".to_owned(), |value| format!("{value:.digits$}"))
    };
    let counted = entry.turns.iter().any(|turn| turn.statements.is_some());
    let statements = counted.then(|| entry.median(|turn| turn.statements.unwrap_or(f64::NAN)));
    let latency = |n: usize| format!("{:.0}", entry.median(|turn| turn.latency_ms[n]));
    [
        entry.name.text().to_owned(),
        entry.name.version().to_owned(),
        format!("{:.0}", entry.median(|turn| turn.per_second)),
        optional(entry.share(entries), 2),
        latency(0),
        latency(1),
        latency(2),
        format!("{:.0}", entry.median(|turn| turn.wal_bytes)),
        optional(statements, 3),
        format!("{:.0}", entry.median(|turn| turn.database_micros)),
        format!("{:.0}", entry.median(|turn| turn.client_micros)),
        entry.name.through().to_owned(),
    ]
}

/// Every turn's figures; an empty field was not counted.
pub(super) fn csv(entries: &[Entry]) -> String {
    let mut csv = String::from(
        "round,system,version,requests,per_second,p50_ms,p95_ms,p99_ms,wal_bytes,statements,database_micros,\
         client_micros,through_when\n",
    );
    let rounds = entries.iter().map(|entry| entry.turns.len()).max().unwrap_or(0);
    for round in 0..rounds {
        for entry in entries {
            let Some(turn) = entry.turns.get(round) else { continue };
            let [p50, p95, p99] = turn.latency_ms;
            let _ = writeln!(
                csv,
                "{},{},{},{},{:.1},{p50:.3},{p95:.3},{p99:.3},{:.1},{},{:.2},{:.2},{}",
                round + 1,
                entry.name.text(),
                entry.name.version(),
                turn.requests,
                turn.per_second,
                turn.wal_bytes,
                turn.statements.map(|count| format!("{count:.4}")).unwrap_or_default(),
                turn.database_micros,
                turn.client_micros,
                entry.name.through(),
            );
        }
    }
    csv
}
