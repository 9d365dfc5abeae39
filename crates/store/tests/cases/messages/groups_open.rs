//! Groups while transactions are open: a sender blocks no completion, and neither misses the other.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use leasehold_store::Reply;
use tokio::task::JoinSet;

use super::{bodies, grouped, site};
use crate::support::{Open, Site, connect, wait_until};

async fn begin(site: &Site, isolation: &str) -> Open {
    let open = site.begin().await;
    open.execute(&format!("SET TRANSACTION ISOLATION LEVEL {isolation}")).await;
    open
}

/// Sends in a transaction of its own, which stays open.
async fn sending(site: &Site, isolation: &str, body: &str) -> Open {
    let open = begin(site, isolation).await;
    open.execute(&format!("SELECT send('q', '{body}', group_id => 'g')")).await;
    open
}

async fn received_after_a_look(site: &Site, body: &str) {
    wait_until("the next of the group is received", async || bodies(&site.receive(256).await) == [body])
        .await;
}

#[tokio::test]
async fn open_sender_blocks_no_completion_and_its_message_follows() {
    for isolation in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        let site = site().await;
        site.send_grouped(&[("g", "a")]).await;
        let head = site.receive_one().await;
        let open = sending(&site, isolation, "b").await;
        // It returns, though the sender is open.
        site.complete(&head).await;
        assert_eq!(site.receive(256).await, []);
        open.commit().await;
        received_after_a_look(&site, "b").await;
        site.receive(256).await;
        assert_eq!(site.count("group_checks").await, 0, "{isolation}");
    }
}

#[tokio::test]
async fn what_is_committed_of_a_group_goes_on_while_a_sender_is_open() {
    for isolation in ["READ COMMITTED", "REPEATABLE READ"] {
        let site = site().await;
        site.send_grouped(&[("g", "a"), ("g", "b")]).await;
        let head = site.receive_one().await;
        let open = sending(&site, isolation, "c").await;
        site.complete(&head).await;
        let next = site.receive_one().await;
        assert_eq!(bodies(std::slice::from_ref(&next)), ["b"], "{isolation}");
        site.complete(&next).await;
        open.roll_back().await;
        assert_eq!(site.receive(256).await, [], "{isolation}");
        site.send_grouped(&[("g", "d")]).await;
        received_after_a_look(&site, "d").await;
    }
}

#[tokio::test]
async fn completion_of_any_isolation_frees_the_group() {
    for isolation in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        let site = site().await;
        site.send_grouped(&[("g", "a")]).await;
        let head = site.receive_one().await;
        let open = begin(&site, isolation).await;
        open.execute("SELECT count(*) FROM requests").await;
        site.send_grouped(&[("g", "b")]).await;
        open.client
            .execute("SELECT complete('q', $1, $2)", &[&head.seq, &head.lock_token])
            .await
            .unwrap_or_else(|e| panic!("{isolation}: {e:?}"));
        assert_eq!(site.receive(256).await, [], "it is not committed");
        open.commit().await;
        received_after_a_look(&site, "b").await;
    }
}

#[tokio::test]
async fn completion_that_rolls_back_frees_nothing() {
    let site = site().await;
    let seqs = site.send_grouped(&[("g", "a"), ("g", "b")]).await;
    let head = site.receive_one().await;
    let open = site.begin().await;
    open.client.execute("SELECT complete('q', $1, $2)", &[&head.seq, &head.lock_token]).await.unwrap();
    open.roll_back().await;
    assert_eq!(site.receive(256).await, []);
    site.lapse_lock(seqs[0]).await;
    assert_eq!(bodies(&site.receive(256).await), ["a"]);
}

/// The order of a group is the order of the commits: a second sender waits for the first.
#[tokio::test]
async fn senders_of_one_group_go_one_after_the_other() {
    let site = site().await;
    let first = sending(&site, "READ COMMITTED", "first").await;
    let second = tokio::spawn({
        let store = site.store.clone();
        async move { store.send_one("q", &grouped("g", "second")).await.unwrap() }
    });
    site.until_blocked_by(&first).await;
    // Another group does not wait.
    site.send_grouped(&[("h", "other")]).await;
    first.commit().await;
    second.await.unwrap();
    let taken = site.drain(256).await;
    let of_group: Vec<_> = bodies(&taken).into_iter().filter(|body| *body != "other").collect();
    assert_eq!(of_group, ["first", "second"]);
    assert_eq!(taken.len(), 3);
}

