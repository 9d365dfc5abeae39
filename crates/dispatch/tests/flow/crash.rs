//! The database goes away in the middle of work, and comes back.

use std::time::Duration;

use leasehold_dispatch::{Dispatcher, Readiness};
use leasehold_store::{NewRequest, Store, StoreOptions};
use leasehold_testkit::{
    cluster::{Cluster, ClusterOptions, find_bin_dir},
    database::temporary_directory,
    wait::until,
};
use tokio_postgres::{Client, NoTls};

use crate::{
    bench::{PATIENCE, POOL, QUEUE, short_leases},
    desk::Desk,
};

async fn cluster() -> Cluster {
    let bin_dir = find_bin_dir().expect("Postgres is installed");
    let mut options = ClusterOptions::new(temporary_directory(), bin_dir);
    options.remove_on_exit = true;
    let cluster = Cluster::start(options).await.unwrap();
    cluster.create_database("flow").await.unwrap();
    cluster
}

async fn connect(cluster: &Cluster) -> Client {
    let (client, connection) = tokio_postgres::connect(&cluster.url("flow"), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Invariants 1, 2 and 5: enqueues and acks survive a crash; stamps of the last moments may not, which means a
/// redelivery.
#[tokio::test]
async fn a_crash_of_the_database_in_the_middle_of_work_leaves_one_result_for_each_request() {
    let mut cluster = cluster().await;
    let store = Store::open(&cluster.url("flow"), &StoreOptions::default()).unwrap();
    store.migrate().await.unwrap();
    let desk = Desk::open();
    let backends = [(POOL.to_owned(), desk.backend())].into();
    let dispatcher = Dispatcher::start_with(store.clone(), short_leases(), backends).await.unwrap();
    let mut readiness = dispatcher.readiness();
    let mut expected = Vec::new();
    for round in 0..3 {
        let requests: Vec<_> = (0..300)
            .map(|n| NewRequest { id: Some(format!("{round}-{n}")), ..NewRequest::new(QUEUE, "x") })
            .collect();
        expected.extend(requests.iter().filter_map(|request| request.id.clone()));
        store.enqueue(&requests).await.unwrap();
        desk.until_called(300 * round + 100).await;
        cluster.crash().await.unwrap();
        let failing = readiness.wait_for(|now| matches!(now, Readiness::Failing(_)));
        tokio::time::timeout(PATIENCE, failing).await.expect("it is noticed").unwrap();
        cluster.restart().await.unwrap();
        let ready = readiness.wait_for(|now| *now == Readiness::Ready);
        tokio::time::timeout(PATIENCE, ready).await.expect("work goes on").unwrap();
        let sql = connect(&cluster).await;
        until("everything is finished", PATIENCE, async || {
            let row = sql.query_one("SELECT count(*) FROM leasehold.requests", &[]).await.unwrap();
            row.get::<_, i64>(0) == 0
        })
        .await;
    }
    let sql = connect(&cluster).await;
    let rows = sql.query("SELECT id FROM leasehold.results ORDER BY id", &[]).await.unwrap();
    let found: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    expected.sort();
    assert_eq!(found, expected, "every request has one result");
    tokio::time::timeout(Duration::from_secs(60), dispatcher.drain()).await.expect("it ends in order");
}
