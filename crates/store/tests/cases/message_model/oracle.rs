//! The contract of messages as a plain state machine in memory. Times are milliseconds of the model's own clock.
//!
//! Nothing here is swept: what happens by the mere passing of time has happened when [`Oracle::advance`] returns.

use std::collections::BTreeMap;

pub(crate) type Ms = i64;
pub(crate) const SECOND: Ms = 1000;
/// For how long a repeated settlement succeeds again.
pub(super) const RECEIPT: Ms = 30 * 60 * SECOND;
/// For how long at least an attempt is answered again.
pub(super) const ATTEMPT: Ms = 5 * 60 * SECOND;

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
    pub(super) lapsed: bool,
}

#[derive(Clone, Debug)]
struct Accepted {
    seq: i64,
    body: String,
    until: Ms,
}

/// What an attempt was answered: locks, or what went with the answer.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    pub(super) until: Ms,
    pub(super) locks: Vec<(i64, String)>,
    pub(super) gone: Option<Vec<(i64, Message)>>,
}

#[derive(Clone, Debug)]
pub(crate) struct Queue {
    pub(crate) settings: Settings,
    pub(crate) messages: BTreeMap<i64, Message>,
    accepted: BTreeMap<String, Accepted>,
    pub(super) receipts: BTreeMap<(i64, String), (String, Ms)>,
    pub(super) attempts: BTreeMap<String, Attempt>,
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
    pub(super) fn key(&self) -> String {
        match self {
            Self::Reject(reason, description) => {
                format!("Reject {} {description:?}", reason.unwrap_or("AppRequested"))
            }
            other => format!("{other:?}"),
        }
    }
}

pub(super) fn least(a: Option<Ms>, b: Option<Ms>) -> Option<Ms> {
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

    pub(super) fn lane<'a>(&self, message: &'a Message) -> Option<&'a str> {
        match self.settings.ordering {
            Ordering::StrictFifo => Some(""),
            _ => message.draft.group.as_deref(),
        }
    }

    pub(super) fn bury(&mut self, seq: i64, at: Ms, reason: &str, description: Option<String>) {
        let keeps = self.settings.dead_letters && (reason != "TTLExpired" || self.settings.on_expiry);
        if !keeps {
            self.messages.remove(&seq);
        } else if let Some(message) = self.messages.get_mut(&seq) {
            message.state = State::Dead { at, reason: reason.into(), description };
        }
    }

    pub(super) fn exhausted(&mut self, seq: i64, at: Ms) {
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
