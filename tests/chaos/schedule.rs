//! Which fault strikes when: decks that are dealt, so that each kind comes, and the list of what struck.

use std::sync::Mutex;

use rand::{SeedableRng, rngs::StdRng, seq::SliceRandom};

use crate::clock::Clock;

/// Everything that can go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    Kill,
    Stop,
    Term,
    Cut,
    ShortFreeze,
    LongFreeze,
    LostReplies,
    FailedRequests,
    Restart,
    ConnectionsFull,
    StatementTimeout,
    Deadlocks,
    Serializable,
    OldSnapshot,
    Hangs,
    CutStreams,
    Resets,
    BadHttp,
    BadJson,
    Busy,
    ServerErrors,
    Refusals,
    IdleResets,
    Slowness,
    ReceiverKill,
    OutsideCut,
    OutsideFreeze,
    LostEnqueue,
    LostCommit,
    FailedCommit,
}

use Fault::{
    BadHttp, BadJson, Busy, ConnectionsFull, Cut, CutStreams, Deadlocks, FailedCommit, FailedRequests, Hangs,
    IdleResets, Kill, LongFreeze, LostCommit, LostEnqueue, LostReplies, OldSnapshot, OutsideCut,
    OutsideFreeze, ReceiverKill, Refusals, Resets, Restart, Serializable, ServerErrors, ShortFreeze,
    Slowness, StatementTimeout, Stop, Term,
};

/// What befalls processes that serve, and their connections.
pub(crate) const ON_SERVERS: [Fault; 8] =
    [Kill, Stop, Term, Cut, ShortFreeze, LongFreeze, LostReplies, FailedRequests];
/// What befalls Postgres.
pub(crate) const ON_POSTGRES: [Fault; 6] =
    [Restart, ConnectionsFull, StatementTimeout, Deadlocks, Serializable, OldSnapshot];
/// What backends do.
pub(crate) const ON_BACKENDS: [Fault; 10] =
    [Hangs, CutStreams, Resets, BadHttp, BadJson, Busy, ServerErrors, Refusals, IdleResets, Slowness];
/// What befalls those who produce and receive.
pub(crate) const OUTSIDE: [Fault; 6] =
    [ReceiverKill, OutsideCut, OutsideFreeze, LostEnqueue, LostCommit, FailedCommit];

impl Fault {
    pub(crate) fn all() -> Vec<Self> {
        [&ON_SERVERS[..], &ON_POSTGRES, &ON_BACKENDS, &OUTSIDE].concat()
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Kill => "SIGKILL, a new process",
            Stop => "SIGSTOP beyond the lease",
            Term => "SIGTERM, a new process",
            Cut => "connections cut",
            ShortFreeze => "frozen within the lease",
            LongFreeze => "frozen beyond the lease",
            LostReplies => "replies lost",
            FailedRequests => "statements lost",
            Restart => "Postgres crashes",
            ConnectionsFull => "no connection left",
            StatementTimeout => "statement_timeout of ms",
            Deadlocks => "deadlocks",
            Serializable => "serializable by default",
            OldSnapshot => "an old snapshot",
            Hangs => "backend hangs",
            CutStreams => "backend cuts streams",
            Resets => "backend resets",
            BadHttp => "backend speaks no HTTP",
            BadJson => "backend answers bad JSON",
            Busy => "backend sheds, 429 and 503",
            ServerErrors => "backend errs, 500",
            Refusals => "backend refuses, 400",
            IdleResets => "backend resets idle",
            Slowness => "backend is slow",
            ReceiverKill => "receiver killed",
            OutsideCut => "producers cut",
            OutsideFreeze => "producers frozen",
            LostEnqueue => "enqueue's reply lost",
            LostCommit => "COMMIT's reply lost",
            FailedCommit => "COMMIT lost",
        }
    }
}

/// Faults in a random order, each before any comes again.
pub(crate) struct Deck {
    cards: &'static [Fault],
    hand: Vec<Fault>,
    dealt: usize,
    pub(crate) rng: StdRng,
}

impl Deck {
    pub(crate) fn new(cards: &'static [Fault], seed: u64) -> Self {
        Self { cards, hand: Vec::new(), dealt: 0, rng: StdRng::seed_from_u64(seed) }
    }

    /// Whether there is reason to go on: not before each fault has come.
    pub(crate) fn goes_on(&self, clock: Clock, until: f64) -> bool {
        clock.now() < until || self.dealt < self.cards.len()
    }

    pub(crate) fn deal(&mut self) -> Fault {
        if self.hand.is_empty() {
            self.hand = self.cards.to_vec();
            self.hand.shuffle(&mut self.rng);
        }
        self.dealt += 1;
        self.hand.pop().expect("a deck has cards")
    }
}

/// Whom a fault struck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Server(usize),
    /// All processes that serve.
    Servers,
    /// None of them.
    Elsewhere,
}

/// A fault that struck: in seconds since the test's start.
#[derive(Clone, Debug)]
pub(crate) struct Strike {
    pub(crate) fault: Fault,
    pub(crate) target: Target,
    pub(crate) from: f64,
    /// Not before its end.
    pub(crate) to: f64,
}

/// What struck so far. When the test fails, it is printed with the seed.
pub(crate) struct Schedule {
    seed: u64,
    clock: Clock,
    strikes: Mutex<Vec<Strike>>,
}

impl Schedule {
    pub(crate) fn new(seed: u64, clock: Clock) -> Self {
        Self { seed, clock, strikes: Mutex::default() }
    }

    /// Lets `blow` happen, and takes down from when to when.
    pub(crate) async fn strike<T>(&self, fault: Fault, target: Target, blow: impl Future<Output = T>) -> T {
        let from = self.clock.now();
        let index = {
            let mut strikes = self.strikes.lock().unwrap();
            strikes.push(Strike { fault, target, from, to: f64::INFINITY });
            strikes.len() - 1
        };
        let done = blow.await;
        self.strikes.lock().unwrap()[index].to = self.clock.now();
        done
    }

    pub(crate) fn strikes(&self) -> Vec<Strike> {
        self.strikes.lock().unwrap().clone()
    }
}

impl Drop for Schedule {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("LEASEHOLD_CHAOS_SEED={}", self.seed);
            for Strike { fault, target, from, to } in self.strikes() {
                eprintln!("{from:8.3} to {to:8.3}: {} ({target:?})", fault.name());
            }
        }
    }
}
