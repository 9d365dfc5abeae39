//! What befalls processes that serve: signals, and their connections to the database.

use std::time::Duration;

use leasehold_testkit::proxy;
use rand::RngExt;
use tokio::time::{sleep, timeout};

use crate::{
    clock::Clock,
    fleet::Server,
    schedule::{Deck, Fault, ON_SERVERS, Schedule, Target},
    world::LEASE_TTL,
};

/// Statements whose replies, or who themselves, are lost; the empty text is whichever comes next.
const STATEMENTS: [&str; 17] = [
    "",
    "Store::dispatch",
    "Store::dispatch_tenants",
    "Store::ack",
    "Store::retry",
    "Store::defer_dispatches",
    "Store::undispatch",
    "Store::reset_stale",
    "Store::heartbeat",
    "Store::acquire_partitions",
    "Store::release_partitions",
    "Store::in_flight",
    "Store::exchange_slots_of_many",
    "Store::admit_quota",
    "Store::release_quota_slots",
    "Store::renew_quota_holder",
    "Store::register_quota_holder",
];

/// How long a fault waits for its statement.
const RARE: Duration = Duration::from_millis(700);

pub(crate) async fn deal(servers: &mut [Server], schedule: &Schedule, clock: Clock, seed: u64, end: f64) {
    let mut deck = Deck::new(&ON_SERVERS, seed);
    let mut to_come = Vec::new();
    while deck.goes_on(clock, end) {
        sleep(Duration::from_millis(deck.rng.random_range(100..600))).await;
        for server in &mut *servers {
            server.keep_up();
        }
        let fault = deck.deal();
        let at = match fault {
            // The first lives from beginning to end.
            Fault::Kill | Fault::Term => deck.rng.random_range(1..servers.len()),
            _ => deck.rng.random_range(0..servers.len()),
        };
        let target = Target::Server(at);
        schedule.strike(fault, target, strike(&mut servers[at], fault, &mut deck, &mut to_come)).await;
    }
    to_come.into_iter().for_each(proxy::Fault::call_off);
}

/// Adds what may happen later `to_come`.
async fn strike(server: &mut Server, fault: Fault, deck: &mut Deck, to_come: &mut Vec<proxy::Fault>) {
    match fault {
        Fault::Kill => {
            server.running().kill().await;
            sleep(Duration::from_millis(deck.rng.random_range(0..800))).await;
            server.start_again();
        }
        Fault::Term => {
            server.stop().await;
            server.start_again();
        }
        Fault::Stop => {
            server.running().signal("STOP").await;
            sleep(LEASE_TTL.mul_f64(deck.rng.random_range(1.1..1.5))).await;
            server.running().signal("CONT").await;
        }
        Fault::Cut => server.proxy.cut(),
        Fault::ShortFreeze => freeze(server, deck.rng.random_range(0.1..0.5)).await,
        Fault::LongFreeze => freeze(server, deck.rng.random_range(1.1..1.5)).await,
        Fault::LostReplies | Fault::FailedRequests => {
            for _ in 0..4 {
                let marker = STATEMENTS[deck.rng.random_range(0..STATEMENTS.len())];
                let happens = if fault == Fault::LostReplies {
                    server.proxy.lose_reply_matching(marker)
                } else {
                    server.proxy.fail_before_matching(marker)
                };
                // A rare statement's fault happens later, then.
                if timeout(RARE, happens.reached()).await.is_err() {
                    to_come.push(happens);
                }
            }
        }
        _ => unreachable!("{fault:?} is no fault of a process"),
    }
}

async fn freeze(server: &Server, leases: f64) {
    server.proxy.freeze();
    sleep(LEASE_TTL.mul_f64(leases)).await;
    server.proxy.thaw();
}
