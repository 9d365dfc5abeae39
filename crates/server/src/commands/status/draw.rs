//! The page that `leasehold status` shows.

use std::fmt::Write;

use leasehold_store::{QueueStatus, Status};

use super::map;
use crate::monitor::COUNT_BOUND;

/// The whole page, a line end at its end.
pub(super) fn page(status: &Status) -> String {
    let mut page = String::new();
    if status.queues.is_empty() {
        page.push_str("No queue yet: one is made by the first request, or by a dispatcher.\n");
    }
    for queue in &status.queues {
        draw_queue(&mut page, queue);
        page.push('\n');
    }
    if status.routes.is_empty() {
        page.push_str("No results wait.\n");
    } else {
        page.push_str("Results waiting\n");
        let width = status.routes.iter().map(|r| r.route.chars().count()).max().unwrap_or(0);
        for route in &status.routes {
            put(&mut page, format_args!("  {:<width$}  {:>7}\n", route.route, count(route.waiting)));
        }
    }
    page
}

fn draw_queue(page: &mut String, queue: &QueueStatus) {
    put(page, format_args!("Queue {}\n", queue.queue));
    let oldest = queue.oldest_seconds.map_or(String::new(), |s| format!(", the oldest for {}", age(s)));
    put(
        page,
        format_args!(
            "  {} pending{oldest}; {} in flight; {} parked\n",
            count(queue.pending),
            count(queue.in_flight),
            count(queue.parked)
        ),
    );
    if queue.dispatchers.is_empty() {
        page.push_str(if queue.pending > 0 {
            "  NO DISPATCHER serves this queue: its requests wait until one does (leasehold serve)\n"
        } else {
            "  no dispatcher serves this queue\n"
        });
    }
    page.push_str(&map::draw(queue));
}

/// A count, which stops at the bound.
fn count(n: i64) -> String {
    if n >= COUNT_BOUND { format!("{COUNT_BOUND}+") } else { n.to_string() }
}

/// Two units at most: `850 ms`, `12 s`, `3 m 20 s`, `2 h 5 m`, `4 d 1 h`.
fn age(seconds: f64) -> String {
    if seconds < 1.0 {
        return format!("{:.0} ms", seconds.max(0.0) * 1000.0);
    }
    // A float beyond the range of u64 is an age nobody has.
    let whole = seconds as u64;
    let (days, hours, minutes) = (whole / 86_400, whole / 3600 % 24, whole / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{whole} s"),
        (0, 0, minutes) => format!("{minutes} m {} s", whole % 60),
        (0, hours, minutes) => format!("{hours} h {minutes} m"),
        (days, hours, _) => format!("{days} d {hours} h"),
    }
}

/// Writing to a `String` does not fail.
fn put(page: &mut String, text: std::fmt::Arguments<'_>) {
    let _ = page.write_fmt(text);
}

#[cfg(test)]
mod tests {
    use leasehold_store::RouteStatus;

    use super::*;

    #[test]
    fn pending_requests_without_a_dispatcher_are_said_plainly() {
        let queue = QueueStatus {
            queue: "chat".into(),
            pending: COUNT_BOUND,
            in_flight: 0,
            parked: 2,
            oldest_seconds: Some(200.0),
            dispatchers: Vec::new(),
            partitions: Vec::new(),
        };
        let routes = vec![RouteStatus { route: "replies".into(), waiting: 12 }];
        let page = page(&Status { queues: vec![queue], routes });
        assert_eq!(
            page,
            "Queue chat\n  10000+ pending, the oldest for 3 m 20 s; 0 in flight; 2 parked\n  NO DISPATCHER serves \
             this queue: its requests wait until one does (leasehold serve)\n\nResults waiting\n  replies       12\n"
        );
    }

    #[test]
    fn ages_have_two_units_at_most() {
        for (seconds, wanted) in
            [(0.85, "850 ms"), (12.7, "12 s"), (7500.0, "2 h 5 m"), (349_300.0, "4 d 1 h"), (-0.1, "0 ms")]
        {
            assert_eq!(age(seconds), wanted);
        }
    }
}
