//! Each fault happens to the statement it was asked for, and to no other.

use std::future::poll_fn;
use std::time::Duration;

use futures_util::{SinkExt, future};
use leasehold_testkit::database::{TestDatabase, shared_cluster};
use leasehold_testkit::proxy::FaultProxy;
use leasehold_testkit::wait::until;
use tokio_postgres::{Client, NoTls};

use crate::DEADLINE;

const INSERT: &str = "-- test::insert\nINSERT INTO t VALUES ($1)";
const READ: &str = "-- test::read\nSELECT n FROM t ORDER BY n";
/// Long enough to see that something does not happen.
const A_WHILE: Duration = Duration::from_millis(100);

/// A database with an empty table `t`, and a proxy in front of it.
struct Bench {
    database: TestDatabase,
    /// Not through the proxy.
    direct: Client,
    proxy: FaultProxy,
}

impl Bench {
    async fn new() -> Self {
        let database = TestDatabase::from_template("proxy", async |url| {
            let (client, connection) = tokio_postgres::connect(&url, NoTls).await.expect("it connects");
            tokio::spawn(connection);
            client.batch_execute("CREATE TABLE t (n int)").await.expect("a table is made");
        })
        .await;
        let direct = database.connect().await;
        let proxy = FaultProxy::start(shared_cluster().await.address()).await;
        Self { database, direct, proxy }
    }

