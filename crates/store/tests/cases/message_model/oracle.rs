//! The contract of messages as a plain state machine in memory. Times are milliseconds of the model's own clock.
//!
//! Nothing here is swept: what happens by the mere passing of time has happened when [`Oracle::advance`] returns.

use std::collections::{BTreeMap, BTreeSet};

pub(crate) type Ms = i64;
pub(crate) const SECOND: Ms = 1000;
/// For how long a repeated settlement succeeds again.
const RECEIPT: Ms = 30 * 60 * SECOND;
/// For how long at least an attempt is answered again.
const ATTEMPT: Ms = 5 * 60 * SECOND;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ordering {
    Standard,
    GroupFifo,
    StrictFifo,
}

#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) ordering: Ordering,
    pub(crate) lock: Ms,
    pub(crate) max_deliveries: i32,
    pub(crate) ttl: Option<Ms>,
    pub(crate) dedup: Option<Ms>,
    pub(crate) dead_letters: bool,
    pub(crate) on_expiry: bool,
}

/// What is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Draft {
    pub(crate) body: String,
    pub(crate) id: Option<String>,
    pub(crate) group: Option<String>,
    pub(crate) subject: Option<String>,
    pub(crate) tier: Option<String>,
    pub(crate) ttl: Option<Ms>,
    /// From now.
    pub(crate) delay: Option<Ms>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Active,
    Scheduled { due: Ms, delivered: bool },
    Locked { until: Ms, token: String },
    Deferred,
    Dead { at: Ms, reason: String, description: Option<String> },
}

impl State {
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Scheduled { .. } => "scheduled",
            Self::Locked { .. } => "locked",
            Self::Deferred => "deferred",
            Self::Dead { .. } => "dead",
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) draft: Draft,
    pub(crate) deliveries: i32,
    pub(crate) enqueued: Ms,
    pub(crate) visible: Ms,
    pub(crate) expires: Option<Ms>,
    pub(crate) state: State,
    /// It came back by the lapse of its lock.
    lapsed: bool,
}

#[derive(Clone, Debug)]
struct Accepted {
    seq: i64,
    body: String,
    until: Ms,
}

/// What an attempt was answered: locks, or what went with the answer.
#[derive(Clone, Debug)]
struct Attempt {
    until: Ms,
    locks: Vec<(i64, String)>,
    gone: Option<Vec<(i64, Message)>>,
}

#[derive(Clone, Debug)]
pub(crate) struct Queue {
    pub(crate) settings: Settings,
    pub(crate) messages: BTreeMap<i64, Message>,
    accepted: BTreeMap<String, Accepted>,
    receipts: BTreeMap<(i64, String), (String, Ms)>,
    attempts: BTreeMap<String, Attempt>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Oracle {
    pub(crate) now: Ms,
    pub(crate) last_seq: i64,
    pub(crate) queues: BTreeMap<&'static str, Queue>,
}

/// What settles a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Complete,
    Abandon(Ms),
    Reject(Option<&'static str>, Option<&'static str>),
    Defer,
}

impl Verb {
    /// Equal for what is the same settlement.
    fn key(&self) -> String {
        match self {
            Self::Reject(reason, description) => {
                format!("Reject {} {description:?}", reason.unwrap_or("AppRequested"))
            }
            other => format!("{other:?}"),
        }
    }
}

fn least(a: Option<Ms>, b: Option<Ms>) -> Option<Ms> {
    a.into_iter().chain(b).min()
}

