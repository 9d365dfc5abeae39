//! Holders that compete for one key: whoever exchanges slots leaves one to a holder that has none and keeps asking.

use crate::{quota_slots::quota, support::Site};

impl Site {
    /// Gives one back and asks for one, by the statement for one key or by that for many.
    async fn retake(&self, holder: &str, max: i64, many: bool) -> i32 {
        if !many {
            return self.store.exchange_quota_slots(holder, &quota("k", max), 1, 1).await.unwrap();
        }
        let exchange = leasehold_store::SlotExchange { key: "k", max, default_key: None, give_back: 1, n: 1 };
        self.store.exchange_slots_of_many(holder, &[exchange]).await.unwrap()[0].unwrap()
    }

    /// However slow this machine is: nobody stops waiting, and no turn ends.
    async fn stop_the_clock(&self) {
        let later = "UPDATE quota_keys SET waits_until = waits_until + interval '1 hour',
            left_until = left_until + interval '1 hour', turn_at = turn_at + interval '1 hour'";
        self.execute(later).await;
    }

    /// The last turn was so long ago that another is due.
    async fn end_turn(&self) {
        self.execute("UPDATE quota_keys SET turn_at = clock_timestamp() - interval '6 seconds'").await;
    }
}

#[tokio::test]
async fn an_exchange_leaves_a_slot_to_a_holder_that_has_none_and_takes_turns_with_it() {
    for many in [false, true] {
        let site = Site::open().await;
        site.holders(&["a", "b"]).await;
        assert_eq!(site.take("a", "k", 1, 1).await, 1);
        assert_eq!(site.retake("a", 1, many).await, 1, "nobody else asks");
        assert_eq!(site.take("b", "k", 1, 1).await, 0);
        site.stop_the_clock().await;
        assert_eq!(site.retake("a", 1, many).await, 0, "b has waited long enough");
        site.stop_the_clock().await;
        assert_eq!(site.take("a", "k", 1, 1).await, 0, "it is b's alone");
        assert_eq!(site.retake("b", 1, many).await, 1);
        // Now a waits, and b keeps it for a while.
        assert_eq!(site.retake("a", 1, many).await, 0);
        site.stop_the_clock().await;
        assert_eq!(site.retake("b", 1, many).await, 1);
        site.end_turn().await;
        assert_eq!(site.retake("b", 1, many).await, 0);
        assert_eq!(site.retake("a", 1, many).await, 1);
    }
}

#[tokio::test]
async fn a_holder_that_has_a_slot_or_asks_no_more_has_no_turn() {
    for many in [false, true] {
        let site = Site::open().await;
        site.holders(&["a", "b"]).await;
        assert_eq!(site.take("b", "k", 1, 3).await, 1);
        assert_eq!(site.take("a", "k", 2, 3).await, 2);
        assert_eq!(site.take("b", "k", 1, 3).await, 0);
        assert_eq!(site.retake("a", 3, many).await, 1, "b has one");
        site.give_back("b", "k", 1).await;
        assert_eq!(site.take("a", "k", 1, 3).await, 1);
        assert_eq!(site.take("b", "k", 1, 3).await, 0);
        site.execute("UPDATE quota_keys SET waits_until = clock_timestamp()").await;
        assert_eq!(site.retake("a", 3, many).await, 1, "b has gone away");
        // Whoever leaves a gap needs no turns.
        assert_eq!(site.take("b", "k", 1, 3).await, 0);
        site.give_back("a", "k", 1).await;
        assert_eq!(site.take("a", "k", 1, 3).await, 1);
    }
}
