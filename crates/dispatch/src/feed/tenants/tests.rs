use rand::SeedableRng;
use tokio::time::advance;

use super::*;
use crate::quota::Source;

const SECOND: Duration = Duration::from_secs(1);

fn tenants() -> Tenants {
    Tenants::new(Arc::default(), StdRng::seed_from_u64(1))
}

/// The gate turned all away, saying no more.
fn turned() -> Fared {
    Fared { turned: Some(Turned::by("gate")), ..Fared::default() }
}

fn passed(passed: u32) -> Fared {
    Fared { passed, ..Fared::default() }
}

fn learn(tenants: &mut Tenants, fared: impl IntoIterator<Item = (&'static str, Fared)>) {
    tenants.learn(fared.into_iter().map(|(tenant, fared)| (tenant.to_owned(), fared)).collect());
}

fn caps(tenants: &mut Tenants) -> Vec<(String, i32)> {
    // So many that a tenant's turn is no bound.
    tenants.poll(10_000).caps
}

fn cap(tenants: &mut Tenants, tenant: &str) -> Option<i32> {
    caps(tenants).into_iter().find(|(name, _)| name == tenant).map(|(_, cap)| cap)
}

#[tokio::test(start_paused = true)]
async fn a_tenant_turned_away_is_left_alone_longer_and_longer_up_to_a_second_and_a_quarter() {
    let mut tenants = tenants();
    learn(&mut tenants, [("a", turned()), ("b", passed(3))]);
    assert_eq!(caps(&mut tenants), [("a".to_owned(), 0)], "nothing is known against b");
    let mut left_alone = Vec::new();
    for _ in 0..8 {
        let began = Instant::now();
        while cap(&mut tenants, "a") == Some(0) {
            advance(Duration::from_millis(1)).await;
        }
        left_alone.push(began.elapsed());
        assert_eq!(cap(&mut tenants, "a"), Some(1), "one is tried");
        learn(&mut tenants, [("a", turned())]);
    }
    assert!(left_alone[0] >= BACKOFF.0 && left_alone[0] <= BACKOFF.0.mul_f64(1.3), "{left_alone:?}");
    assert!(left_alone.iter().all(|time| *time <= SECOND.mul_f64(1.26)), "{left_alone:?}");
    assert!(left_alone[7] >= SECOND, "never sooner: {left_alone:?}");
}

#[tokio::test(start_paused = true)]
async fn the_gates_own_word_is_taken_within_bounds() {
    for (said, taken) in [(Duration::from_millis(300), Duration::from_millis(300)), (60 * SECOND, LONGEST)] {
        let mut tenants = tenants();
        let turned = Turned { after: Some(said), ..Turned::by("gate") };
        learn(&mut tenants, [("a", Fared { turned: Some(turned), ..Fared::default() })]);
        advance(taken - Duration::from_millis(1)).await;
        assert_eq!(cap(&mut tenants, "a"), Some(0));
        advance(taken).await;
        assert_eq!(cap(&mut tenants, "a"), Some(1));
    }
}

#[tokio::test(start_paused = true)]
async fn tries_that_pass_double_until_the_tenant_is_free() {
    let mut tenants = tenants();
    learn(&mut tenants, [("a", turned())]);
    advance(SECOND).await;
    for expected in [1, 2, 4, 8, 16, 32, 64, 128, 256] {
        assert_eq!(cap(&mut tenants, "a"), Some(expected));
        learn(&mut tenants, [("a", passed(expected.unsigned_abs()))]);
    }
    assert_eq!(cap(&mut tenants, "a"), None);
}

#[tokio::test(start_paused = true)]
async fn as_many_are_asked_for_as_were_given_back() {
    let mut tenants = tenants();
    let source = Source::default();
    let turned = Turned { freed: Some(source.follow()), ..Turned::by("gate") };
    learn(&mut tenants, [("a", Fared { turned: Some(turned), ..Fared::default() })]);
    source.fire(3);
    assert_eq!(cap(&mut tenants, "a"), Some(3));
    // They passed, and what is given back from then on counts anew.
    source.fire(1);
    learn(&mut tenants, [("a", passed(3))]);
    assert_eq!(cap(&mut tenants, "a"), Some(1), "it came while they were asked for");
    learn(&mut tenants, [("a", passed(1))]);
    assert_eq!(cap(&mut tenants, "a"), Some(0));
    source.fire(1);
    assert_eq!(cap(&mut tenants, "a"), Some(1));
    // However busy it is, a limit that was raised is noticed.
    advance(2 * SECOND).await;
    assert_eq!(cap(&mut tenants, "a"), Some(2), "one given back, and one to try");
}

#[tokio::test(start_paused = true)]
async fn a_slot_given_back_wakes_the_feeder() {
    let look = Arc::new(Notify::new());
    let mut tenants = Tenants::new(Arc::clone(&look), StdRng::seed_from_u64(1));
    let source = Source::default();
    let turned = Turned { freed: Some(source.follow()), ..Turned::by("gate") };
    learn(&mut tenants, [("a", Fared { turned: Some(turned), ..Fared::default() })]);
    source.fire(1);
    tokio::time::timeout(SECOND, look.notified()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_tenant_that_has_nothing_for_us_is_forgotten() {
    let mut tenants = tenants();
    learn(&mut tenants, [("a", turned())]);
    learn(&mut tenants, []);
    assert_eq!(cap(&mut tenants, "a"), Some(0), "it was not asked");
    advance(SECOND).await;
    assert_eq!(cap(&mut tenants, "a"), Some(1));
    learn(&mut tenants, []);
    assert_eq!((cap(&mut tenants, "a"), tenants.next()), (None, None));
}

#[tokio::test(start_paused = true)]
async fn while_a_job_waits_at_the_gate_no_more_are_brought() {
    let mut tenants = tenants();
    learn(&mut tenants, [("a", turned())]);
    tenants.waits("a");
    tenants.waits("a");
    advance(SECOND).await;
    assert_eq!((cap(&mut tenants, "a"), tenants.next()), (Some(0), None));
    tenants.waited("a");
    assert_eq!(cap(&mut tenants, "a"), Some(0));
    tenants.waited("a");
    assert_eq!(cap(&mut tenants, "a"), Some(1));
}

#[tokio::test(start_paused = true)]
async fn thousands_turned_away_are_tried_a_few_at_a_time() {
    let mut tenants = tenants();
    tenants.learn((0..5000).map(|n| (format!("t{n:04}"), turned())).collect());
    advance(10 * SECOND).await;
    let tried = |tenants: &mut Tenants| caps(tenants).iter().filter(|(_, cap)| *cap > 0).count();
    assert_eq!(tried(&mut tenants), 64);
    assert_eq!(tried(&mut tenants), 0);
    advance(SECOND / 10).await;
    let next = tried(&mut tenants);
    assert!((18..=21).contains(&next), "{next} in a tenth of a second");
}

#[tokio::test(start_paused = true)]
async fn the_ring_goes_on_where_it_ended_and_around() {
    let mut tenants = tenants();
    learn(&mut tenants, [("a", turned()), ("b", turned()), ("c", turned())]);
    tenants.polled(Some("b".into()));
    let poll = tenants.poll(100);
    let names: Vec<_> = poll.caps.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!((names, poll.after.as_deref(), poll.quantum), (vec!["c", "a", "b"], Some("b"), 6));
}
