//! The queues of a walk, and how they are set.

use super::oracle::{Ms, Ordering, SECOND, Settings};

pub(crate) fn settings() -> [(&'static str, Settings); 7] {
    let standard = Settings {
        ordering: Ordering::Standard,
        // Half a second beside the steps: no lock lapses at the moment a message expires or comes due.
        lock: 60 * SECOND + 500,
        max_deliveries: 3,
        ttl: None,
        dedup: None,
        dead_letters: true,
        on_expiry: true,
    };
    let ordered = Settings {
        ordering: Ordering::GroupFifo,
        lock: 40 * SECOND + 500,
        max_deliveries: 2,
        ..standard.clone()
    };
    [
        ("plain", standard.clone()),
        (
            "brief",
            Settings {
                ttl: Some(300 * SECOND),
                dedup: Some(240 * SECOND),
                max_deliveries: 2,
                on_expiry: false,
                ..standard.clone()
            },
        ),
        ("grouped", Settings { ttl: Some(500 * SECOND), ..ordered.clone() }),
        ("forgetful", Settings { dead_letters: false, dedup: Some(120 * SECOND), ..ordered }),
        ("strict", Settings { ordering: Ordering::StrictFifo, lock: 400 * SECOND + 500, ..standard.clone() }),
        ("gold", Settings { dedup: Some(200 * SECOND), ..standard.clone() }),
        ("alpha", Settings { max_deliveries: 1, ttl: Some(100 * SECOND), ..standard }),
    ]
}

pub(crate) fn config(settings: &Settings) -> String {
    let ordering = match settings.ordering {
        Ordering::Standard => "standard",
        Ordering::GroupFifo => "group_fifo",
        Ordering::StrictFifo => "strict_fifo",
    };
    let ms = |ms: Option<Ms>| ms.map(|ms| format!("{ms} ms"));
    serde_json::json!({
        "ordering": ordering, "lock_time": ms(Some(settings.lock)), "max_deliveries": settings.max_deliveries,
        "ttl": ms(settings.ttl), "dedup_window": ms(settings.dedup), "dead_letters": settings.dead_letters,
        "dead_letter_on_expiry": settings.on_expiry,
    })
    .to_string()
}
