use std::time::Duration;

use super::*;
use crate::turn::{Stretch, Times};

fn measured(from: u64, seconds: u64, per_second: u64) -> Measured {
    Measured {
        from: Duration::from_secs(from),
        seconds: seconds as f64,
        requests: per_second * seconds,
        latency_ms: Some([1.0, 2.0, 3.0]),
        wal_bytes: 4000,
        statements: None,
        database_cpu: Duration::from_secs(1),
        client_cpu: Duration::from_secs(1),
    }
}

fn entry(point: &str, name: Name, rates: &[u64]) -> Entry {
    let turn = |rate: &u64| Turn {
        whole: measured(0, 1, *rate),
        parts: Vec::new(),
        compared: None,
        first_out: None,
    };
    Entry { turns: rates.iter().map(turn).collect(), ..Entry::new(point, name) }
}

fn both() -> [Entry; 2] {
    [entry("", Name::Leasehold, &[1000, 4000, 2000]), entry("", Name::Sqlqueue, &[500, 1000, 1500])]
}

fn over_time() -> ([Entry; 1], Times) {
    let parts = vec![measured(0, 1, 800), measured(1, 1, 400)];
    let turn = Turn {
        whole: measured(0, 2, 600),
        compared: Some([parts[0].clone(), parts[1].clone()]),
        parts,
        first_out: None,
    };
    let second = |n| Stretch { label: format!("second {n}"), time: Duration::ZERO..Duration::ZERO };
    let times = Times {
        warm_up: Duration::ZERO,
        counted: Duration::from_secs(2),
        part: Some(Duration::from_secs(1)),
        compared: Some([second(1), second(2)]),
    };
    ([Entry { turns: vec![turn], ..Entry::new("", Name::Leasehold) }], times)
}

#[test]
fn shares_are_taken_within_a_round_and_not_between_medians() {
    let entries = both();
    assert_eq!(entries[1].per_second(), 1000.0);
    assert_eq!(entries[1].share_of_leasehold(&entries), Some(0.5), "of 0.5, 0.25 and 0.75");
    assert_eq!(entries[1].share_of_leasehold(&entries[1..]), None, "there is nothing to compare with");
}

#[test]
fn a_system_is_compared_with_itself_at_the_first_point() {
    let entries = [
        entry("1", Name::Pgmq, &[100]),
        entry("1", Name::Leasehold, &[1000]),
        entry("2", Name::Pgmq, &[50]),
        entry("2", Name::Leasehold, &[100]),
    ];
    assert_eq!(entries[2].share_of_first(&entries), Some(0.5));
    assert_eq!(entries[2].share_of_leasehold(&entries), Some(0.5), "of the same point");
}

#[test]
fn columns_stand_below_their_heads() {
    let table = table(&both());
    let lines: Vec<Vec<char>> = table.lines().map(|line| line.chars().collect()).collect();
    assert_eq!(lines.len(), 3);
    let end = table.find("requests/s").unwrap() + "requests/s".len();
    assert!(lines[1..].iter().all(|line| line[end - 1].is_ascii_digit() && line[end] == ' '), "\n{table}");
    assert!(table.contains("0.50"), "\n{table}");
}

#[test]
fn what_nobody_has_is_no_column() {
    let table = table(&both());
    assert!(!["statements", "point", "first", "ms/s"].iter().any(|head| table.contains(head)), "\n{table}");
}

#[test]
fn every_turn_and_part_is_a_line_of_as_many_fields() {
    let fields = |csv: String| csv.lines().map(|line| line.split(',').count()).collect::<Vec<_>>();
    let turns = fields(csv(&both()));
    assert_eq!(turns, [turns[0]; 7]);
    assert_eq!(fields(csv(&over_time().0)), [turns[0]; 4], "the whole, and two parts");
}

#[test]
fn the_longest_bar_is_the_best_rate() {
    let svg = picture(&both());
    assert_eq!(svg.matches("<rect x=").count(), 4, "\n{svg}");
    assert!(
        svg.contains("width=\"300.0\"") && svg.contains(">2000<") && svg.contains("width=\"150.0\""),
        "\n{svg}"
    );
}

#[test]
fn what_was_measured_in_parts_is_shown_over_time() {
    let (entries, times) = over_time();
    let text = course(&entries, &times);
    assert!(text.contains("second 2 400/s") && text.contains("0.50 of the rate"), "\n{text}");
    assert!(picture(&entries).contains("<polyline"));
    let whole = Times { compared: None, ..times };
    assert_eq!(course(&both(), &whole), "");
}
