//! Vacuum every few seconds where much is thrown away: autovacuum wakes once a minute, and by then every poll walks over
//! a million rows that are gone.
//!
//! Whoever holds the lease on maintenance does it, each table by itself. Where a held snapshot forbids that anything be
//! removed, it is tried less and less often.

use std::{collections::HashMap, time::Duration};

use futures_util::future::join_all;
use leasehold_store::{DeadRows, Error, Store};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

/// Between two looks at the counts, after one that found something to do and after one that did not.
const LOOK: (Duration, Duration) = (Duration::from_millis(300), Duration::from_secs(2));
/// A table is vacuumed when so many rows are dead, and one for each `LIVE_PER_DEAD` live ones: the indexes are read whole.
const DEAD: i64 = 20_000;
const LIVE_PER_DEAD: i64 = 20;
/// Between two runs on a table, from the last one that was of use; four times as long after each that was not, up to the longest:
/// such a run has read the whole table for nothing.
const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(120));

/// Vacuums while `leased`, until told to stop.
pub(super) async fn keep_vacuumed(store: Store, leased: watch::Receiver<bool>, stop: CancellationToken) {
    let mut tables = Tables::default();
    let mut pause = LOOK.1;
    while stop.run_until_cancelled(sleep(pause)).await.is_some() {
        if !*leased.borrow() {
            continue;
        }
        pause = match stop.run_until_cancelled(vacuum_due(&store, &mut tables)).await {
            Some(Ok(true)) => LOOK.0,
            Some(Ok(false)) | None => LOOK.1,
            Some(Err(error)) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "could not vacuum");
                LOOK.1
            }
        };
    }
}

/// All that is due at once; says whether anything was.
async fn vacuum_due(store: &Store, tables: &mut Tables) -> Result<bool, Error> {
    let mut due = store.dead_rows().await?;
    due.retain(|table| tables.is_due(table, Instant::now()));
    if due.is_empty() {
        return Ok(false);
    }
    let runs = due.iter().map(async |table| {
        metrics::counter!("leasehold_vacuums_total", "table" => table.table.clone()).increment(1);
        let started = Instant::now();
        let ran = store.vacuum(&table.table).await;
        tracing::debug!(table = table.table, dead = table.dead, took = ?started.elapsed(), "vacuumed");
        ran
    });
    let ran = join_all(runs).await;
    let after = store.dead_rows().await?;
    for (table, ran) in due.iter().zip(&ran) {
        let after = after.iter().find(|after| ran.is_ok() && after.table == table.table);
        tables.ran(table, after, Instant::now());
    }
    ran.into_iter().collect::<Result<Vec<()>, Error>>()?;
    Ok(true)
}

/// When each table's turn comes.
#[derive(Debug, Default)]
struct Tables {
    rests: HashMap<String, Rest>,
    has_told: bool,
}

#[derive(Clone, Copy, Debug)]
struct Rest {
    pause: Duration,
    until: Instant,
}

impl Tables {
    /// Whether the table wants a run. That this role may not is told once.
    fn is_due(&mut self, table: &DeadRows, now: Instant) -> bool {
        if table.dead < DEAD + table.live / LIVE_PER_DEAD {
            return false;
        }
        if !table.may_vacuum && !std::mem::replace(&mut self.has_told, true) {
            tracing::info!(
                table = table.table,
                "many rows are dead, and this role may not vacuum them: that is left to autovacuum"
            );
        }
        table.may_vacuum && self.rests.get(&table.table).is_none_or(|rest| rest.until <= now)
    }

    /// A run is of use when it removed half of what was dead when it began. One that failed removed nothing.
    fn ran(&mut self, before: &DeadRows, after: Option<&DeadRows>, now: Instant) {
        let removed = after.map_or(0, |after| before.dead + (after.died - before.died) - after.dead);
        let last = self.rests.get(&before.table).map_or(PAUSE.0, |rest| rest.pause);
        let pause = if removed >= before.dead / 2 { PAUSE.0 } else { (last * 4).min(PAUSE.1) };
        self.rests.insert(before.table.clone(), Rest { pause, until: now + pause });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(dead: i64, live: i64, may_vacuum: bool) -> DeadRows {
        DeadRows { table: "results".into(), dead, died: 0, live, may_vacuum }
    }

    #[test]
    fn table_is_vacuumed_when_enough_is_dead_for_its_size_and_the_role_may() {
        let mut tables = Tables::default();
        let now = Instant::now();
        assert!(tables.is_due(&table(20_000, 0, true), now));
        assert!(!tables.is_due(&table(19_999, 0, true), now));
        assert!(!tables.is_due(&table(20_000, 1_000_000, true), now));
        assert!(tables.is_due(&table(70_000, 1_000_000, true), now));
        assert!(!tables.is_due(&table(70_000, 0, false), now));
        assert!(tables.has_told);
    }

    #[test]
    fn runs_in_vain_come_less_and_less_often_until_one_is_of_use() {
        let mut tables = Tables::default();
        let mut now = Instant::now();
        let many = table(100_000, 0, true);
        let mut pause = |left: i64, expected: u64| {
            assert!(tables.is_due(&many, now), "before a pause of {expected} ms");
            // As many have died meanwhile as there were before.
            let after = DeadRows { died: 100_000, ..table(left + 100_000, 0, true) };
            tables.ran(&many, Some(&after), now);
            let expected = Duration::from_millis(expected);
            assert!(!tables.is_due(&many, now + expected - Duration::from_millis(1)));
            now += expected;
        };
        for expected in [2000, 8000, 32_000, 120_000, 120_000] {
            pause(90_000, expected);
        }
        pause(0, 500);
        pause(60_000, 2000);
    }

    #[test]
    fn run_that_fails_is_one_in_vain() {
        let mut tables = Tables::default();
        let (now, many) = (Instant::now(), table(100_000, 0, true));
        tables.ran(&many, None, now);
        assert!(!tables.is_due(&many, now + Duration::from_millis(1999)));
        assert!(tables.is_due(&many, now + Duration::from_secs(2)));
    }
}
