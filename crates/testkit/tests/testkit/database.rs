//! Test databases are separate, and a template is filled once.

use std::sync::atomic::{AtomicU32, Ordering};

use leasehold_testkit::database::{TestDatabase, shared_cluster};
use tokio_postgres::NoTls;

#[tokio::test]
async fn empty_databases_are_separate() {
    let (first, second) = (TestDatabase::empty().await, TestDatabase::empty().await);
    assert_ne!(first.url(), second.url());
    first.connect().await.batch_execute("CREATE TABLE only_here ()").await.unwrap();
    assert!(second.connect().await.query("SELECT FROM only_here", &[]).await.is_err());
    assert!(first.connect().await.query("SELECT FROM only_here", &[]).await.unwrap().is_empty());
}

#[tokio::test]
async fn template_is_filled_once_and_copied_at_the_same_time() {
    static FILLED: AtomicU32 = AtomicU32::new(0);
    let database = async || {
        TestDatabase::from_template("numbers", async |url| {
            FILLED.fetch_add(1, Ordering::SeqCst);
            let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
            tokio::spawn(connection);
            client.batch_execute("CREATE TABLE t AS SELECT 7 AS n").await.unwrap();
            // Still open when the template is copied.
            std::mem::forget(client);
        })
        .await
    };
    let (first, second, third) = tokio::join!(database(), database(), database());
    assert_eq!(FILLED.load(Ordering::SeqCst), 1);
    first.connect().await.batch_execute("DELETE FROM t").await.unwrap();
    for other in [second, third] {
        let row = other.connect().await.query_one("SELECT n FROM t", &[]).await.unwrap();
        assert_eq!(row.get::<_, i32>(0), 7);
    }
}

#[tokio::test]
async fn templates_of_other_keys_are_other_databases() {
    let empty = TestDatabase::from_template("nothing", async |_| {}).await;
    assert!(empty.connect().await.query("SELECT FROM t", &[]).await.is_err());
}

#[tokio::test]
async fn shared_cluster_is_the_same_for_all() {
    assert_eq!(shared_cluster().await.port(), shared_cluster().await.port());
    let client = TestDatabase::empty().await.connect().await;
    let setting: String = client.query_one("SHOW max_connections", &[]).await.unwrap().get(0);
    assert_eq!(setting, "400");
}
