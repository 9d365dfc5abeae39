//! Vacuum every few seconds where much is thrown away: autovacuum wakes once a minute, and by then every poll walks over
//! a million rows that are gone.
//!
//! Whoever holds the lease on maintenance does it, one table after the other. Where a held snapshot forbids that
//! anything be removed, it is tried less and less often.

use std::{collections::HashMap, time::Duration};

use leasehold_store::{DeadRows, Error, Store};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

/// Between two looks at the counts.
const LOOK: Duration = Duration::from_secs(2);
/// A table is vacuumed when so many rows are dead, and one for each `LIVE_PER_DEAD` live ones: the indexes are read whole.
const DEAD: i64 = 20_000;
const LIVE_PER_DEAD: i64 = 20;
/// Between two runs on a table, from the last one that was of use; doubled by each that was not, up to the longest.
const PAUSE: Duration = Duration::from_secs(4);
const LONGEST_PAUSE: Duration = Duration::from_secs(120);
/// A run is followed by a pause of so many times what it took.
const REST: u32 = 4;

/// Vacuums while `leased`, until told to stop.
pub(super) async fn keep_vacuumed(store: Store, leased: watch::Receiver<bool>, stop: CancellationToken) {
    let mut tables = Tables::default();
    while stop.run_until_cancelled(sleep(LOOK)).await.is_some() {
        if *leased.borrow()
            && let Some(Err(error)) = stop.run_until_cancelled(vacuum_due(&store, &mut tables)).await
        {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "could not vacuum");
        }
    }
}

async fn vacuum_due(store: &Store, tables: &mut Tables) -> Result<(), Error> {
    for table in store.dead_rows().await? {
        if !tables.is_due(&table, Instant::now()) {
            continue;
        }
        let started = Instant::now();
        metrics::counter!("leasehold_vacuums_total", "table" => table.table.clone()).increment(1);
        if let Err(error) = store.vacuum(&table.table).await {
            tables.ran(&table, table.dead, started, Instant::now());
            return Err(error);
        }
        let left =
            store.dead_rows().await?.into_iter().find(|t| t.table == table.table).map_or(0, |t| t.dead);
        tracing::debug!(table = table.table, dead = table.dead, left, took = ?started.elapsed(), "vacuumed");
        tables.ran(&table, left, started, Instant::now());
    }
    Ok(())
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

    /// A run is of use when it removed half of what was dead. One that failed removed nothing.
    fn ran(&mut self, table: &DeadRows, left: i64, started: Instant, now: Instant) {
        let last = self.rests.get(&table.table).map_or(PAUSE, |rest| rest.pause);
        let pause = if left <= table.dead / 2 { PAUSE } else { (last * 2).min(LONGEST_PAUSE) };
        let rest = Rest { pause, until: now + pause.max((now - started) * REST) };
        self.rests.insert(table.table.clone(), rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(dead: i64, live: i64, may_vacuum: bool) -> DeadRows {
        DeadRows { table: "results".into(), dead, live, may_vacuum }
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
            assert!(tables.is_due(&many, now), "before a pause of {expected} s");
            tables.ran(&many, left, now, now);
            let expected = Duration::from_secs(expected);
            assert!(!tables.is_due(&many, now + expected - Duration::from_millis(1)));
            now += expected;
        };
        for expected in [8, 16, 32, 64, 120, 120] {
            pause(90_000, expected);
        }
        pause(0, 4);
        pause(60_000, 8);
    }

    #[test]
    fn long_run_is_followed_by_a_longer_rest() {
        let mut tables = Tables::default();
        let started = Instant::now();
        let ended = started + Duration::from_secs(10);
        let many = table(100_000, 0, true);
        tables.ran(&many, 0, started, ended);
        assert!(!tables.is_due(&many, ended + Duration::from_secs(39)));
        assert!(tables.is_due(&many, ended + Duration::from_secs(40)));
    }
}
