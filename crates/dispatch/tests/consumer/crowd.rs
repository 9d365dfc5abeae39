//! Everything at once: peers that poll, settle, die, leave and lose replies in an order drawn from a seed.

use std::{collections::HashSet, time::Duration};

use leasehold_dispatch::Polled;
use leasehold_store::{Deferral, Stamp};
use rand::{Rng, RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use tokio::time::timeout;

use crate::bench::{Bench, Peer, completions, hasty, options, retry, stamp, stamps};

const STEPS: usize = 250;
const STATEMENTS: [&str; 14] = [
    "Store::arrivals",
    "Store::pending",
    "Store::dispatch",
    "Store::ack",
    "Store::retry",
    "Store::defer_dispatches",
    "Store::undispatch",
    "Store::set_generation",
    "Store::in_flight",
    "Store::heartbeat",
    "Store::acquire_partitions",
    "Store::release_partitions",
    "Store::set_draining",
    "Store::reset_stale",
];

/// A peer and the dispatches that its workers have in hand.
struct Member {
    peer: Peer,
    hands: Vec<Polled>,
}

struct Crowd {
    bench: Bench,
    rng: StdRng,
    members: Vec<Member>,
    born: usize,
    acked: HashSet<(String, String)>,
}

impl Crowd {
    async fn new(seed: u64) -> Self {
        let bench = Bench::new().await;
        bench.enqueue(200).await;
        let mut crowd = Self {
            bench,
            rng: StdRng::seed_from_u64(seed),
            members: Vec::new(),
            born: 0,
            acked: HashSet::new(),
        };
        for _ in 0..3 {
            let member = crowd.born().await;
            crowd.members.push(member);
        }
        crowd
    }

    async fn born(&mut self) -> Member {
        self.born += 1;
        let options = if self.rng.random_bool(0.5) { options() } else { hasty() };
        Member { peer: self.bench.peer_with(&format!("m{}", self.born), options).await, hands: Vec::new() }
    }

    async fn step(&mut self) {
        let n = self.rng.random_range(0..self.members.len());
        let member = &mut self.members[n];
        match self.rng.random_range(0..20) {
            0..4 => drop(member.peer.rebalance().await),
            4..7 => {
                let limit = self.rng.random_range(1..12);
                member.hands.extend(member.peer.poll(limit).await.unwrap_or_default());
            }
            7 => {
                // Given up at some point before, while or after the server runs it.
                let wait = Duration::from_micros(self.rng.random_range(0..6000));
                if let Ok(Ok(polled)) = timeout(wait, member.peer.poll(5)).await {
                    member.hands.extend(polled);
                }
            }
            8..11 => self.ack(n).await,
            11..13 => self.hand_back(n).await,
            13 => {
                let taken = take(&mut self.rng, &mut member.hands);
                member.peer.abandon(&stamps(&taken));
            }
            14 => drop(self.bench.make_due().await),
            15 => self.bench.expire(&member.peer.owner).await,
            16 => member.peer.stop(),
            17 => self.replace(n).await,
            _ => {
                let statement = STATEMENTS.choose(&mut self.rng).unwrap();
                if self.rng.random_bool(0.5) {
                    member.peer.proxy.lose_reply_matching(statement);
                } else {
                    member.peer.proxy.fail_before_matching(statement);
                }
            }
        }
    }

    /// An ack that fails is made again later, or given up.
    async fn ack(&mut self, n: usize) {
        let Member { peer, hands } = &mut self.members[n];
        let taken = take(&mut self.rng, hands);
        match peer.ack(&completions(&taken)).await {
            Ok(acked) => {
                for (polled, acked) in std::iter::zip(&taken, acked) {
                    let Stamp { id, token, .. } = stamp(polled);
                    assert!(!acked || self.acked.insert((id, token)), "a request was acked twice");
                }
            }
            Err(_) if self.rng.random_bool(0.5) => hands.extend(taken),
            Err(_) => drop(peer.abandon(&stamps(&taken))),
        }
    }

    async fn hand_back(&mut self, n: usize) {
        let Member { peer, hands } = &mut self.members[n];
        let taken = take(&mut self.rng, hands);
        let result = match self.rng.random_range(0..3) {
            0 => peer.retry(&taken.iter().map(retry).collect::<Vec<_>>()).await,
            1 => peer.undispatch(&stamps(&taken), true).await,
            _ => {
                let deferral = |polled| Deferral { stamp: stamp(polled), delay: Duration::from_secs(60) };
                peer.defer(&taken.iter().map(deferral).collect::<Vec<_>>()).await
            }
        };
        if result.is_err() {
            peer.abandon(&stamps(&taken));
        }
    }

    /// One leaves, or dies without a word; another takes its place.
    async fn replace(&mut self, n: usize) {
        let newcomer = self.born().await;
        let gone = std::mem::replace(&mut self.members[n], newcomer);
        if self.rng.random_bool(0.5) {
            let _ = gone.peer.close().await;
        } else {
            self.bench.expire(&gone.peer.owner).await;
        }
    }

    async fn finish(mut self) {
        for Member { peer, hands } in &mut self.members {
            peer.abandon(&stamps(hands));
            hands.clear();
        }
        let peers: Vec<&Peer> = self.members.iter().map(|member| &member.peer).collect();
        self.bench.assert_invariants(&peers).await;
    }
}

/// Some of what is in hand.
fn take(rng: &mut impl Rng, hands: &mut Vec<Polled>) -> Vec<Polled> {
    let count = rng.random_range(0..=hands.len());
    hands.drain(..count).collect()
}

async fn survives(seed: u64) {
    let mut crowd = Crowd::new(seed).await;
    for step in 0..STEPS {
        crowd.step().await;
        if step % 25 == 0 {
            crowd.bench.assert_no_double_result().await;
        }
    }
    assert!(!crowd.acked.is_empty(), "something was finished amid all that");
    crowd.finish().await;
}

/// Invariants 1, 2 and 5.
#[tokio::test]
async fn a_crowd_that_fails_in_many_ways_finishes_every_request_once() {
    for seed in 0..3 {
        survives(seed).await;
    }
}

/// Invariants 1, 2 and 5.
#[tokio::test]
async fn another_crowd_that_fails_in_many_ways_finishes_every_request_once() {
    for seed in 3..6 {
        survives(seed).await;
    }
}
