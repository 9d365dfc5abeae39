//! What a walk does next: drawn from a seed, and from what is there.

use rand::{RngExt, rngs::StdRng, seq::IndexedRandom};

use super::{
    oracle::{Draft, Ms, Oracle, SECOND, State, Verb},
    walk::Walk,
};

pub(crate) const TOPIC: &str = "news";
/// The subscriptions of the topic, each with its filter.
pub(crate) const SUBSCRIPTIONS: [(&str, &str); 2] =
    [("gold", r#"$.properties.tier == "gold""#), ("alpha", r#"$.subject_parts[0] == "alpha""#)];

/// The queues of a walk: few, mostly, so that much happens in each.
pub(crate) fn busy(rng: &mut StdRng) -> &'static [&'static str] {
    const SETS: [&[&str]; 9] = [
        &["plain"],
        &["grouped"],
        &["strict"],
        &["plain", "brief"],
        &["grouped", "forgetful"],
        &["strict", "grouped"],
        &["brief", "strict"],
        &["gold", "alpha"],
        &["plain", "brief", "grouped", "forgetful", "strict", "gold", "alpha"],
    ];
    pick(rng, &SETS)
}

pub(crate) type Pair = (i64, String);

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Send { queue: &'static str, draft: Draft },
    SendMany { queue: &'static str, drafts: Vec<Draft> },
    Cancel { queue: &'static str, seq: i64 },
    Receive { queue: &'static str, max: usize, locks: bool, attempt: Option<&'static str> },
    ReceiveDeferred { queue: &'static str, seqs: Vec<i64> },
    Settle { queue: &'static str, pair: Pair, verb: Verb },
    CompleteBatch { queue: &'static str, pairs: Vec<Pair> },
    Renew { queue: &'static str, pair: Pair },
    RenewBatch { queue: &'static str, pairs: Vec<Pair> },
    Redrive { queue: &'static str, target: Option<&'static str>, max: Option<usize>, older_than: Option<Ms> },
    Purge { queue: &'static str, max: Option<usize>, older_than: Option<Ms> },
    Peek { queue: &'static str, from: i64, state: Option<&'static str>, max: usize },
    Maintain,
    Wait(Ms),
}

/// Some steps as one transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Together {
    pub(crate) steps: usize,
    pub(crate) commits: bool,
    pub(crate) repeatable_read: bool,
}

impl Together {
    pub(crate) fn draw(rng: &mut StdRng) -> Option<Self> {
        rng.random_bool(0.12).then(|| Self {
            steps: rng.random_range(1..=4),
            commits: rng.random_bool(0.5),
            repeatable_read: rng.random_bool(0.3),
        })
    }
}

fn some<T>(rng: &mut StdRng, chance: f64, draw: impl FnOnce(&mut StdRng) -> T) -> Option<T> {
    rng.random_bool(chance).then(|| draw(rng))
}

fn pick<T: Clone>(rng: &mut StdRng, from: &[T]) -> T {
    from.choose(rng).unwrap().clone()
}

impl Draft {
    fn draw(rng: &mut StdRng, scheduled: f64) -> Self {
        let word = |rng: &mut StdRng, words: &[&str]| pick(rng, words).to_owned();
        Self {
            body: format!("body {}", rng.random_range(0..4)),
            id: some(rng, 0.5, |rng| format!("id {}", rng.random_range(0..5))),
            group: some(rng, 0.6, |rng| word(rng, &["g", "h"])),
            subject: some(rng, 0.7, |rng| word(rng, &["alpha", "alpha.one", "beta"])),
            tier: some(rng, 0.5, |rng| word(rng, &["gold", "tin"])),
            ttl: some(rng, 0.4, |rng| pick(rng, &[50, 120, 600]) * SECOND),
            delay: some(rng, scheduled, |rng| pick(rng, &[30, 70, 150]) * SECOND),
        }
    }
}

impl Step {
    pub(crate) fn draw(rng: &mut StdRng, walk: &Walk) -> Self {
        let queue = pick(rng, &walk.queues());
        let oracle = &walk.oracle;
        match rng.random_range(0..100) {
            0..18 => Self::Send { queue: Self::place(rng, queue), draft: Draft::draw(rng, 0.25) },
            18..26 => {
                let drafts = (0..rng.random_range(1..=6)).map(|_| Draft::draw(rng, 0.15)).collect();
                Self::SendMany { queue: Self::place(rng, queue), drafts }
            }
            26..29 => Self::Cancel { queue, seq: Self::seq(rng, oracle, queue, "scheduled") },
            29..52 => Self::Receive {
                queue,
                max: pick(rng, &[1, 1, 2, 3, 10]),
                locks: rng.random_bool(0.85),
                attempt: some(rng, 0.3, |rng| pick(rng, &["one", "two"])),
            },
            52..57 => {
                let count = rng.random_range(0..=2);
                let mut seqs: Vec<_> =
                    (0..count).map(|_| Self::seq(rng, oracle, queue, "deferred")).collect();
                seqs.dedup();
                Self::ReceiveDeferred { queue, seqs }
            }
            57..74 => Self::settle(rng, walk, queue),
            74..77 => Self::CompleteBatch { queue, pairs: Self::pairs(rng, walk, queue) },
            77..80 => Self::Renew { queue, pair: Self::pair(rng, walk, queue) },
            80..82 => Self::RenewBatch { queue, pairs: Self::pairs(rng, walk, queue) },
            82..86 => Self::Redrive {
                queue,
                target: some(rng, 0.5, |rng| pick(rng, &walk.queues())),
                max: some(rng, 0.5, |rng| rng.random_range(0..3)),
                older_than: some(rng, 0.2, |rng| Self::age(rng, oracle, queue)),
            },
            86..88 => Self::Purge {
                queue,
                max: some(rng, 0.7, |rng| rng.random_range(0..3)),
                older_than: some(rng, 0.3, |rng| Self::age(rng, oracle, queue)),
            },
            88..90 => Self::Peek {
                queue,
                from: rng.random_range(0..=oracle.last_seq),
                state: some(rng, 0.7, |rng| {
                    pick(rng, &["active", "locked", "scheduled", "deferred", "dead"])
                }),
                max: rng.random_range(1..4),
            },
            90..94 => Self::Maintain,
            _ => Self::Wait(pick(rng, &[10, 25, 25, 45, 45, 100, 350, 1900]) * SECOND),
        }
    }

    /// Whether it looks for what others left to it. Under a snapshot of its own that may be nothing.
    pub(crate) fn looks_for_more(&self) -> bool {
        matches!(self, Self::Receive { .. } | Self::Maintain)
    }

    /// The queue; or the topic in place of one of its subscriptions.
    fn place(rng: &mut StdRng, queue: &'static str) -> &'static str {
        let subscribed = SUBSCRIPTIONS.iter().any(|(name, _)| *name == queue);
        if subscribed && rng.random_bool(0.8) { TOPIC } else { queue }
    }

    /// One in this state, mostly.
    fn seq(rng: &mut StdRng, oracle: &Oracle, queue: &str, state: &str) -> i64 {
        let messages = &oracle.queues[queue].messages;
        let fit: Vec<_> =
            messages.iter().filter(|(_, m)| m.state.word() == state).map(|(seq, _)| *seq).collect();
        match fit.choose(rng) {
            Some(seq) if rng.random_bool(0.85) => *seq,
            _ => rng.random_range(0..=oracle.last_seq + 1),
        }
    }

    /// None of the dead is so near this age that a real clock would not tell.
    fn age(rng: &mut StdRng, oracle: &Oracle, queue: &str) -> Ms {
        let mut age = pick(rng, &[0, 20, 100]) * SECOND;
        let dead = oracle.queues[queue].dead(oracle.now, None);
        while dead.iter().any(|(at, _)| (oracle.now - age - at).abs() < 4 * SECOND) && age > 0 {
            age += SECOND;
        }
        age
    }

    /// A lock that is held, mostly; else a stale one, one of another message or queue, or none at all.
    fn pair(rng: &mut StdRng, walk: &Walk, queue: &str) -> Pair {
        let held: Vec<Pair> = walk.oracle.queues[queue]
            .messages
            .iter()
            .filter_map(|(seq, m)| match &m.state {
                State::Locked { token, .. } => Some((*seq, token.clone())),
                _ => None,
            })
            .collect();
        let Some((seq, token)) = held.choose(rng).cloned() else { return Self::stale(rng, walk) };
        match rng.random_range(0..20) {
            0 => (seq, String::new()),
            1 => (seq, "garbage".into()),
            2 => (seq, token.to_uppercase()),
            3 => (seq, Self::stale(rng, walk).1),
            4 => (Self::stale(rng, walk).0, token),
            5 | 6 => Self::stale(rng, walk),
            _ => (seq, token),
        }
    }

    fn stale(rng: &mut StdRng, walk: &Walk) -> Pair {
        walk.issued.choose(rng).cloned().unwrap_or((1, "00000000-0000-0000-0000-000000000000".into()))
    }

    fn pairs(rng: &mut StdRng, walk: &Walk, queue: &str) -> Vec<Pair> {
        (0..rng.random_range(0..=4)).map(|_| Self::pair(rng, walk, queue)).collect()
    }

    /// A new settlement, or an earlier one again, with the same verb or another.
    fn settle(rng: &mut StdRng, walk: &Walk, queue: &'static str) -> Self {
        let verb = match rng.random_range(0..10) {
            0..2 => Verb::Complete,
            2..5 => Verb::Abandon(pick(rng, &[0, 0, 30, 80]) * SECOND),
            5 | 6 => Verb::Reject(
                pick(rng, &[None, Some("AppRequested"), Some("bad")]),
                some(rng, 0.5, |_| "so it is"),
            ),
            _ => Verb::Defer,
        };
        match walk.settled.choose(rng) {
            Some((queue, pair, was)) if rng.random_bool(0.2) => {
                let verb = if rng.random_bool(0.6) { was.clone() } else { verb };
                Self::Settle { queue, pair: pair.clone(), verb }
            }
            _ => Self::Settle { queue, pair: Self::pair(rng, walk, queue), verb },
        }
    }
}
