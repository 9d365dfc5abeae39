//! The contract, continued: receiving, settling, and dead letters.

use std::collections::BTreeSet;

use super::oracle::{ATTEMPT, Attempt, Message, Ms, Queue, RECEIPT, State, Verb, least};

impl Queue {
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
}
