//! Vacuum every few seconds where much is thrown away: autovacuum wakes once a minute, and by then every poll walks over
//! a million rows that are gone.
//!
//! Whoever holds the lease on maintenance does it, each table by itself. Where a held snapshot forbids that anything be
//! removed, it is tried less and less often.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use leasehold_store::{DeadRows, Store};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

/// Between two looks at the counts while there is much to do, and while there is not.
const LOOK: (Duration, Duration) = (Duration::from_millis(300), Duration::from_secs(5));
/// So many statements of this process since the last look, and there may be: a table that once has outgrown the shared buffers stays
/// that large, so the first run must not come late.
const BUSY: u64 = 16;
/// A table is vacuumed when so many rows are dead, and one for each `LIVE_PER_DEAD` live ones: the indexes are read whole.
const DEAD: i64 = 20_000;
const LIVE_PER_DEAD: i64 = 20;
/// Between two runs on a table, from the last one that was of use; four times as long after each that was not, up to the longest:
/// such a run has read the whole table for nothing.
const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(120));

/// Vacuums while `leased`, until told to stop.
pub(super) async fn keep_vacuumed(store: Store, leased: watch::Receiver<bool>, stop: CancellationToken) {
    let mut tables = Tables::default();
    // Dropped, they are cancelled.
    let mut runs = JoinSet::new();
    let (mut looked, mut seen) = (Instant::now(), store.statements());
    while stop.run_until_cancelled(sleep(LOOK.0)).await.is_some() {
        let may_wait = runs.is_empty() && store.statements() - seen < BUSY;
        if !*leased.borrow() || may_wait && looked.elapsed() < LOOK.1 {
            continue;
        }
        // Before the counts, so that those tell what came of them.
        let ended: Vec<Run> = std::iter::from_fn(|| runs.try_join_next()).flatten().collect();
        let counts = match stop.run_until_cancelled(store.dead_rows()).await {
            Some(Ok(counts)) => counts,
            Some(Err(error)) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "could not see what is to be vacuumed"
                );
                Vec::new()
            }
            None => return,
        };
        (looked, seen) = (Instant::now(), store.statements());
        for run in &ended {
            let after = counts.iter().find(|after| run.went_well && after.table == run.before.table);
            tables.ran(&run.before, after, looked);
        }
        for table in counts {
            if tables.is_due(&table, looked) {
                tables.under_way.insert(table.table.clone());
                runs.spawn(vacuum(store.clone(), table));
            }
        }
    }
}

/// A run that has ended.
struct Run {
    before: DeadRows,
    went_well: bool,
}

async fn vacuum(store: Store, before: DeadRows) -> Run {
    metrics::counter!("leasehold_vacuums_total", "table" => before.table.clone()).increment(1);
    let started = Instant::now();
    let ran = store.vacuum(&before.table).await;
    tracing::debug!(table = before.table, dead = before.dead, took = ?started.elapsed(), "vacuumed");
    if let Err(error) = &ran {
        tracing::warn!(table = before.table, error = error as &dyn std::error::Error, "could not vacuum");
    }
    Run { before, went_well: ran.is_ok() }
}

/// When each table's turn comes.
#[derive(Debug, Default)]
struct Tables {
    rests: HashMap<String, Rest>,
    under_way: HashSet<String>,
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
        if table.dead < DEAD + table.live / LIVE_PER_DEAD || self.under_way.contains(&table.table) {
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

    /// A run has ended. It was of use when it removed half of what was dead when it began. One that failed removed nothing.
    fn ran(&mut self, before: &DeadRows, after: Option<&DeadRows>, now: Instant) {
        self.under_way.remove(&before.table);
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
        tables.under_way.insert("results".into());
        assert!(!tables.is_due(&table(70_000, 0, true), now), "one run at a time");
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
