//! The page that `leasehold status` shows.

use std::{fmt::Write, time::Duration};

use leasehold_dispatch::duration;
use leasehold_store::{QueueStatus, SATURATED_WITHIN, SaturatedKey, Status};

use super::map;
use crate::{age::age, monitor::COUNT_BOUND};

/// From here on there may be more saturated keys than were counted.
const SATURATED_BOUND: usize = 1000;

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
    draw_saturated(&mut page, status);
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
            "  {} pending{oldest}; {} in flight; {} parked",
            count(queue.pending),
            count(queue.in_flight),
            count(queue.parked)
        ),
    );
    for (state, n) in [("locked", queue.locked), ("deferred", queue.deferred), ("dead", queue.dead)] {
        if n > 0 {
            put(page, format_args!("; {} {state}", count(n)));
        }
    }
    page.push('\n');
    if queue.dispatchers.is_empty() {
        page.push_str(match (queue.receivers, queue.pending) {
            (true, _) => "  its messages are received; no dispatcher serves this queue\n",
            (false, 1..) => {
                "  NO DISPATCHER serves this queue: its requests wait until one does (leasehold serve)\n"
            }
            (false, _) => "  no dispatcher serves this queue\n",
        });
    }
    page.push_str(&map::draw(queue));
}

/// Nothing where no quota refuses anybody.
fn draw_saturated(page: &mut String, status: &Status) {
    let (shown, all) = (status.saturated.len(), status.saturated_keys);
    if shown == 0 {
        return;
    }
    let of = match usize::try_from(all) {
        Ok(all) if all > shown => {
            format!(" (the worst {shown} of {all}{})", if all >= SATURATED_BOUND { " or more" } else { "" })
        }
        _ => String::new(),
    };
    put(
        page,
        format_args!("Saturated quota keys, refused within {}{of}\n", age(SATURATED_WITHIN.as_secs_f64())),
    );
    let key_width = status.saturated.iter().map(|k| k.key.chars().count()).max().unwrap_or(0);
    for key in &status.saturated {
        put(page, format_args!("  {:<key_width$}  {}\n", key.key, used_of(key)));
    }
    page.push('\n');
}

fn used_of(key: &SaturatedKey) -> String {
    let limit = key.limit.map_or("-".into(), |limit| limit.to_string());
    let unit = match key.window_seconds.map(Duration::try_from_secs_f64) {
        Some(Ok(window)) => format!("in {}", duration::show(window)),
        _ => "slots".into(),
    };
    format!("{:>7} of {limit} {unit}", key.used)
}

/// A count, which stops at the bound.
fn count(n: i64) -> String {
    if n >= COUNT_BOUND { format!("{COUNT_BOUND}+") } else { n.to_string() }
}

/// Writing to a `String` does not fail.
fn put(page: &mut String, text: std::fmt::Arguments<'_>) {
    let _ = page.write_fmt(text);
}

#[cfg(test)]
mod tests {
    use leasehold_store::RouteStatus;

    use super::*;

    fn without_quotas(queues: Vec<QueueStatus>, routes: Vec<RouteStatus>) -> Status {
        Status { queues, routes, saturated: Vec::new(), saturated_keys: 0 }
    }

    fn empty(name: &str) -> QueueStatus {
        QueueStatus {
            queue: name.into(),
            receivers: false,
            pending: 0,
            in_flight: 0,
            locked: 0,
            parked: 0,
            deferred: 0,
            dead: 0,
            oldest_seconds: None,
            dispatchers: Vec::new(),
            partitions: Vec::new(),
        }
    }

    #[test]
    fn what_receivers_did_is_shown_where_there_is_any() {
        let queue =
            QueueStatus { receivers: true, pending: 1, locked: 3, dead: COUNT_BOUND, ..empty("orders") };
        let page = page(&without_quotas(vec![queue], Vec::new()));
        assert!(
            page.starts_with(
                "Queue orders\n  1 pending; 0 in flight; 0 parked; 3 locked; 10000+ dead\n  its messages are \
                 received; no dispatcher serves this queue\n\n"
            ),
            "{page}"
        );
    }

    #[test]
    fn pending_requests_without_a_dispatcher_are_said_plainly() {
        let queue =
            QueueStatus { pending: COUNT_BOUND, parked: 2, oldest_seconds: Some(200.0), ..empty("chat") };
        let routes = vec![RouteStatus { route: "replies".into(), waiting: 12 }];
        let page = page(&without_quotas(vec![queue], routes));
        assert_eq!(
            page,
            "Queue chat\n  10000+ pending, the oldest for 3 m 20 s; 0 in flight; 2 parked\n  NO DISPATCHER serves \
             this queue: its requests wait until one does (leasehold serve)\n\nResults waiting\n  replies       12\n"
        );
    }

    #[test]
    fn saturated_keys_are_shown_with_what_they_use_of_what() {
        let key = |key: &str, window_seconds, used, limit| SaturatedKey {
            key: key.into(),
            window_seconds,
            used,
            limit,
            refused_seconds: 1.0,
        };
        let mut status = without_quotas(Vec::new(), Vec::new());
        status.saturated = vec![
            key("quota:userid:alice", None, 4, Some(4)),
            key("tokens:userid:bob", Some(60.0), 99_000, Some(100_000)),
        ];
        status.saturated_keys = 2;
        assert!(page(&status).contains(
            "Saturated quota keys, refused within 10 s\n  quota:userid:alice        4 of 4 slots\n  \
             tokens:userid:bob     99000 of 100000 in 1m\n\n"
        ));
        status.saturated_keys = 7;
        assert!(page(&status).contains("within 10 s (the worst 2 of 7)\n"));
        status.saturated_keys = 1000;
        assert!(page(&status).contains("(the worst 2 of 1000 or more)\n"));
    }
}
