//! A picture in SVG: the medians as bars, or over time as lines.

use std::fmt::Write;

use super::Entry;

const NAMES: usize = 150;
const BARS: usize = 300;
const FIGURES: usize = 70;
const ROW: usize = 26;
const HEAD: usize = 34;
/// Of a letter, about.
const LETTER: usize = 7;
const COLOURS: [&str; 6] = ["#2a6f97", "#bc6c25", "#606c38", "#9d4edd", "#c1121f", "#495057"];

/// Lines where the turns were measured in parts, otherwise bars.
pub(crate) fn picture(entries: &[Entry]) -> String {
    if entries.iter().flat_map(|entry| &entry.turns).any(|turn| turn.parts.len() > 1) {
        lines(entries)
    } else {
        bars(entries)
    }
}

fn bars(entries: &[Entry]) -> String {
    let longest = entries.iter().map(|entry| entry.text().chars().count()).max().unwrap_or(0);
    let names = NAMES.max(longest * LETTER + 16);
    let panel = BARS + FIGURES;
    let mut svg = canvas(names + 2 * panel + 10, HEAD + ROW * entries.len() + 10);
    for (n, entry) in entries.iter().enumerate() {
        text(&mut svg, names - 8, HEAD + n * ROW + 16, "end", &entry.text());
    }
    let busy = entries.iter().any(|entry| entry.requests() > 0);
    let medians = |figure: &dyn Fn(&Entry) -> Option<f64>| -> Vec<f64> {
        entries.iter().map(|entry| figure(entry).unwrap_or(0.0)).collect()
    };
    let cpu = |entry: &Entry| {
        entry.median_of_whole(|whole| {
            let cpu = whole.database_cpu.as_secs_f64();
            if busy { whole.each_request(cpu * 1e6) } else { Some(whole.each_second(cpu * 1e3)) }
        })
    };
    let (first, second) = match busy {
        true => ("requests per second (more is better)", "database CPU, µs per request (less is better)"),
        false => ("statements per second (less is better)", "database CPU, ms per second (less is better)"),
    };
    let rates = medians(&|entry| match busy {
        true => Some(entry.per_second()),
        false => entry.median_of_whole(|whole| Some(whole.each_second(whole.statements? as f64))),
    });
    draw(&mut svg, names, first, &rates, COLOURS[0]);
    draw(&mut svg, names + panel, second, &medians(&cpu), COLOURS[1]);
    svg + "</svg>\n"
}

fn draw(svg: &mut String, left: usize, title: &str, values: &[f64], colour: &str) {
    text(svg, left, 20, "start", title);
    let most = values.iter().copied().fold(1.0, f64::max);
    for (n, value) in values.iter().enumerate() {
        let top = HEAD + n * ROW;
        let length = value / most * BARS as f64;
        let _ = writeln!(
            svg,
            "<rect x=\"{left}\" y=\"{top}\" width=\"{length:.1}\" height=\"{}\" fill=\"{colour}\"/>",
            ROW - 6
        );
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{}\">{value:.0}</text>",
            left as f64 + length + 6.0,
            top + 16
        );
    }
}

/// The rate of each entry, part by part.
fn lines(entries: &[Entry]) -> String {
    const LEFT: usize = 70;
    const WIDTH: usize = 640;
    const HEIGHT: usize = 240;
    let mut svg = canvas(LEFT + WIDTH + 20, HEAD + HEIGHT + 30 + ROW * entries.len());
    text(&mut svg, LEFT, 20, "start", "requests per second (more is better), over seconds");
    let rates: Vec<Vec<(f64, f64)>> = entries.iter().map(rates_over_time).collect();
    let all = || rates.iter().flatten();
    let longest = all().map(|(at, _)| *at).fold(1.0, f64::max);
    let most = all().map(|(_, rate)| *rate).fold(1.0, f64::max);
    let bottom = HEAD + HEIGHT;
    let _ =
        writeln!(svg, "<path d=\"M{LEFT} {HEAD}V{bottom}H{}\" fill=\"none\" stroke=\"#999\"/>", LEFT + WIDTH);
    text(&mut svg, LEFT - 6, HEAD + 10, "end", &format!("{most:.0}"));
    text(&mut svg, LEFT - 6, bottom, "end", "0");
    text(&mut svg, LEFT + WIDTH, bottom + 18, "end", &format!("{longest:.0} s"));
    for (n, (entry, rates)) in entries.iter().zip(&rates).enumerate() {
        let colour = COLOURS[n % COLOURS.len()];
        let points: Vec<String> = rates
            .iter()
            .map(|(at, rate)| {
                let (x, y) = (at / longest * WIDTH as f64, rate / most * HEIGHT as f64);
                format!("{:.1},{:.1}", LEFT as f64 + x, bottom as f64 - y)
            })
            .collect();
        let points = points.join(" ");
        let _ = writeln!(
            svg,
            "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>"
        );
        let top = bottom + 30 + n * ROW;
        let _ = writeln!(svg, "<rect x=\"{LEFT}\" y=\"{top}\" width=\"16\" height=\"4\" fill=\"{colour}\"/>");
        text(&mut svg, LEFT + 24, top + 7, "start", &entry.text());
    }
    svg + "</svg>\n"
}

/// The middle of each part in seconds, and the median of its rates.
fn rates_over_time(entry: &Entry) -> Vec<(f64, f64)> {
    let parts = entry.turns.iter().map(|turn| turn.parts.len()).max().unwrap_or(0);
    (0..parts)
        .filter_map(|n| {
            let middle = |turn: &crate::turn::Turn| {
                turn.parts.get(n).map(|part| part.from.as_secs_f64() + part.seconds / 2.0)
            };
            let rate = entry.median(|turn| turn.parts.get(n).map(|part| part.per_second()))?;
            Some((entry.median(middle)?, rate))
        })
        .collect()
}

fn canvas(width: usize, height: usize) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    )
}

fn text(svg: &mut String, x: usize, y: usize, anchor: &str, words: &str) {
    let _ = writeln!(svg, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\">{words}</text>");
}
