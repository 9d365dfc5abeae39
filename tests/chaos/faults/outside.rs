//! What befalls producers and receivers.

use std::time::Duration;

use leasehold_testkit::proxy::FaultProxy;
use rand::RngExt;
use tokio::time::{sleep, timeout};

use crate::{
    clock::Clock,
    outside::Receiver,
    schedule::{Deck, Fault, OUTSIDE, Schedule, Target},
};

/// How long a fault waits for its statement.
const RARE: Duration = Duration::from_secs(1);

pub(crate) async fn deal(
    proxy: &FaultProxy,
    receivers: &mut [Receiver],
    schedule: &Schedule,
    clock: Clock,
    seed: u64,
    end: f64,
) {
    let mut deck = Deck::new(&OUTSIDE, seed);
    while deck.goes_on(clock, end) {
        sleep(Duration::from_millis(deck.rng.random_range(800..3500))).await;
        for receiver in &mut *receivers {
            receiver.keep_up();
        }
        let fault = deck.deal();
        let blow = strike(proxy, receivers, fault, &mut deck);
        schedule.strike(fault, Target::Elsewhere, blow).await;
    }
}

async fn strike(proxy: &FaultProxy, receivers: &mut [Receiver], fault: Fault, deck: &mut Deck) {
    let lost = match fault {
        Fault::ReceiverKill => {
            let at = deck.rng.random_range(0..receivers.len());
            return receivers[at].kill().await;
        }
        Fault::OutsideCut => return proxy.cut(),
        Fault::OutsideFreeze => {
            proxy.freeze();
            sleep(Duration::from_millis(deck.rng.random_range(500..2000))).await;
            return proxy.thaw();
        }
        Fault::LostEnqueue => proxy.lose_reply_matching("leasehold.enqueue("),
        Fault::LostCommit => proxy.lose_reply_matching("COMMIT"),
        Fault::FailedCommit => proxy.fail_before_matching("COMMIT"),
        _ => unreachable!("{fault:?} is no fault out there"),
    };
    let _ = timeout(RARE, lost.reached()).await;
}
