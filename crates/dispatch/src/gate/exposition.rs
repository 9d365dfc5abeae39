//! Reads numbers out of Prometheus' text format, version 0.0.4.
//!
//! Our own: `prometheus-parse` 0.2.5, the crate in use for it and of 2023, takes no colon in a metric's name, which
//! vLLM's have, ends labels at any brace and splits them at any comma, and skips what it does not understand. Here
//! only lines of the metrics asked for are read, and one of them that is malformed is an error.

use std::{borrow::Cow, collections::BTreeMap};

/// The sum of all series of `metric` that have all of `labels`. None: there is no such series.
///
/// # Errors
/// What is wrong with a line of the metric.
pub(super) fn sum(
    text: &str,
    metric: &str,
    labels: &BTreeMap<String, String>,
) -> Result<Option<f64>, String> {
    let mut sum = None;
    for (number, line) in text.lines().enumerate() {
        let Some(rest) = line.trim().strip_prefix(metric) else { continue };
        // Else it is a longer name.
        if !rest.starts_with(['{', ' ', '\t']) {
            continue;
        }
        let (has, value) =
            sample(rest).map_err(|problem| format!("line {}, {metric}: {problem}", number + 1))?;
        let wanted = |(name, value): (&String, &String)| match has.get(name.as_str()) {
            Some(given) => given == value,
            // As in a query, a label that is not there is empty.
            None => value.is_empty(),
        };
        if labels.iter().all(wanted) {
            sum = Some(sum.unwrap_or(0.0) + value);
        }
    }
    Ok(sum)
}

type Labels<'a> = BTreeMap<&'a str, Cow<'a, str>>;

/// What follows a metric's name: labels, a value, perhaps a timestamp, perhaps an exemplar.
fn sample(rest: &str) -> Result<(Labels<'_>, f64), &'static str> {
    let (labels, rest) = match rest.trim_start().strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (Labels::new(), rest),
    };
    let mut words = rest.split_whitespace();
    let value = words.next().and_then(|word| word.parse().ok()).ok_or("the value is no number")?;
    match words.next() {
        None => {}
        Some(word) if word.starts_with('#') => return Ok((labels, value)),
        Some(word) if word.parse::<f64>().is_ok() => {}
        Some(_) => return Err("the timestamp is no number"),
    }
    match words.next() {
        Some(word) if !word.starts_with('#') => Err("something follows the timestamp"),
        _ => Ok((labels, value)),
    }
}

/// What follows `{`, and what is left after `}`.
fn labels(mut rest: &str) -> Result<(Labels<'_>, &str), &'static str> {
    let mut labels = Labels::new();
    loop {
        rest = rest.trim_start();
        if let Some(rest) = rest.strip_prefix('}') {
            return Ok((labels, rest));
        }
        let (name, after) = rest.split_once('=').ok_or("a label has no value")?;
        let name = name.trim_end();
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            return Err("a label's name is malformed");
        }
        let quoted = after.trim_start().strip_prefix('"').ok_or("a label's value is not quoted")?;
        let (value, after) = quoted_value(quoted)?;
        if labels.insert(name, value).is_some() {
            return Err("a label is there twice");
        }
        rest = after.trim_start();
        rest = match rest.strip_prefix(',') {
            Some(rest) => rest,
            None if rest.starts_with('}') => rest,
            None => return Err("neither a comma nor a brace follows a label"),
        };
    }
}

/// What follows the opening quote, unescaped, and what is left after the closing one.
fn quoted_value(text: &str) -> Result<(Cow<'_, str>, &str), &'static str> {
    let mut unescaped: Option<String> = None;
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => {
                let value = unescaped.map_or(Cow::Borrowed(&text[..at]), Cow::Owned);
                return Ok((value, &text[at + 1..]));
            }
            '\\' => {
                let so_far = unescaped.get_or_insert_with(|| text[..at].to_owned());
                match chars.next() {
                    Some((_, 'n')) => so_far.push('\n'),
                    Some((_, escaped @ ('"' | '\\'))) => so_far.push(escaped),
                    _ => return Err("a label's value has an unknown escape"),
                }
            }
            c => {
                if let Some(so_far) = &mut unescaped {
                    so_far.push(c);
                }
            }
        }
    }
    Err("a label's value has no end")
}

#[cfg(test)]
mod tests;
