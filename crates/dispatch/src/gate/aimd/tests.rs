//! On a clock that tests move.

use rand::SeedableRng;
use tokio::time::advance;

use super::*;
use crate::{
    backend::{Answer, ErrorCode, Failure},
    gate::asking::{ask, passed, waits},
};

fn gate(min: f64, max: f64, start: f64) -> Aimd {
    let window = Window { min, max, start, hold: Duration::from_secs(1) };
    Aimd::new(window, StdRng::seed_from_u64(7))
}

fn success() -> Outcome {
    Outcome::Success(Answer { status: 200, content_type: None, body: "ok".into(), usage: None })
}

fn retry(shed: bool, retry_after: Option<Duration>) -> Outcome {
    Outcome::Retry { failure: Failure::new(ErrorCode::BackendError, "busy"), retry_after, shed }
}

/// One call that ends so.
async fn call(gate: &Aimd, outcome: &Outcome) {
    let mut pass = passed(ask(gate).await);
    pass.release.sent();
    pass.release.finished(outcome);
}

/// So many fit at once.
async fn window(gate: &Aimd) -> usize {
    let mut held = Vec::new();
    while let Decision::Continue(pass) = ask(gate).await {
        held.push(pass.release);
    }
    held.len()
}

#[tokio::test(start_paused = true)]
async fn each_success_makes_room_for_one_more_up_to_the_largest_window() {
    let gate = gate(1.0, 256.0, 1.0);
    for size in 1..=300 {
        assert_eq!(window(&gate).await, size.min(256));
        call(&gate, &success()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_shed_halves_the_window_once_for_each_hold_down_to_the_smallest() {
    let gate = gate(1.0, 256.0, 16.0);
    let mut under_way = Vec::new();
    for _ in 0..16 {
        under_way.push(passed(ask(&gate).await));
    }
    for pass in &mut under_way {
        pass.release.finished(&retry(true, None));
    }
    drop(under_way);
    assert_eq!(window(&gate).await, 8, "a burst of sheds is one sign");
    call(&gate, &success()).await;
    assert_eq!(window(&gate).await, 8, "held: it does not grow either");
    advance(Duration::from_millis(999)).await;
    call(&gate, &retry(true, None)).await;
    assert_eq!(window(&gate).await, 8);
    advance(Duration::from_millis(1)).await;
    call(&gate, &success()).await;
    assert_eq!(window(&gate).await, 9);
    for wanted in [4, 2, 1, 1] {
        call(&gate, &retry(true, None)).await;
        assert_eq!(window(&gate).await, wanted);
        advance(Duration::from_secs(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_smallest_window_is_kept() {
    let gate = gate(3.0, 8.0, 4.0);
    call(&gate, &retry(true, None)).await;
    assert_eq!(window(&gate).await, 3);
}

#[tokio::test(start_paused = true)]
async fn what_is_neither_success_nor_shed_leaves_the_window() {
    let gate = gate(1.0, 256.0, 4.0);
    call(&gate, &retry(false, None)).await;
    call(&gate, &retry(false, Some(Duration::from_secs(9)))).await;
    call(&gate, &Outcome::Failure(Failure::new(ErrorCode::BackendError, "no"))).await;
    assert_eq!(window(&gate).await, 4);
}

#[tokio::test(start_paused = true)]
async fn retry_after_closes_the_gate_for_as_long_at_most_a_minute() {
    for (asked, closed) in [(10, 10), (60, 60), (3600, 60)] {
        let gate = gate(1.0, 256.0, 4.0);
        call(&gate, &retry(true, Some(Duration::from_secs(asked)))).await;
        let left = Duration::from_secs(closed);
        let mut told = Vec::new();
        for _ in 0..20 {
            let after = waits(ask(&gate).await).after.unwrap();
            assert!(
                (left..left.mul_f64(1.25)).contains(&after),
                "{after:?}, not {left:?} and up to a quarter"
            );
            told.push(after);
        }
        told.dedup();
        assert!(told.len() > 1, "not all come back at once");
        // A shorter wish does not open it sooner.
        gate.shared.learn(&retry(true, Some(Duration::from_secs(1))));
        advance(left - Duration::from_millis(1)).await;
        waits(ask(&gate).await);
        advance(Duration::from_millis(1)).await;
        assert_eq!(window(&gate).await, 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_slot_comes_back_once_whatever_the_path() {
    let gate = gate(1.0, 1.0, 1.0);
    for ends in [
        (|_| {}) as fn(&mut Release),
        Release::sent,
        |release| release.finished(&success()),
        |release| release.finished(&retry(true, None)),
        |release| release.finished(&Outcome::Failure(Failure::new(ErrorCode::BackendError, "no"))),
    ] {
        let mut pass = passed(ask(&gate).await);
        assert_eq!(gate.budget(), 0.0);
        let turned = waits(ask(&gate).await);
        assert!(turned.after.is_none());
        let freed = turned.freed.unwrap();
        ends(&mut pass.release);
        assert_eq!((freed.count(), window(&gate).await), (0, 0), "held until it is dropped");
        drop(pass);
        freed.wait().await;
        assert_eq!((freed.count(), gate.budget()), (1, 1.0));
    }
}

#[tokio::test(start_paused = true)]
async fn the_budget_is_what_is_free_even_when_the_window_shrank_below_what_is_under_way() {
    let gate = gate(1.0, 256.0, 4.0);
    assert_eq!(gate.budget(), 1.0);
    let held: Vec<_> = [ask(&gate).await, ask(&gate).await, ask(&gate).await].map(passed).into();
    assert_eq!(gate.budget(), 0.25);
    gate.shared.learn(&retry(true, None));
    assert_eq!(gate.budget(), 0.0);
    waits(ask(&gate).await);
    drop(held);
    assert_eq!(gate.budget(), 1.0);
}

#[tokio::test(start_paused = true)]
async fn a_window_of_two_and_a_half_is_full_with_two() {
    let gate = gate(1.0, 256.0, 5.0);
    gate.shared.learn(&retry(true, None));
    let held = [ask(&gate).await, ask(&gate).await].map(passed);
    waits(ask(&gate).await);
    assert_eq!(gate.budget(), 0.0);
    drop(held);
}
