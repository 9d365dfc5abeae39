//! How it went over time: part by part, and one stretch against another.

use std::fmt::Write;

use super::{Entry, table::aligned};
use crate::turn::{Measured, Times};

/// Empty where nothing was measured in parts.
pub(crate) fn course(entries: &[Entry], times: &Times) -> String {
    let parts = entries.iter().flat_map(|entry| &entry.turns).map(|turn| turn.parts.len()).max().unwrap_or(0);
    if parts == 0 {
        return String::new();
    }
    let mut columns = vec![(false, vec![String::new(), "from s".to_owned()])];
    for n in 0..parts {
        let from = entries[0].median(|turn| turn.parts.get(n).map(|part| part.from.as_secs_f64()));
        columns[0].1.push(format!("{:.0}", from.unwrap_or(f64::NAN)));
    }
    for entry in entries {
        for (n, head) in ["/s", "p50 ms", "p99 ms"].into_iter().enumerate() {
            let name = if n == 0 { entry.text() } else { String::new() };
            let mut cells = vec![name, head.to_owned()];
            cells.extend((0..parts).map(|part| {
                let figure = entry.median(|turn| turn.parts.get(part).and_then(|part| figures(part)[n]));
                figure.map_or_else(|| "–".to_owned(), |figure| format!("{figure:.0}"))
            }));
            columns.push((n == 0, cells));
        }
    }
    format!("\n{}{}", aligned(&columns), stretches(entries, times))
}

fn figures(measured: &Measured) -> [Option<f64>; 3] {
    let latency = measured.latency_ms;
    [Some(measured.per_second()), latency.map(|latency| latency[0]), latency.map(|latency| latency[2])]
}

fn stretches(entries: &[Entry], times: &Times) -> String {
    let Some(stretches) = &times.compared else { return String::new() };
    let mut text = String::from("\n");
    for entry in entries {
        let _ = write!(text, "{}:", entry.text());
        for (n, stretch) in stretches.iter().enumerate() {
            let [rate, p50, p99] = [0, 1, 2].map(|figure| {
                let median = entry.median(|turn| figures(&turn.compared.as_ref()?[n])[figure]);
                median.unwrap_or(f64::NAN)
            });
            let _ = write!(text, " {} {rate:.0}/s, p50 {p50:.0} ms, p99 {p99:.0} ms;", stretch.label);
        }
        let ratio = entry.median(|turn| {
            let [early, late] = turn.compared.as_ref()?;
            Some(late.per_second() / early.per_second())
        });
        let _ = writeln!(text, " {:.2} of the rate", ratio.unwrap_or(f64::NAN));
    }
    text
}
