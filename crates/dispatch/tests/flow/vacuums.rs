//! Vacuum by the one dispatcher that has the lease on maintenance, where its role may.

use std::time::Duration;

use leasehold_testkit::wait::until;

use crate::{
    bench::{Bench, config},
    desk::Desk,
};

/// Longer than it takes to lease maintenance, and to look for what is dead.
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn one_dispatcher_vacuums_what_is_full_of_dead_rows_once_it_may() {
    let bench = Bench::new().await;
    let vacuums = async || {
        let sql = "SELECT vacuum_count FROM pg_stat_user_tables WHERE relid = 'results'::regclass";
        bench.value::<i64>(sql, &[]).await
    };
    let fill = bench.connect().await;
    fill.batch_execute(
        "ALTER TABLE results SET (autovacuum_enabled = off);
         INSERT INTO results (enqueued_at, finished_at, attempt, queue_id, deliveries, body_is_text, route, id, token)
         SELECT now(), now(), 1, 1, 1, false, 'one', n::text, 't' FROM generate_series(1, 30000) n;
         DELETE FROM results",
    )
    .await
    .unwrap();
    drop(fill); // it tells now what it did
    let _dispatchers =
        [bench.start(config(), &Desk::open()).await, bench.start(config(), &Desk::open()).await];
    until("maintenance is leased", PATIENCE, async || {
        bench.value::<i64>("SELECT count(*) FROM maintenance WHERE expires_at > now()", &[]).await == 1
    })
    .await;
    assert_eq!(vacuums().await, 0);
    // The functions go on as the schema's owner, who is not this table's any more.
    let grant = "CREATE ROLE keeper_of_results; ALTER TABLE results OWNER TO keeper_of_results;
        GRANT ALL ON TABLE results TO site_owner; GRANT keeper_of_results TO site_dispatcher";
    bench.sql.batch_execute(grant).await.unwrap();
    until("the table is clean", PATIENCE, async || {
        let sql = "SELECT n_dead_tup FROM pg_stat_user_tables WHERE relid = 'results'::regclass";
        bench.value::<i64>(sql, &[]).await == 0
    })
    .await;
    assert_eq!(vacuums().await, 1);
}
