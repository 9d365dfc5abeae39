use super::*;

fn entry(name: Name, peer: Peer, rates: &[f64]) -> Entry {
    let turn = |per_second: &f64| Measured {
        requests: 1000,
        per_second: *per_second,
        latency_ms: [1.0, 2.0, 3.0],
        wal_bytes: 4000.0,
        statements: None,
        database_micros: 50.0,
        client_micros: 40.0,
    };
    Entry { name, peer, turns: rates.iter().map(turn).collect() }
}

fn both() -> [Entry; 2] {
    [
        entry(Name::Leasehold, Peer::Leasehold, &[1000.0, 4000.0, 2000.0]),
        entry(Name::Sqlqueue, Peer::Sqlqueue, &[500.0, 1000.0, 1500.0]),
    ]
}

#[test]
fn shares_are_taken_within_a_round_and_not_between_medians() {
    let entries = both();
    assert_eq!(entries[1].median(|turn| turn.per_second), 1000.0);
    assert_eq!(entries[1].share(&entries), Some(0.5), "of 0.5, 0.25 and 0.75");
    assert_eq!(entries[1].share(&entries[1..]), None, "without Leasehold there is nothing to compare with");
}

#[test]
fn columns_stand_below_their_heads() {
    let table = table::aligned(&both());
    let lines: Vec<Vec<char>> = table.lines().map(|line| line.chars().collect()).collect();
    assert_eq!(lines.len(), 3);
    let end = table.find("requests/s").unwrap() + "requests/s".len();
    assert!(lines[1..].iter().all(|line| line[end - 1].is_ascii_digit() && line[end] == ' '), "\n{table}");
    assert!(table.contains("0.50"), "\n{table}");
}

#[test]
fn every_turn_is_a_line_of_as_many_fields() {
    let csv = table::csv(&both());
    let fields: Vec<usize> = csv.lines().map(|line| line.split(',').count()).collect();
    assert_eq!(fields, [fields[0]; 7], "\n{csv}");
}

#[test]
fn the_longest_bar_is_the_best_rate() {
    let svg = plot::bars(&both());
    assert_eq!(svg.matches("<rect x=").count(), 4, "\n{svg}");
    assert!(
        svg.contains("width=\"300.0\"") && svg.contains(">2000<") && svg.contains("width=\"150.0\""),
        "\n{svg}"
    );
}