/// A sender of another isolation leaves the making ready to the next look.
#[tokio::test]
async fn message_sent_under_repeatable_read_is_received() {
    let site = site().await;
    let open = begin(&site, "REPEATABLE READ").await;
    open.execute("SELECT count(*) FROM requests").await;
    open.execute("SELECT send_many('q', ARRAY['a', 'b'], group_ids => ARRAY['g', 'g'])").await;
    open.commit().await;
    assert_eq!(bodies(&site.receive(256).await), ["a"]);
    let open = begin(&site, "REPEATABLE READ").await;
    open.execute("SELECT enqueue('q', 'c', group_id => 'h')").await;
    open.commit().await;
    assert_eq!(bodies(&site.receive(256).await), ["c"]);
}

/// Many senders and many receivers of few groups, some of them at odds: nothing is lost, and each group is in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn racing_senders_and_receivers_keep_every_group_in_order() {
    const SENDERS: i64 = 4;
    const EACH: i64 = 60;
    let site = site().await;
    let mut senders = JoinSet::new();
    for sender in 0..SENDERS {
        let url = site.database.url().to_owned();
        senders.spawn(async move {
            let client = connect(&url).await;
            for n in 0..EACH {
                let isolation = if n % 3 == 0 { "REPEATABLE READ" } else { "READ COMMITTED" };
                let statement = format!(
                    "BEGIN ISOLATION LEVEL {isolation}; SELECT send('q', '{sender}', group_id => 'g{}'); {}",
                    n % 3,
                    if n % 7 == 0 { "ROLLBACK" } else { "COMMIT" }
                );
                while let Err(error) = client.batch_execute(&statement).await {
                    assert_eq!(crate::support::refusal(&error).0, "40001");
                    client.batch_execute("ROLLBACK").await.unwrap();
                }
            }
        });
    }
    let kept = SENDERS * (EACH - (EACH + 6) / 7);
    let sent = Arc::new(AtomicBool::new(false));
    let mut receivers = JoinSet::new();
    for _ in 0..3 {
        let (store, sent) = (site.store.clone(), Arc::clone(&sent));
        receivers.spawn(async move {
            let mut order = Vec::new();
            let mut idle = 0;
            while idle < 200 || !sent.load(Ordering::SeqCst) {
                let receive = leasehold_store::Receive { max: 5, ..Default::default() };
                let received = store.receive("q", &receive).await.unwrap();
                idle = if received.is_empty() { idle + 1 } else { 0 };
                for message in received {
                    order.push((message.group_id.clone().unwrap(), message.seq));
                    store.complete("q", message.lock().unwrap(), &Reply::default()).await.unwrap();
                }
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
            order
        });
    }
    senders.join_all().await;
    sent.store(true, Ordering::SeqCst);
    let all: Vec<_> = receivers.join_all().await.into_iter().flatten().collect();
    assert_eq!(i64::try_from(all.len()).unwrap(), kept);
    assert_eq!(site.store.queue_stats("q").await.unwrap().total, 0);
    // By the receipts' times each group went in order of its numbers.
    let in_order: bool = site
        .value(
            "SELECT bool_and(seq > before) FROM (SELECT p.seq, lag(p.seq) OVER (PARTITION BY g.group_id ORDER BY p.settled_at)
                AS before FROM receipts p JOIN unnest($1::bigint[], $2::text[]) AS g (seq, group_id) USING (seq)) AS x
             WHERE before IS NOT NULL",
            &[
                &all.iter().map(|(_, seq)| *seq).collect::<Vec<_>>(),
                &all.iter().map(|(group, _)| group.clone()).collect::<Vec<_>>(),
            ],
        )
        .await;
    assert!(in_order);
}

/// One that came due goes before the one that another has just taken, if that one is given back.
#[tokio::test]
async fn look_that_would_put_back_what_another_is_taking_waits_for_nobody() {
    let site = site().await;
    let group = |body: &str| super::grouped("g", body);
    let at = site.store.now().await.unwrap() + jiff::SignedDuration::from_hours(1);
    let first = site.store.schedule("q", &[group("first")], at).await.unwrap()[0];
    site.store.send_one("q", &group("second")).await.unwrap();
    let open = site.begin().await;
    open.execute("SELECT receive('q')").await;
    site.come_due(first).await;
    assert_eq!(site.receive(256).await, []);
    site.execute("SELECT maintain()").await;
    open.roll_back().await;
    received_after_a_look(&site, "first").await;
}
