//! A message's life by SQL alone, as a program without any library of ours has it.

use super::site;
use crate::support::{Site, connect};

/// Sequence number, token and delivery count of what `receive` gives.
async fn receive(client: &tokio_postgres::Client) -> (i64, String, i32) {
    let row =
        client.query_one("SELECT seq, lock_token, delivery_count FROM receive('q')", &[]).await.unwrap();
    (row.get(0), row.get(1), row.get(2))
}

#[tokio::test]
async fn message_is_sent_received_and_settled_by_every_verb() {
    let site = site().await;
    let client = connect(site.database.url()).await;
    let call = async |statement: &str, seq: i64, token: &str| {
        client.execute(statement, &[&seq, &token]).await.unwrap_or_else(|e| panic!("{statement}: {e:?}"));
    };
    client
        .batch_execute(
            "SELECT send('q', 'hello', message_id => 'm', group_id => 'g', correlation_id => 'c', reply_to => 'r',
                subject => 's', content_type => 'text/plain', properties => '{\"k\": \"v\"}', ttl => '1 hour')",
        )
        .await
        .unwrap();
    let row = client.query_one("SELECT * FROM receive('q', 10, 'peek_lock', 'attempt')", &[]).await.unwrap();
    for (column, expected) in [
        ("message_id", "m"),
        ("group_id", "g"),
        ("correlation_id", "c"),
        ("reply_to", "r"),
        ("subject", "s"),
        ("content_type", "text/plain"),
    ] {
        assert_eq!(row.get::<_, String>(column), expected);
    }
    assert_eq!(row.get::<_, Vec<u8>>("body"), b"hello");
    let (seq, token): (i64, String) = (row.get("seq"), row.get("lock_token"));
    let longer: bool = client
        .query_one("SELECT renew('q', $1, $2) > now() + interval '20 seconds'", &[&seq, &token])
        .await
        .unwrap()
        .get(0);
    assert!(longer);
    let both: bool = client
        .query_one(
            "SELECT (renew_batch('q', ARRAY[$1::bigint, 0], ARRAY[$2, 'x']))[2] IS NULL",
            &[&seq, &token],
        )
        .await
        .unwrap()
        .get(0);
    assert!(both);
    call("SELECT abandon('q', $1, $2)", seq, &token).await;
    let (seq, token, count) = receive(&client).await;
    assert_eq!(count, 2);
    call("SELECT defer('q', $1, $2)", seq, &token).await;
    let row = client
        .query_one("SELECT lock_token FROM receive_deferred('q', ARRAY[$1::bigint])", &[&seq])
        .await
        .unwrap();
    let token: String = row.get(0);
    call("SELECT reject('q', $1, $2, 'Bad', 'very')", seq, &token).await;
    let reason: String = site.value("SELECT dead_letter_reason FROM peek('q', state => 'dead')", &[]).await;
    assert_eq!(reason, "Bad");
    assert_eq!(site.value::<i64>("SELECT redrive('q')", &[]).await, 1);
    let (seq, token, count) = receive(&client).await;
    assert_eq!(count, 1);
    call("SELECT complete('q', $1, $2, 'done', 'text/plain', 200)", seq, &token).await;
    let body: String =
        site.value("SELECT string_agg(body_text, ',') FROM pop_results('r') WHERE code IS NULL", &[]).await;
    assert_eq!(body, "done");
    let stats: i64 = site.value("SELECT total FROM queue_stats('q')", &[]).await;
    assert_eq!(stats, 0);
}

#[tokio::test]
async fn topics_are_managed_and_used_by_sql() {
    let site = Site::open().await;
    site.execute(
        "SELECT create_queue('orders', '{\"kind\": \"topic\"}');
         SELECT subscribe('orders', 'gold', '$.subject_parts[0] == \"orders\" && $.properties.tier == \"gold\"');
         SELECT subscribe('orders', 'all')",
    )
    .await;
    let seq: i64 = site
        .value("SELECT send('orders', '{}'::jsonb, subject => 'orders.new', properties => '{\"tier\": \"gold\"}')", &[])
        .await;
    let none: i64 = site.value("SELECT send('orders', 'x', subject => 'other')", &[]).await;
    assert!(seq > 0 && none > seq);
    let counts: Vec<i64> = site
        .value(
            "SELECT array_agg((queue_stats(name)).total ORDER BY name) FROM list_subscriptions('orders')",
            &[],
        )
        .await;
    assert_eq!(counts, [2, 1]);
    let taken: i64 = site.value("SELECT count(*) FROM receive('gold', 10, 'receive_and_delete')", &[]).await;
    assert_eq!(taken, 1);
    site.execute("SELECT unsubscribe('orders', 'gold'); SELECT delete_queue('orders', true)").await;
    let left: i64 = site.value("SELECT count(*) FROM list_queues()", &[]).await;
    assert_eq!(left, 0);
}
