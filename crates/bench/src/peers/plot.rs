//! The medians as bars, in SVG: how many a second, and what one costs the database.

use std::fmt::Write;

use super::Entry;

const NAMES: usize = 150;
const BARS: usize = 300;
const FIGURES: usize = 70;
const ROW: usize = 26;
const HEAD: usize = 34;

pub(super) fn bars(entries: &[Entry]) -> String {
    let panel = BARS + FIGURES;
    let (width, height) = (NAMES + 2 * panel + 10, HEAD + ROW * entries.len() + 10);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (n, entry) in entries.iter().enumerate() {
        text(&mut svg, NAMES - 8, HEAD + n * ROW + 16, "end", entry.name.text());
    }
    let rates: Vec<f64> = entries.iter().map(|entry| entry.median(|turn| turn.per_second)).collect();
    let costs: Vec<f64> = entries.iter().map(|entry| entry.median(|turn| turn.database_micros)).collect();
    draw(&mut svg, NAMES, "requests per second (more is better)", &rates, "#2a6f97");
    draw(&mut svg, NAMES + panel, "database CPU, µs per request (less is better)", &costs, "#bc6c25");
    svg + "</svg>\n"
}

fn draw(svg: &mut String, left: usize, title: &str, values: &[f64], colour: &str) {
    text(svg, left, 20, "start", title);
    let most = values.iter().copied().fold(1.0, f64::max);
    for (n, value) in values.iter().enumerate() {
        let top = HEAD + n * ROW;
        #[expect(clippy::cast_precision_loss, reason = "pixels")]
        let length = value / most * BARS as f64;
        let _ = writeln!(
            svg,
            "<rect x=\"{left}\" y=\"{top}\" width=\"{length:.1}\" height=\"{}\" fill=\"{colour}\"/>",
            ROW - 6
        );
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{}\">{value:.0}</text>",
            f64::from(u32::try_from(left).unwrap_or(0)) + length + 6.0,
            top + 16
        );
    }
}

fn text(svg: &mut String, x: usize, y: usize, anchor: &str, words: &str) {
    let _ = writeln!(svg, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\">{words}</text>");
}
