//! `until` returns when it may, and says what it waited for when it may not.

use std::time::Duration;

use leasehold_testkit::wait::until;

use crate::DEADLINE;

#[tokio::test]
async fn until_returns_once_the_condition_holds() {
    let mut looks = 0;
    until("the third look", DEADLINE, async || {
        looks += 1;
        looks == 3
    })
    .await;
    assert_eq!(looks, 3);
}

#[tokio::test]
#[should_panic(expected = "until pigs fly")]
async fn until_names_what_did_not_come() {
    until("pigs fly", Duration::from_millis(30), async || false).await;
}

#[tokio::test]
#[should_panic(expected = "until the look ends")]
async fn until_does_not_wait_for_a_look_that_hangs() {
    until("the look ends", Duration::from_millis(30), async || std::future::pending().await).await;
}
