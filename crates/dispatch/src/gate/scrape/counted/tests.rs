//! On a clock that tests move.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::{advance, sleep};

use super::*;
use crate::gate::asking::{ask, passed, refused};

const REFRESH: Duration = Duration::from_secs(5);

/// A gate whose readings are what `free` holds; NaN fails, and infinity hangs.
fn gate(free: &Arc<AtomicU64>) -> Counted {
    let free = Arc::clone(free);
    Counted::start(REFRESH, CancellationToken::new(), move || {
        let free = f64::from_bits(free.load(Ordering::SeqCst));
        async move {
            match free {
                free if free.is_nan() => Err("no reading".to_owned()),
                free if free.is_infinite() => std::future::pending().await,
                free => Ok(free),
            }
        }
    })
}

fn free(value: f64) -> Arc<AtomicU64> {
    Arc::new(AtomicU64::new(value.to_bits()))
}

fn set(free: &AtomicU64, value: f64) {
    free.store(value.to_bits(), Ordering::SeqCst);
}

/// So many pass, and are sent, before one is refused.
async fn admitted(gate: &Counted) -> usize {
    let mut count = 0;
    loop {
        match ask(gate).await {
            Decision::Continue(mut pass) => {
                pass.release.sent();
                count += 1;
            }
            Decision::Refuse(_) => return count,
            other => panic!("{other:?}"),
        }
    }
}

/// Lets the reader run.
async fn settle() {
    sleep(Duration::from_millis(1)).await;
}

#[tokio::test(start_paused = true)]
async fn as_many_pass_as_are_free_and_no_more_until_the_next_reading() {
    let free = free(4.9);
    let gate = gate(&free);
    assert_eq!((gate.budget(), admitted(&gate).await), (0.0, 0), "nothing before the first reading");
    settle().await;
    assert_eq!(gate.budget(), 1.0);
    assert_eq!(admitted(&gate).await, 4);
    assert_eq!(gate.budget(), 0.0);
    advance(Duration::from_secs(3)).await;
    let after = refused(ask(&gate).await).after.unwrap();
    assert_eq!(after, Duration::from_millis(1999), "until the next reading");
    set(&free, 1.0);
    advance(after).await;
    settle().await;
    assert_eq!(admitted(&gate).await, 1);
}

#[tokio::test(start_paused = true)]
async fn what_a_reading_leaves_is_not_added_to_the_next() {
    let free = free(4.0);
    let gate = gate(&free);
    for _ in 0..3 {
        settle().await;
        advance(REFRESH).await;
    }
    settle().await;
    assert_eq!(admitted(&gate).await, 4);
}

#[tokio::test(start_paused = true)]
async fn a_failed_reading_or_one_below_zero_admits_nothing() {
    for bad in [f64::NAN, -3.0, 0.0, 0.99] {
        let free = free(4.0);
        let gate = gate(&free);
        settle().await;
        set(&free, bad);
        advance(REFRESH).await;
        settle().await;
        assert_eq!((gate.budget(), admitted(&gate).await), (0.0, 0), "{bad}");
        set(&free, 2.0);
        advance(REFRESH).await;
        settle().await;
        assert_eq!(admitted(&gate).await, 2, "after {bad}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_arithmetic_takes_from_one_leaves_one() {
    let gate = gate(&free(10.0 * (1.0 - 0.9)));
    settle().await;
    assert_eq!(admitted(&gate).await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_reading_is_good_until_the_next_should_have_come() {
    let free = free(4.0);
    let gate = gate(&free);
    settle().await;
    set(&free, f64::INFINITY);
    advance(Duration::from_millis(4990)).await;
    assert_eq!(gate.budget(), 1.0);
    advance(Duration::from_millis(20)).await;
    assert_eq!((gate.budget(), admitted(&gate).await), (0.0, 0));
    assert!(refused(ask(&gate).await).freed.is_some());
}

#[tokio::test(start_paused = true)]
async fn one_let_pass_while_a_reading_is_under_way_counts_against_it() {
    let gate = Counted {
        shared: Arc::new(Shared {
            refresh: REFRESH,
            state: Mutex::new(State {
                credit: 0,
                unseen: 0,
                reading: 0,
                next: Instant::now(),
                good_until: Instant::now(),
            }),
            freed: Source::default(),
        }),
    };
    gate.shared.begin();
    gate.shared.end(Some(4.0));
    passed(ask(&gate).await).release.sent();
    gate.shared.begin();
    passed(ask(&gate).await).release.sent();
    gate.shared.end(Some(3.0));
    assert_eq!(admitted(&gate).await, 2);
}

#[tokio::test(start_paused = true)]
async fn one_that_is_not_sent_leaves_its_place_but_only_within_its_reading() {
    let gate = gate(&free(1.0));
    settle().await;
    let pass = passed(ask(&gate).await);
    let turned = refused(ask(&gate).await).freed.unwrap();
    drop(pass);
    turned.wait().await;
    let mut sent = passed(ask(&gate).await);
    sent.release.sent();
    drop(sent);
    refused(ask(&gate).await);

    advance(REFRESH).await;
    settle().await;
    let stale = passed(ask(&gate).await);
    advance(REFRESH).await;
    settle().await;
    assert_eq!(admitted(&gate).await, 1);
    drop(stale);
    assert_eq!(admitted(&gate).await, 0, "the next reading has seen that it was not sent");
}

#[tokio::test(start_paused = true)]
async fn who_waits_learns_of_a_reading() {
    let free = free(0.0);
    let gate = gate(&free);
    settle().await;
    let freed = refused(ask(&gate).await).freed.unwrap();
    set(&free, 2.0);
    tokio::time::timeout(REFRESH, freed.wait()).await.expect("the next reading frees");
}
