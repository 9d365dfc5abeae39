//! What is known of tenants whose requests a gate has turned away, so that the next poll leaves their backlog alone
//! until some of it can pass.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Bound,
    sync::Arc,
    time::Duration,
};

use leasehold_store::{TENANT_VISITS, TenantPoll};
use rand::{RngExt, rngs::StdRng};
use tokio::{sync::Notify, time::Instant};

use crate::{gate::Turned, quota::Freed};

/// A tenant that was turned away, the gate saying nothing of when: doubling, and jittered upward.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// Limits change: the longest that a gate's own word is taken for.
const LONGEST: Duration = Duration::from_secs(5);
/// Tries of tenants that were turned away, in a second and at once: where thousands are, each waits its turn.
const TRIES: (f64, f64) = (200.0, 64.0);
/// Between two polls for the sake of tries.
const TRY_PAUSE: Duration = Duration::from_millis(25);
/// Tenants that a poll has a turn for, at least; where fewer have enough, they share what is left.
const TURNS: u32 = 16;
/// A tenant of which so many passed at once is as free as any other.
const FREE: u32 = 256;

/// The tenants of one queue, as seen from one process.
pub(super) struct Tenants {
    turned: BTreeMap<String, Entry>,
    /// Jobs that wait at the gate.
    waiting: BTreeMap<String, usize>,
    after: Option<String>,
    /// Tries that may be made, and as of when.
    tries: (f64, Instant),
    look: Arc<Notify>,
    rng: StdRng,
}

/// A tenant that was turned away.
struct Entry {
    /// Worth another try then.
    until: Instant,
    backoff: Duration,
    /// How many to try.
    probe: u32,
    /// How many became possible meanwhile.
    freed: Option<Freed>,
    /// What the last poll asked for: so many freed, so many tried.
    asked: (u32, u32),
}

/// How the requests of one tenant fared at the gate.
#[derive(Default)]
pub(super) struct Fared {
    pub(super) passed: u32,
    /// The last that did not.
    pub(super) turned: Option<Turned>,
}

impl Tenants {
    pub(super) fn new(look: Arc<Notify>, rng: StdRng) -> Self {
        let tries = (TRIES.1, Instant::now());
        Self { turned: BTreeMap::new(), waiting: BTreeMap::new(), after: None, tries, look, rng }
    }

    /// How to poll for up to `asked` of those that are late or cancelled.
    pub(super) fn poll_ended(&self, asked: u32) -> TenantPoll {
        let quantum = i32::try_from(asked).unwrap_or(i32::MAX);
        TenantPoll { after: self.after.clone(), quantum, ended_only: true, ..TenantPoll::default() }
    }

    /// How to poll for up to `asked`.
    pub(super) fn poll(&mut self, asked: u32) -> TenantPoll {
        let now = Instant::now();
        let (tries, since) = self.tries;
        let mut tries = (tries + TRIES.0 * now.duration_since(since).as_secs_f64()).min(TRIES.1);
        let quantum = (asked / TURNS).max(1);
        let from = self.after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let to = self.after.as_deref().map_or(Bound::Excluded(""), Bound::Included);
        // A poll visits no more, and in this order.
        let most = TENANT_VISITS.unsigned_abs() as usize;
        let mut names = Vec::new();
        for part in [(from, Bound::Unbounded), (Bound::Unbounded, to)] {
            // One whose gate takes its time is not brought either, whether it was turned away before or not.
            let turned = self.turned.range::<str, _>(part).map(|(name, _)| name);
            let waiting = self.waiting.range::<str, _>(part).map(|(name, _)| name);
            let all: BTreeSet<&String> = turned.take(most).chain(waiting.take(most)).collect();
            names.extend(all.into_iter().take(most - names.len()).cloned());
        }
        let caps = names
            .into_iter()
            .map(|name| {
                let waits = self.waiting.contains_key(&name);
                let cap = self.turned.get_mut(&name).map_or(0, |entry| {
                    let cap = entry.cap(now, waits, if tries >= 1.0 { quantum } else { 0 }, quantum);
                    tries -= if entry.asked.1 > 0 { 1.0 } else { 0.0 };
                    cap
                });
                (name, i32::try_from(cap).unwrap_or(i32::MAX))
            })
            .collect();
        self.tries = (tries, now);
        TenantPoll {
            after: self.after.clone(),
            caps,
            quantum: i32::try_from(quantum).unwrap_or(i32::MAX),
            ..TenantPoll::default()
        }
    }

