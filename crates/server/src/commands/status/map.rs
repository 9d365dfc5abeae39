//! Who owns which of a queue's 64 partitions, as a square of letters with a legend beside it.

use std::collections::BTreeSet;

use leasehold_store::{DispatcherStatus, PartitionStatus, QueueStatus};

/// Partitions in a line of the map.
const LINE: usize = 8;
/// Letters for owners, in their order; further ones share the last sign.
const LETTERS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
const FURTHER: char = '#';

/// The map and the legend, indented; nothing where nobody ever served the queue.
pub(super) fn draw(queue: &QueueStatus) -> String {
    let owners = owners(queue);
    let mut lines = map_lines(&queue.partitions, &owners);
    let legend = legend_lines(queue, &owners);
    lines.resize(lines.len().max(legend.len()), String::new());
    let mut drawn = String::new();
    for (n, line) in lines.iter().enumerate() {
        let beside = legend.get(n).map_or("", String::as_str);
        let whole = format!("    {line:<width$}    {beside}", width = 2 * LINE - 1);
        drawn.push_str(whole.trim_end());
        drawn.push('\n');
    }
    drawn
}

/// Everybody who has a partition or serves the queue.
fn owners(queue: &QueueStatus) -> Vec<&str> {
    let partitions = queue.partitions.iter().filter_map(|p| p.owner.as_deref());
    let dispatchers = queue.dispatchers.iter().map(|d| d.owner.as_str());
    partitions.chain(dispatchers).collect::<BTreeSet<_>>().into_iter().collect()
}

fn letter(owners: &[&str], owner: &str) -> char {
    let place = owners.iter().position(|known| *known == owner);
    place.and_then(|n| LETTERS.chars().nth(n)).unwrap_or(FURTHER)
}

fn map_lines(partitions: &[PartitionStatus], owners: &[&str]) -> Vec<String> {
    let cell = |partition: &PartitionStatus| match &partition.owner {
        None => '.',
        Some(_) if partition.lapsed => '!',
        Some(owner) if partition.draining => letter(owners, owner).to_ascii_lowercase(),
        Some(owner) => letter(owners, owner),
    };
    let cells: Vec<String> = partitions.iter().map(|p| cell(p).to_string()).collect();
    cells.chunks(LINE).map(|line| line.join(" ")).collect()
}

fn legend_lines(queue: &QueueStatus, owners: &[&str]) -> Vec<String> {
    let mut lines: Vec<String> = owners.iter().map(|owner| legend_of(queue, owners, owner)).collect();
    let count = |is: fn(&PartitionStatus) -> bool| queue.partitions.iter().filter(|p| is(p)).count();
    let unowned = count(|p| p.owner.is_none());
    if unowned > 0 {
        lines.push(format!(".  {unowned} unowned"));
    }
    let lapsed = count(|p| p.owner.is_some() && p.lapsed);
    if lapsed > 0 {
        lines.push(format!("!  {lapsed} lapsed, not taken over yet"));
    }
    if queue.partitions.iter().any(|p| p.draining && !p.lapsed) {
        lines.push("lower case: draining".into());
    }
    lines
}

fn legend_of(queue: &QueueStatus, owners: &[&str], owner: &str) -> String {
    let owned = queue.partitions.iter().filter(|p| p.owner.as_deref() == Some(owner)).count();
    let state = match queue.dispatchers.iter().find(|d| d.owner == owner) {
        None => "gone",
        Some(DispatcherStatus { member: false, .. }) => "stopping",
        Some(DispatcherStatus { asleep: true, .. }) => "asleep",
        Some(_) => "awake",
    };
    format!("{}  {owner}  {owned:>2}, {state}", letter(owners, owner))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partition(n: i16, owner: Option<&str>, draining: bool, lapsed: bool) -> PartitionStatus {
        PartitionStatus { partition: n, owner: owner.map(str::to_owned), epoch: 1, draining, lapsed }
    }

    fn dispatcher(owner: &str, member: bool, asleep: bool) -> DispatcherStatus {
        DispatcherStatus { owner: owner.to_owned(), member, asleep, expires_seconds: 9.0 }
    }

    fn queue(dispatchers: Vec<DispatcherStatus>, partitions: Vec<PartitionStatus>) -> QueueStatus {
        QueueStatus {
            queue: "chat".into(),
            receivers: false,
            pending: 0,
            in_flight: 0,
            locked: 0,
            parked: 0,
            deferred: 0,
            dead: 0,
            oldest_seconds: None,
            dispatchers,
            partitions,
        }
    }

    #[test]
    fn each_state_of_a_partition_has_its_sign() {
        let partitions = (0..64)
            .map(|n| match n {
                0..30 => partition(n, Some("host-1"), false, false),
                30..32 => partition(n, Some("host-1"), true, false),
                32..60 => partition(n, Some("host-2"), false, false),
                60..62 => partition(n, Some("host-3"), false, true),
                _ => partition(n, None, false, false),
            })
            .collect();
        let queue =
            queue(vec![dispatcher("host-1", false, false), dispatcher("host-2", true, true)], partitions);
        let drawn = draw(&queue);
        let lines: Vec<&str> = drawn.lines().collect();
        assert_eq!(lines.len(), 8);
        assert_eq!(lines[0], "    A A A A A A A A    A  host-1  32, stopping");
        assert_eq!(lines[1], "    A A A A A A A A    B  host-2  28, asleep");
        assert_eq!(lines[2], "    A A A A A A A A    C  host-3   2, gone");
        assert_eq!(lines[3], "    A A A A A A a a    .  2 unowned");
        assert_eq!(lines[4], "    B B B B B B B B    !  2 lapsed, not taken over yet");
        assert_eq!(lines[5], "    B B B B B B B B    lower case: draining");
        assert_eq!(lines[7], "    B B B B ! ! . .");
    }

    #[test]
    fn a_queue_that_nobody_ever_served_has_no_map() {
        assert_eq!(draw(&queue(Vec::new(), Vec::new())), "");
    }
}