    async fn connect(&self) -> Result<Client, tokio_postgres::Error> {
        let (client, connection) =
            tokio_postgres::connect(&self.proxy.url(self.database.url()), NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }

    async fn client(&self) -> Client {
        self.connect().await.expect("the proxy passes a connection on")
    }

    /// What is committed.
    async fn rows(&self) -> Vec<i32> {
        let rows = self.direct.query(READ, &[]).await.expect("the table is read");
        rows.iter().map(|row| row.get(0)).collect()
    }
}

#[tokio::test]
async fn lost_reply_leaves_the_statement_committed_and_the_connection_closed() {
    let bench = Bench::new().await;
    let (client, bystander) = (bench.client().await, bench.client().await);
    let statement = client.prepare(INSERT).await.unwrap();
    let fault = bench.proxy.lose_reply_matching("-- test::insert");
    client.query(READ, &[]).await.unwrap();
    assert!(!fault.happened());

    let error = client.execute(&statement, &[&1]).await.unwrap_err();
    assert!(error.is_closed(), "{error:?}");
    assert!(fault.happened());
    assert_eq!(bench.rows().await, [1]);
    assert!(client.query(READ, &[]).await.is_err());

    // It happens once, and to one connection.
    bystander.execute(INSERT, &[&2]).await.unwrap();
    bench.client().await.execute(INSERT, &[&3]).await.unwrap();
    assert_eq!(bench.rows().await, [1, 2, 3]);
}

#[tokio::test]
async fn lost_reply_waits_for_an_execution_on_a_connection_that_prepares_first() {
    let bench = Bench::new().await;
    let client = bench.client().await;
    let fault = bench.proxy.lose_reply_matching("-- test::insert");
    let statement = client.prepare(INSERT).await.unwrap();
    assert!(!fault.happened());
    client.execute(&statement, &[&1]).await.unwrap_err();
    assert_eq!(bench.rows().await, [1]);
}

#[tokio::test]
async fn lost_reply_is_that_of_the_right_request_in_a_pipeline() {
    let bench = Bench::new().await;
    let client = bench.client().await;
    let insert = client.prepare(INSERT).await.unwrap();
    let read = client.prepare(READ).await.unwrap();
    bench.proxy.lose_reply_matching("-- test::insert");
    let (before, lost, after) = tokio::join!(
        client.query(&read, &[]),
        client.execute(&insert, &[&1]),
        client.execute(&insert, &[&2])
    );
    assert!(before.unwrap().is_empty());
    assert!(lost.is_err() && after.is_err());
    // What followed the lost reply was not passed on.
    assert_eq!(bench.rows().await, [1]);
}

#[tokio::test]
async fn lost_reply_may_be_that_of_a_simple_query() {
    let bench = Bench::new().await;
    let mut client = bench.client().await;
    let transaction = client.transaction().await.unwrap();
    transaction.execute(INSERT, &[&1]).await.unwrap();
    bench.proxy.lose_reply_matching("COMMIT");
    assert!(transaction.commit().await.is_err());
    assert_eq!(bench.rows().await, [1]);
}

#[tokio::test]
async fn failed_request_does_not_happen() {
    let bench = Bench::new().await;
    let client = bench.client().await;
    let fault = bench.proxy.fail_before_matching("-- test::insert");
    let error = client.execute(INSERT, &[&1]).await.unwrap_err();
    assert!(error.is_closed(), "{error:?}");
    fault.reached().await;
    assert_eq!(bench.rows().await, [0; 0]);
    bench.client().await.execute(INSERT, &[&2]).await.unwrap();
    assert_eq!(bench.rows().await, [2]);
}

#[tokio::test]
async fn faults_with_one_marker_happen_in_order() {
    let bench = Bench::new().await;
    bench.proxy.fail_before_matching("test::insert");
    bench.proxy.lose_reply_matching("test::insert");
    for n in 1..=2 {
        bench.client().await.execute(INSERT, &[&n]).await.unwrap_err();
    }
    bench.client().await.execute(INSERT, &[&3]).await.unwrap();
    assert_eq!(bench.rows().await, [2, 3]);
}

#[tokio::test]
async fn held_reply_is_committed_and_comes_when_released() {
    let bench = Bench::new().await;
    let client = bench.client().await;
    let held = bench.proxy.hold_reply_matching("-- test::insert");
    let mut insert = Box::pin(client.execute(INSERT, &[&1]));
    tokio::select! {
        result = &mut insert => panic!("not held: {result:?}"),
        () = held.reached() => {}
    }
    assert_eq!(bench.rows().await, [1]);
    assert!(tokio::time::timeout(A_WHILE, &mut insert).await.is_err());
    held.release();
    assert_eq!(insert.await.unwrap(), 1);
    assert_eq!(client.query(READ, &[]).await.unwrap().len(), 1);
}

#[tokio::test]
async fn held_request_happens_when_released() {
    let bench = Bench::new().await;
    let client = bench.client().await;
    let held = bench.proxy.hold_request_matching("-- test::insert");
    let mut insert = Box::pin(client.execute(INSERT, &[&1]));
    tokio::select! {
        result = &mut insert => panic!("not held: {result:?}"),
        () = held.reached() => {}
    }
    assert!(tokio::time::timeout(A_WHILE, &mut insert).await.is_err());
    assert_eq!(bench.rows().await, [0; 0]);
    drop(held);
    assert_eq!(insert.await.unwrap(), 1);
    assert_eq!(bench.rows().await, [1]);
}

#[tokio::test]
async fn held_request_happens_even_after_the_client_has_given_up() {
    let bench = Bench::new().await;
    let held = bench.proxy.hold_request_matching("-- test::insert");
    let url = bench.proxy.url(bench.database.url());
    let given_up = tokio::spawn(async move {
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await.expect("it connects");
        future::join(connection, client.execute(INSERT, &[&1])).await
    });
    held.reached().await;
    given_up.abort();
    assert!(given_up.await.is_err_and(|error| error.is_cancelled()));
    assert_eq!(bench.rows().await, [0; 0]);
    held.release();
    held.over().await;
    assert_eq!(bench.rows().await, [1], "once its connection has ended, it has happened");
}

#[tokio::test]
async fn handle_dropped_early_calls_the_fault_off() {
    let bench = Bench::new().await;
    drop(bench.proxy.hold_reply_matching("-- test::insert"));
    let fault = bench.proxy.fail_before_matching("-- test::insert");
    bench.client().await.execute(INSERT, &[&1]).await.unwrap_err();
    assert!(fault.happened());
}

#[tokio::test]
async fn fault_called_off_does_not_happen() {
    let bench = Bench::new().await;
    bench.proxy.fail_before_matching("-- test::insert").call_off();
    bench.proxy.lose_reply_matching("-- test::insert").call_off();
    assert_eq!(bench.client().await.execute(INSERT, &[&1]).await.unwrap(), 1);
}

#[tokio::test]
async fn statement_is_rewritten_where_it_has_the_marker() {
    let bench = Bench::new().await;
    bench.proxy.rewrite("-- test::insert", "VALUES ($1)", "VALUES ($1 + 1)");
    let client = bench.client().await;
    client.execute(INSERT, &[&1]).await.unwrap();
    client.execute("INSERT INTO t VALUES ($1)", &[&3]).await.unwrap();
    assert_eq!(bench.rows().await, [2, 3]);
}

#[tokio::test]
async fn frozen_proxy_passes_nothing_on_until_thawed() {
    let bench = Bench::new().await;
    let client = bench.client().await;
    bench.proxy.freeze();
    let mut insert = Box::pin(client.execute(INSERT, &[&1]));
    let mut connect = Box::pin(bench.connect());
    assert!(tokio::time::timeout(A_WHILE, &mut insert).await.is_err());
    assert!(tokio::time::timeout(A_WHILE, &mut connect).await.is_err());
    assert_eq!(bench.rows().await, [0; 0]);
    bench.proxy.thaw();
    assert_eq!(insert.await.unwrap(), 1);
    connect.await.unwrap();
}

#[tokio::test]
async fn cut_ends_all_connections_and_takes_new_ones() {
    let bench = Bench::new().await;
    let clients = [bench.client().await, bench.client().await];
    let waiting = clients[0].query("SELECT pg_sleep(600)", &[]);
    let cut = async {
        until("the query runs", DEADLINE, async || bench.proxy.statements_matching("pg_sleep") == 1).await;
        bench.proxy.cut();
    };
    assert!(tokio::join!(waiting, cut).0.unwrap_err().is_closed());
    until("the other is closed too", DEADLINE, async || clients[1].is_closed()).await;
    bench.client().await.execute(INSERT, &[&1]).await.unwrap();
}

/// The server's process behind a client.
async fn process(client: &Client) -> i32 {
    client.query_one("SELECT pg_backend_pid()", &[]).await.expect("it is asked").get(0)
}

#[tokio::test]
async fn kept_session_is_the_next_clients_once_its_own_has_gone() {
    let bench = Bench::new().await;
    bench.proxy.keep_sessions();
    let (client, other) = (bench.client().await, bench.client().await);
    let first = process(&client).await;
    assert_ne!(process(&other).await, first, "one client each");

    let prepared = client.prepare(INSERT).await.unwrap();
    let fault = bench.proxy.lose_reply_matching("-- test::insert");
    assert!(client.execute(&prepared, &[&1]).await.unwrap_err().is_closed());
    assert!(fault.happened());
    let client = bench.client().await;
    assert_eq!(process(&client).await, first);
    let prepared = "SELECT count(*) FROM pg_prepared_statements WHERE statement = $1";
    assert_eq!(client.query_one(prepared, &[&INSERT]).await.unwrap().get::<_, i64>(0), 0);

    let held = bench.proxy.hold_request_matching("-- test::insert");
    let given_up = tokio::spawn(async move { client.execute(INSERT, &[&2]).await });
    held.reached().await;
    given_up.abort();
    assert_ne!(process(&bench.client().await).await, first, "what it was sent is still on its way");
    held.release();
    held.over().await;
    assert_eq!(bench.rows().await, [1, 2]);
    let again = [bench.client().await, bench.client().await];
    let again = [process(&again[0]).await, process(&again[1]).await];
    assert!(again.contains(&first), "{first} is not among {again:?}");
}

#[tokio::test]
async fn session_is_not_kept_with_something_under_way_nor_beyond_a_cut() {
    let bench = Bench::new().await;
    bench.proxy.keep_sessions();
    let client = bench.client().await;
    let first = process(&client).await;
    client.batch_execute("BEGIN; INSERT INTO t VALUES (1)").await.unwrap();
    let fault = bench.proxy.lose_reply_matching("-- test::read");
    assert!(client.query(READ, &[]).await.unwrap_err().is_closed());
    assert!(fault.happened());
    let client = bench.client().await;
    let second = process(&client).await;
    assert_ne!(second, first);
    assert_eq!(bench.rows().await, [0; 0], "its transaction is rolled back");

    bench.proxy.cut();
    until("it is closed", DEADLINE, async || client.is_closed()).await;
    assert_ne!(process(&bench.client().await).await, second);
}

#[tokio::test]
async fn refusing_proxy_takes_no_connections_and_keeps_those_it_has() {
    let bench = Bench::new().await;
    let client = bench.client().await;
    bench.proxy.refuse(true);
    assert!(bench.connect().await.is_err());
    client.execute(INSERT, &[&1]).await.unwrap();
    bench.proxy.refuse(false);
    bench.client().await;
}

#[tokio::test]
async fn dropped_proxy_ends_its_connections() {
    let bench = Bench::new().await;
    let client = bench.client().await;
    let address = bench.proxy.address();
    drop(bench);
    until("the connection is closed", DEADLINE, async || client.is_closed()).await;
    until("nothing listens", DEADLINE, async || tokio::net::TcpStream::connect(address).await.is_err()).await;
}

#[tokio::test]
async fn executions_are_counted_and_preparations_are_not() {
    let bench = Bench::new().await;
    let client = bench.client().await;
    let statement = client.prepare(INSERT).await.unwrap();
    assert_eq!(bench.proxy.statements_matching("-- test::insert"), 0);
    for n in 1..=3 {
        client.execute(&statement, &[&n]).await.unwrap();
    }
    client.batch_execute("-- test::simple\nSELECT 1").await.unwrap();
    assert_eq!(bench.proxy.statements_matching("-- test::insert"), 3);
    assert_eq!(bench.proxy.statements_matching("-- test::"), 4);
}

#[tokio::test]
async fn copy_and_failed_statements_do_not_upset_the_matching_of_replies() {
    let bench = Bench::new().await;
    let client = bench.client().await;
    let sink = client.copy_in::<_, bytes::Bytes>("COPY t FROM STDIN").await.unwrap();
    let mut sink = std::pin::pin!(sink);
    sink.send(bytes::Bytes::from_static(b"1\n2\n")).await.unwrap();
    assert_eq!(sink.finish().await.unwrap(), 2);
    {
        // Given up half-way.
        let sink = client.copy_in::<_, bytes::Bytes>("COPY t FROM STDIN").await.unwrap();
        let mut sink = std::pin::pin!(sink);
        sink.send(bytes::Bytes::from_static(b"9\n")).await.unwrap();
    }
    client.query("SELECT 1 / $1::int", &[&0]).await.unwrap_err();
    client.batch_execute("SELECT nonsense").await.unwrap_err();
    assert_eq!(client.query(READ, &[]).await.unwrap().len(), 2);

    bench.proxy.lose_reply_matching("-- test::insert");
    client.execute(INSERT, &[&3]).await.unwrap_err();
    assert_eq!(bench.rows().await, [1, 2, 3]);
}

#[tokio::test]
async fn notifications_and_large_rows_pass() {
    let bench = Bench::new().await;
    let url = bench.proxy.url(bench.database.url());
    let (client, mut connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    let (sender, mut notifications) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            if let tokio_postgres::AsyncMessage::Notification(notification) = message {
                sender.send(notification.payload().to_owned()).expect("the test still listens");
            }
        }
    });
    client.batch_execute("LISTEN news").await.unwrap();
    let row =
        client.query_one("SELECT repeat('x', 3000000), $1::text", &[&"y".repeat(2_000_000)]).await.unwrap();
    assert_eq!((row.get::<_, &str>(0).len(), row.get::<_, &str>(1).len()), (3_000_000, 2_000_000));
    bench.direct.batch_execute("NOTIFY news, 'hello'").await.unwrap();
    assert_eq!(notifications.recv().await.unwrap(), "hello");
}

#[tokio::test]
async fn url_is_rewritten_in_its_address_only() {
    let proxy = FaultProxy::start("127.0.0.1:1").await;
    let here = proxy.address();
    assert_eq!(
        proxy.url("postgres://u:p%40@db.example:5432/app?sslmode=disable"),
        format!("postgres://u:p%40@{here}/app?sslmode=disable")
    );
    assert_eq!(proxy.url("postgresql://db"), format!("postgresql://{here}"));
}
