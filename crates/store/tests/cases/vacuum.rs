//! Vacuum beside the work: who may, and that nobody waits.

use leasehold_store::{DeadRows, Store};

use crate::{
    roles::member_of,
    support::{Site, connect, invalid_argument, wait_until},
};

/// As many dead rows in `results`, known to the statistics.
async fn dead_results(site: &Site, count: i64) {
    // A session that ends tells at once what it did.
    let sql = connect(site.database.url()).await;
    sql.batch_execute(&format!(
        "ALTER TABLE results SET (autovacuum_enabled = off);
         INSERT INTO results (enqueued_at, finished_at, attempt, queue_id, deliveries, body_is_text, route, id, token)
         SELECT now(), now(), 1, 1, 1, false, 'one', n::text, 't' FROM generate_series(1, {count}) n;
         DELETE FROM results"
    ))
    .await
    .unwrap();
    drop(sql);
    wait_until("the dead rows are counted", async || of_results(&site.store).await.dead >= count).await;
}

async fn of_results(store: &Store) -> DeadRows {
    store.dead_rows().await.unwrap().into_iter().find(|table| table.table == "results").unwrap()
}

#[tokio::test]
async fn dead_rows_are_removed() {
    let site = Site::open().await;
    dead_results(&site, 1000).await;
    assert!(of_results(&site.store).await.may_vacuum);
    // Somebody else's snapshot may keep them for a while.
    wait_until("no dead row is left", async || {
        site.store.vacuum("results").await.unwrap();
        of_results(&site.store).await.dead == 0
    })
    .await;
    // The index is clean, too: nothing is read that is gone.
    let read = "SELECT pg_stat_get_xact_tuples_returned('results_pkey'::regclass)";
    let open = site.begin().await;
    assert!(open.client.query("SELECT pop_results('one', 10)", &[]).await.unwrap().is_empty());
    assert_eq!(open.client.query_one(read, &[]).await.unwrap().get::<_, i64>(0), 0);
    open.roll_back().await;
    for table in site.store.dead_rows().await.unwrap() {
        site.store.vacuum(&table.table).await.unwrap();
    }
    assert!(invalid_argument(site.store.vacuum("queues").await.unwrap_err()).contains("queues"));
}

/// No error and no wait where somebody else vacuums.
#[tokio::test]
async fn table_that_somebody_else_vacuums_is_left_to_him() {
    let site = Site::open().await;
    dead_results(&site, 1000).await;
    let open = site.begin().await;
    open.execute("LOCK TABLE results IN SHARE UPDATE EXCLUSIVE MODE").await;
    site.store.vacuum("results").await.unwrap();
    assert!(of_results(&site.store).await.dead >= 1000);
    open.roll_back().await;
}

/// With no right but a dispatcher's it is known beforehand, and with the owner's, or 17's own, it is done.
#[tokio::test]
async fn role_may_vacuum_as_the_owner_or_with_maintain() {
    let site = Site::open().await;
    dead_results(&site, 1000).await;
    let (store, sql) = member_of(&site, "leasehold_dispatcher").await;
    let role: String = sql.query_one("SELECT current_user::text", &[]).await.unwrap().get(0);
    assert!(store.dead_rows().await.unwrap().iter().all(|table| !table.may_vacuum));
    store.vacuum("results").await.unwrap();
    assert!(of_results(&store).await.dead >= 1000);

    site.execute(&format!(
        "DO $$ BEGIN
             IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'keeper') THEN CREATE ROLE keeper; END IF;
         END $$;
         ALTER TABLE results OWNER TO keeper; GRANT keeper TO {role}"
    ))
    .await;
    assert!(of_results(&store).await.may_vacuum);
    wait_until("the owner's member has cleaned", async || {
        store.vacuum("results").await.unwrap();
        of_results(&store).await.dead == 0
    })
    .await;

    if site.value::<i32>("SELECT current_setting('server_version_num')::int", &[]).await >= 170_000 {
        site.execute(&format!("GRANT MAINTAIN ON TABLE requests TO {role}")).await;
        let tables = store.dead_rows().await.unwrap();
        assert_eq!(tables.iter().filter(|table| table.may_vacuum).count(), 2);
    }
}
