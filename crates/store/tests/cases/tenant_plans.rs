//! What a poll of tenants costs: index scans in order, and no more rows than it hands out and tenants that it visits.

use leasehold_store::{Store, StoreOptions, TenantPoll};

use crate::{
    plans::{assert_heap_only, explain, hot_share, only_plan, plans_of},
    support::{GENERATION, Site, completion, connect, stamps, statement},
    tenants::{caps, requests_of, turns},
};

/// 20,000 requests of the tenant `big`, which comes first, four of each of 50 others, and as many again of another
/// queue; nothing analysed.
async fn seeded() -> (Site, i32) {
    let (site, queue) = Site::with_tenants().await;
    let other = site.queue("other").await;
    site.execute(&format!(
        "INSERT INTO requests (queue_id, partition_id, id, token, payload, deadline, enqueued_at, tenant)
         SELECT q, n % 64, q || '/' || n, 't', 'x', now() + n % 977 * interval '1 minute' + interval '1 hour', now(),
            CASE WHEN n <= 20000 THEN 'big' ELSE 'tenant ' || n % 50 END
         FROM unnest(ARRAY[{queue}, {other}]) q, generate_series(1, 20200) n"
    ))
    .await;
    (site, queue)
}

/// Rows of requests that a poll reads, and how many it hands out.
async fn reads(site: &Site, queue: i32, limit: i32, poll: &TenantPoll) -> (i64, usize) {
    let reads =
        "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'requests'";
    let open = site.begin().await;
    let before: i64 = open.client.query_one(reads, &[]).await.unwrap().get(0);
    let (capped, caps): (Vec<&str>, Vec<i32>) = poll.caps.iter().map(|(t, cap)| (t.as_str(), *cap)).unzip();
    let rows = open
        .client
        .query(
            statement!("request/dispatch_tenants"),
            &[
                &queue,
                &"a",
                &limit,
                &GENERATION,
                &poll.after,
                &capped,
                &caps,
                &poll.quantum,
                &256_i32,
                &poll.ended_only,
                &poll.past_locked,
            ],
        )
        .await
        .unwrap();
    let after: i64 = open.client.query_one(reads, &[]).await.unwrap().get(0);
    open.roll_back().await;
    (after - before, rows.len() - 1)
}

#[tokio::test]
async fn poll_of_tenants_walks_their_index_in_order() {
    let (site, queue) = seeded().await;
    explain(&site).await;
    let store = Store::open(site.database.url(), &StoreOptions::default()).unwrap();
    // One tenant has more, so that there is a second round.
    let poll = TenantPoll { caps: caps(&[("tenant 7", 0)]), ..turns(8) };
    let batch = store.dispatch_tenants(queue, "a", 300, GENERATION, &poll).await.unwrap();
    assert_eq!((batch.requests.len(), batch.tenants), (300, 50));
    // Behind a pooler, say: a session without the store's settings, and statistics that lie no more.
    let call = "SELECT seq FROM dispatch_tenants($1, 'a', 100, $2, NULL, '{}', '{}', 8, 256)";
    site.execute("ANALYZE").await;
    let plain = connect(site.database.url()).await;
    assert_eq!(plain.query(call, &[&queue, &GENERATION]).await.unwrap().len(), 101);

    for marker in ["SELECT c.tenant, c.deadline", "AND c.tenant = here AND", "AND c.tenant = more[i] AND"] {
        let runs = plans_of(|text| text.contains(marker)).await.len();
        assert!(runs > 1, "{marker} ran {runs} times");
        let plan = only_plan(marker, runs).await;
        let scans: Vec<_> = plan.iter().filter(|node| node.contains("requests")).collect();
        assert!(scans.len() == 1 && scans[0].ends_with("Scan requests_tenant"), "{plan:?}");
    }
    let stamp = only_plan("r.metadata, r.payload, r.tenant", 2).await;
    assert!(stamp.iter().any(|node| node == "Tid Scan requests"), "{stamp:?}");
}

/// One row to find each tenant, one for each request handed out, and in the second round those of the first again.
#[tokio::test]
async fn poll_of_tenants_reads_its_batch_and_a_row_a_tenant() {
    let (site, queue) = seeded().await;
    let (visited, quantum) = (51, 2);
    let (rows, handed_out) = reads(&site, queue, 80, &turns(quantum)).await;
    assert_eq!(handed_out, 80);
    assert!(rows <= 80 + visited + 1, "{rows} rows");
    // Each tenant but the first has four: two, and two more.
    let (rows, handed_out) = reads(&site, queue, 1000, &turns(quantum)).await;
    assert!((200..=1000).contains(&handed_out), "{handed_out}");
    let again = visited * i64::from(quantum);
    let handed_out = i64::try_from(handed_out).unwrap();
    assert!(rows <= handed_out + 2 * visited + again + 1, "{rows} rows for {handed_out}");
}

#[tokio::test]
async fn blocked_backlog_costs_a_row_a_poll() {
    let (site, queue) = seeded().await;
    let blocked = TenantPoll { caps: caps(&[("big", 0)]), ..turns(2) };
    let (rows, handed_out) = reads(&site, queue, 100, &blocked).await;
    assert_eq!(handed_out, 100);
    assert!(rows <= 100 + 51 + 1, "{rows} rows");
    // What is past its deadline is found there all the same.
    site.execute("UPDATE requests SET deadline = now() - interval '1 hour' WHERE tenant = 'big' AND partition_id = 7 AND seq % 100 < 4")
        .await;
    let ended = TenantPoll { ended_only: true, ..turns(5) };
    let (rows, handed_out) = reads(&site, queue, 5, &ended).await;
    assert_eq!(handed_out, 5);
    assert!(rows <= 5 + 51 + 1, "{rows} rows");
}

/// As for requests of no tenant: stamps, hand-backs and resets change no indexed column.
#[tokio::test]
async fn stamps_of_tenants_are_heap_only_updates() {
    assert_heap_only(share_of_stamps).await;
}

async fn share_of_stamps() -> f64 {
    let (site, queue) = Site::with_tenants().await;
    let store = Store::open(site.database.url(), &StoreOptions::default()).unwrap();
    for tenant in 0..20 {
        let mut requests = requests_of(&format!("tenant {tenant}/"), 100);
        for request in &mut requests {
            request.payload = Some(vec![7; 2000].into());
        }
        store.enqueue(&requests).await.unwrap();
    }
    let mut stamped = 0;
    loop {
        let batch = store.dispatch_tenants(queue, "a", 100, GENERATION, &turns(10)).await.unwrap().requests;
        if batch.is_empty() {
            break;
        }
        stamped += batch.len() as i64;
        store.undispatch("a", &stamps(&batch[..4]), false).await.unwrap();
        let again = store.dispatch_tenants(queue, "a", 4, GENERATION, &turns(10)).await.unwrap().requests;
        stamped += 4 + again.len() as i64;
        let given: Vec<_> = stamps(&batch[4..]).iter().map(completion).collect();
        store.ack("a", &given).await.unwrap();
    }
    assert!(stamped >= 2000, "{stamped}");
    // Sessions report what they counted when they end, at the latest.
    store.close().await;
    hot_share(&site, stamped).await
}