    /// Where the poll ended.
    pub(super) fn polled(&mut self, after: Option<String>) {
        self.after = after;
    }

    /// What the gate said of what the poll brought.
    pub(super) fn learn(&mut self, fared: HashMap<String, Fared>) {
        let now = Instant::now();
        self.turned.retain(|tenant, entry| {
            let (freed, probe) = std::mem::take(&mut entry.asked);
            match fared.get(tenant) {
                // Its limit is reached: sooner than thought where more passed than were freed.
                Some(Fared { passed, turned: Some(_) }) => {
                    if *passed > freed {
                        entry.backoff = BACKOFF.0;
                    }
                    true
                }
                // Everything that came passed. What was freed meanwhile is still to come.
                Some(Fared { passed, turned: None }) => {
                    if let Some(counter) = &mut entry.freed {
                        counter.consume(u64::from(freed.min(*passed)));
                    }
                    if probe > 0 && *passed >= freed + probe {
                        entry.probe = entry.probe.saturating_mul(2);
                        entry.backoff = BACKOFF.0;
                    }
                    entry.probe <= FREE
                }
                // It has nothing for us.
                None => freed + probe == 0,
            }
        });
        for (tenant, Fared { turned, .. }) in fared {
            let Some(turned) = turned else { continue };
            let entry = self.turned.entry(tenant).or_insert(Entry {
                until: now,
                backoff: BACKOFF.0,
                probe: 1,
                freed: None,
                asked: (0, 0),
            });
            let wait = turned.after.map_or(entry.backoff, |after| after.min(LONGEST));
            entry.until = now + wait.mul_f64(self.rng.random_range(1.0..1.25));
            entry.backoff = (entry.backoff * 2).min(BACKOFF.1);
            entry.probe = 1;
            if let Some(freed) = &turned.freed {
                freed.wake(&self.look);
            }
            entry.freed = turned.freed;
        }
    }

    /// A job of the tenant waits at the gate: no more are brought meanwhile.
    pub(super) fn waits(&mut self, tenant: &str) {
        *self.waiting.entry(tenant.to_owned()).or_default() += 1;
    }

    /// Whether any job of the tenant waits at the gate.
    pub(super) fn is_waiting(&self, tenant: &str) -> bool {
        self.waiting.contains_key(tenant)
    }

    /// It waits no more.
    pub(super) fn waited(&mut self, tenant: &str) {
        if let Some(count) = self.waiting.get_mut(tenant) {
            *count -= 1;
            if *count == 0 {
                self.waiting.remove(tenant);
            }
        }
    }

    /// When one that was turned away is worth another try.
    pub(super) fn next(&self) -> Option<Instant> {
        let tried = self.turned.iter().filter(|(tenant, _)| !self.waiting.contains_key(*tenant));
        let first = tried.map(|(_, entry)| entry.until).min()?;
        Some(first.max(Instant::now() + TRY_PAUSE))
    }
}

impl Entry {
    /// No more than `most`, and of those to be tried no more than `tries`.
    fn cap(&mut self, now: Instant, waits: bool, tries: u32, most: u32) -> u32 {
        if waits {
            self.asked = (0, 0);
            return 0;
        }
        let freed = self.freed.as_ref().map_or(0, |freed| u32::try_from(freed.count()).unwrap_or(FREE));
        let freed = freed.min(most);
        let probe = if now >= self.until { self.probe.min(tries).min(most - freed) } else { 0 };
        self.asked = (freed, probe);
        self.asked.0 + self.asked.1
    }
}

#[cfg(test)]
mod tests;