impl Queue {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            settings,
            messages: BTreeMap::new(),
            accepted: BTreeMap::new(),
            receipts: BTreeMap::new(),
            attempts: BTreeMap::new(),
        }
    }

    fn lane<'a>(&self, message: &'a Message) -> Option<&'a str> {
        match self.settings.ordering {
            Ordering::StrictFifo => Some(""),
            _ => message.draft.group.as_deref(),
        }
    }

    fn bury(&mut self, seq: i64, at: Ms, reason: &str, description: Option<String>) {
        let keeps = self.settings.dead_letters && (reason != "TTLExpired" || self.settings.on_expiry);
        if !keeps {
            self.messages.remove(&seq);
        } else if let Some(message) = self.messages.get_mut(&seq) {
            message.state = State::Dead { at, reason: reason.into(), description };
        }
    }

    fn exhausted(&mut self, seq: i64, at: Ms) {
        let deliveries = self.messages[&seq].deliveries;
        let description = format!("delivered {deliveries} times without success");
        self.bury(seq, at, "MaxDeliveryCountExceeded", Some(description));
    }

    /// All that time has done to one message by `now`, in its order.
    fn age(&mut self, seq: i64, now: Ms) {
        while let Some(message) = self.messages.get_mut(&seq) {
            let change = match &message.state {
                State::Dead { .. } => return,
                State::Scheduled { due: at, .. } | State::Locked { until: at, .. } => Some(*at),
                State::Active | State::Deferred => None,
            };
            let expires = message.expires.filter(|at| *at <= now);
            match change.filter(|at| *at <= now) {
                Some(at) if expires.is_none_or(|over| at < over) => {
                    let lapsed = matches!(message.state, State::Locked { .. });
                    message.state = State::Active;
                    message.lapsed = lapsed;
                    if lapsed && message.deliveries >= self.settings.max_deliveries {
                        self.exhausted(seq, at);
                    }
                }
                _ => {
                    let Some(over) = expires else { return };
                    self.bury(seq, over, "TTLExpired", Some("it had expired".into()));
                }
            }
        }
    }

    /// The first acceptance of its key within the window: None where this is it.
    fn first(&self, draft: &Draft, now: Ms) -> Option<&Accepted> {
        self.settings.dedup?;
        self.accepted.get(&key(draft)).filter(|first| first.until > now)
    }

    /// Sent in this order; `fresh` are the numbers of those that are no duplicates. A slot for each.
    pub(crate) fn put(
        &mut self,
        now: Ms,
        drafts: &[Draft],
        fresh: &mut impl Iterator<Item = i64>,
    ) -> Vec<i64> {
        let mut slots = Vec::new();
        for draft in drafts {
            if let Some(first) = self.first(draft, now) {
                slots.push(if first.body == draft.body { first.seq } else { 0 });
                continue;
            }
            let seq = fresh.next().expect("a message was not put in");
            if let Some(window) = self.settings.dedup {
                let first = Accepted { seq, body: draft.body.clone(), until: now + window };
                self.accepted.insert(key(draft), first);
            }
            let visible = now + draft.delay.unwrap_or(0);
            let message = Message {
                draft: draft.clone(),
                deliveries: 0,
                enqueued: now,
                visible,
                expires: least(draft.ttl, self.settings.ttl).map(|ttl| visible + ttl),
                state: match draft.delay {
                    Some(_) => State::Scheduled { due: visible, delivered: false },
                    None => State::Active,
                },
                lapsed: false,
            };
            self.messages.insert(seq, message);
            slots.push(seq);
        }
        slots
    }

    pub(crate) fn conflicts(&self, draft: &Draft, now: Ms) -> bool {
        self.first(draft, now).is_some_and(|first| first.body != draft.body)
    }

    fn blocked(&self, seq: i64, lane: &str) -> bool {
        self.messages.iter().filter(|(_, m)| self.lane(m) == Some(lane)).any(|(other, m)| match m.state {
            State::Locked { .. } => true,
            State::Deferred | State::Scheduled { delivered: true, .. } => *other < seq,
            _ => false,
        })
    }

    /// What a receive finds. One of a group under locks; any number without, one after the other.
    pub(crate) fn receivable(&self, max: usize, locks: bool) -> Vec<i64> {
        let mut lanes = BTreeSet::new();
        let free = self.messages.iter().filter(|(seq, message)| {
            message.state == State::Active
                && self.lane(message).is_none_or(|lane| {
                    !self.blocked(**seq, lane) && (!locks || lanes.insert(lane.to_owned()))
                })
        });
        free.map(|(seq, _)| *seq).take(max).collect()
    }

    /// Whether a receive may find these. They are those of the smallest numbers; but a message that has come into the
    /// place of a later one of its group, while that was locked, may be found when the lapse of that one is noticed, at
    /// its number.
    pub(crate) fn may_find(&self, found: &[i64], max: usize, locks: bool) -> bool {
        let expected = self.receivable(max, locks);
        let all = self.receivable(usize::MAX, locks);
        let late = self.messages.iter().any(|(seq, message)| {
            message.lapsed
                && message.state == State::Active
                && self.messages.range(..seq).any(|(_, earlier)| {
                    earlier.state == State::Active && self.lane(earlier) == self.lane(message)
                })
        });
        let fits =
            found.len() == expected.len() && found.is_sorted() && found.iter().all(|seq| all.contains(seq));
        found == expected || late && fits
    }

    /// The answer of an attempt made before; none: it is a new one.
    pub(crate) fn replay(&mut self, now: Ms, id: &str) -> Option<Vec<(i64, Message)>> {
        let attempt = self.attempts.get(id).filter(|attempt| attempt.until > now)?;
        if attempt.gone.is_some() {
            return attempt.gone.clone();
        }
        let mut held: Vec<_> =
            attempt.locks.iter().filter_map(|(seq, token)| self.locked(*seq, token)).collect();
        held.sort_by_key(|(seq, _)| *seq);
        if held.is_empty() {
            self.attempts.remove(id);
            return None;
        }
        Some(held)
    }

    fn locked(&self, seq: i64, given: &str) -> Option<(i64, Message)> {
        let message = self.messages.get(&seq)?;
        matches!(&message.state, State::Locked { token, .. } if token == given)
            .then(|| (seq, message.clone()))
    }

    /// Locks, each with its token.
    pub(crate) fn lock(&mut self, now: Ms, locks: &[(i64, String)]) -> Vec<(i64, Message)> {
        let until = now + self.settings.lock;
        for (seq, token) in locks {
            let message = self.messages.get_mut(seq).unwrap();
            message.deliveries += 1;
            message.state = State::Locked { until, token: token.clone() };
            message.lapsed = false;
        }
        locks.iter().map(|(seq, _)| (*seq, self.messages[seq].clone())).collect()
    }

    pub(crate) fn delete(&mut self, seqs: &[i64]) -> Vec<(i64, Message)> {
        let taken = |seq: &i64| {
            let mut message = self.messages.remove(seq).unwrap();
            message.deliveries += 1;
            (*seq, message)
        };
        seqs.iter().map(taken).collect()
    }

    pub(crate) fn remember(&mut self, now: Ms, id: &str, answer: &[(i64, Message)], locks: bool) {
        let held = |(seq, message): &(i64, Message)| match &message.state {
            State::Locked { token, .. } => Some((*seq, token.clone())),
            _ => None,
        };
        let attempt = Attempt {
            until: now + self.settings.lock.max(ATTEMPT),
            locks: answer.iter().filter_map(held).collect(),
            gone: (!locks).then(|| answer.to_vec()),
        };
        self.attempts.insert(id.into(), attempt);
    }

    /// Whether it succeeds.
    pub(crate) fn settle(&mut self, now: Ms, seq: i64, token: &str, verb: &Verb) -> bool {
        let Some((_, message)) = self.locked(seq, token) else {
            let receipt = self.receipts.get(&(seq, token.to_owned()));
            return receipt.is_some_and(|(was, until)| *was == verb.key() && *until > now);
        };
        self.receipts.insert((seq, token.into()), (verb.key(), now + RECEIPT));
        let Message { state, visible, .. } = self.messages.get_mut(&seq).unwrap();
        match verb {
            Verb::Complete => _ = self.messages.remove(&seq),
            Verb::Abandon(_) if message.deliveries >= self.settings.max_deliveries => {
                self.exhausted(seq, now)
            }
            Verb::Abandon(0) => *state = State::Active,
            Verb::Abandon(delay) => {
                let due = (now + delay).min(message.expires.unwrap_or(Ms::MAX)); // nobody receives it after
                *state = State::Scheduled { due, delivered: true };
                *visible = due;
            }
            Verb::Reject(reason, description) => {
                self.bury(seq, now, reason.unwrap_or("AppRequested"), description.map(Into::into));
            }
            Verb::Defer => *state = State::Deferred,
        }
        true
    }

    /// Until when it is locked now.
    pub(crate) fn renew(&mut self, now: Ms, seq: i64, token: &str) -> Option<Ms> {
        let lock = self.settings.lock;
        self.locked(seq, token)?;
        let State::Locked { until, .. } = &mut self.messages.get_mut(&seq)?.state else { return None };
        *until = (*until).max(now + lock);
        Some(*until)
    }

    pub(crate) fn deferred(&self, seq: i64) -> bool {
        self.messages.get(&seq).is_some_and(|m| m.state == State::Deferred)
    }

    pub(crate) fn cancel(&mut self, seq: i64) -> bool {
        let scheduled = self
            .messages
            .get(&seq)
            .is_some_and(|m| matches!(m.state, State::Scheduled { delivered: false, .. }));
        scheduled && self.messages.remove(&seq).is_some()
    }

    /// The dead letters of this age at least, as (died, number).
    pub(crate) fn dead(&self, now: Ms, older_than: Option<Ms>) -> Vec<(Ms, i64)> {
        let dead = |(seq, message): (&i64, &Message)| match message.state {
            State::Dead { at, .. } if older_than.is_none_or(|age| at <= now - age) => Some((at, *seq)),
            _ => None,
        };
        self.messages.iter().filter_map(dead).collect()
    }

    /// As if it had just come.
    pub(crate) fn take_back(&mut self, now: Ms, seq: i64, message: Message) {
        let expires = least(message.draft.ttl, self.settings.ttl).map(|ttl| now + ttl);
        self.messages.insert(
            seq,
            Message { deliveries: 0, visible: now, expires, state: State::Active, lapsed: false, ..message },
        );
    }

    /// Every time at which something changes, or is compared with.
    fn boundaries(&self) -> impl Iterator<Item = Ms> {
        let changes = self.messages.values().flat_map(|m| {
            let at = match m.state {
                State::Scheduled { due: at, .. } | State::Locked { until: at, .. } => Some(at),
                _ => None,
            };
            at.into_iter().chain(m.expires)
        });
        changes
            .chain(self.accepted.values().map(|a| a.until))
            .chain(self.receipts.values().map(|(_, until)| *until))
            .chain(self.attempts.values().map(|a| a.until))
    }
}

fn key(draft: &Draft) -> String {
    draft.id.as_ref().map_or_else(|| format!("body {}", draft.body), |id| format!("id {id}"))
}

impl Oracle {
    /// Lets `by` pass, and a little more where that is so near a change that a real clock would not tell.
    pub(crate) fn advance(&mut self, by: Ms) {
        const NEAR: Ms = 3 * SECOND;
        self.now += by;
        while self.queues.values().any(|q| q.boundaries().any(|at| (at - self.now).abs() < NEAR)) {
            self.now += SECOND;
        }
        for queue in self.queues.values_mut() {
            for seq in queue.messages.keys().copied().collect::<Vec<_>>() {
                queue.age(seq, self.now);
            }
        }
    }
}
