//! What a serving process knows about itself: its dispatchers, whether they are ready, and the gauges that a look
//! at each database gives.

use std::{
    collections::BTreeMap,
    sync::{
        PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::future::try_join_all;
use leasehold_dispatch::{Dispatcher, Readiness};
use leasehold_store::{Status, Store};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::{
    sync::{Mutex, watch},
    time::Instant,
};

use crate::{
    database::Place,
    metrics::{
        DATABASE_UP, DEAD_LETTERS, DISPATCHERS, OLDEST_PENDING, PARTITIONS_OWNED, QUOTA_SATURATED_KEYS,
        REQUESTS, RESULTS_WAITING,
    },
};

/// Where counts of requests and results stop.
pub(crate) const COUNT_BOUND: i64 = 10_000;
/// How old a look at the database may be.
const LOOK_AGE: Duration = Duration::from_secs(5);
/// How long a look may take before the scrape goes on without it.
const LOOK_TIME: Duration = Duration::from_secs(3);

/// One dispatcher of this process.
struct Served {
    place: Place,
    store: Store,
    owner: String,
    readiness: watch::Receiver<Readiness>,
}

/// The dispatchers of this process, seen from outside.
pub(crate) struct Monitor {
    expected: usize,
    served: RwLock<Vec<Served>>,
    draining: AtomicBool,
    recorder: PrometheusHandle,
    looked: Mutex<Option<Instant>>,
}

impl Monitor {
    /// For `expected` dispatchers, none of which has started.
    pub(crate) fn new(expected: usize, recorder: PrometheusHandle) -> Self {
        Self {
            expected,
            served: RwLock::default(),
            draining: AtomicBool::new(false),
            recorder,
            looked: Mutex::default(),
        }
    }

    /// Follows one more dispatcher.
    pub(crate) fn add(&self, place: &Place, store: Store, dispatcher: &Dispatcher) {
        let served = Served {
            place: place.clone(),
            store,
            owner: dispatcher.owner().to_owned(),
            readiness: dispatcher.readiness(),
        };
        self.served.write().unwrap_or_else(PoisonError::into_inner).push(served);
    }

    /// From now on the process is not ready, for it is going to stop.
    pub(crate) fn begin_drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Whether every dispatcher works.
    ///
    /// # Errors
    /// Why not, a line for each that does not.
    pub(crate) fn check_ready(&self) -> Result<(), String> {
        if self.draining.load(Ordering::Relaxed) {
            return Err("draining: asked to stop".into());
        }
        let served = self.served.read().unwrap_or_else(PoisonError::into_inner);
        let states = served.iter().map(|one| (one.owner.as_str(), one.readiness.borrow().clone()));
        judge(self.expected, states)
    }

    /// Waits until every dispatcher works.
    pub(crate) async fn ready(&self) {
        let receivers: Vec<_> = {
            let served = self.served.read().unwrap_or_else(PoisonError::into_inner);
            served.iter().map(|one| one.readiness.clone()).collect()
        };
        for mut readiness in receivers {
            // It fails only when the dispatcher is gone, which its owner notices.
            let _ = readiness.wait_for(|now| *now == Readiness::Ready).await;
        }
    }

    /// Every metric, in Prometheus's text format.
    pub(crate) async fn render(&self) -> String {
        let mut looked = self.looked.lock().await;
        if looked.is_none_or(|at| at.elapsed() >= LOOK_AGE) {
            self.look().await;
            *looked = Some(Instant::now());
        }
        drop(looked);
        self.recorder.render()
    }

    async fn look(&self) {
        let (stores, owners) = self.installations();
        if stores.is_empty() {
            return;
        }
        let looks = stores.iter().map(|store| store.status(COUNT_BOUND));
        let statuses: Vec<Status> = match try_join_all(looks).await {
            Ok(statuses) => statuses,
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "the database cannot be looked at for /metrics");
                metrics::gauge!(DATABASE_UP).set(0.0);
                return;
            }
        };
        publish(&tally(&statuses, &owners), results_waiting(&statuses), saturated_keys(&statuses));
        metrics::gauge!(DATABASE_UP).set(1.0);
    }

    /// A store for each installation, however many dispatchers serve it, and every owner.
    fn installations(&self) -> (Vec<Store>, Vec<String>) {
        let served = self.served.read().unwrap_or_else(PoisonError::into_inner);
        let first = |n: usize| !served[..n].iter().any(|earlier| earlier.place == served[n].place);
        let firsts = (0..served.len()).filter(|n| first(*n));
        let stores = firsts.map(|n| served[n].store.with_timeout(LOOK_TIME)).collect();
        (stores, served.iter().map(|one| one.owner.clone()).collect())
    }
}

fn judge<'a>(expected: usize, states: impl Iterator<Item = (&'a str, Readiness)>) -> Result<(), String> {
    let mut problems = Vec::new();
    let mut count = 0;
    for (owner, state) in states {
        count += 1;
        match state {
            Readiness::Ready => {}
            Readiness::Starting => problems.push(format!("{owner}: starting")),
            Readiness::Draining => problems.push(format!("{owner}: draining")),
            Readiness::Failing(reason) => problems.push(format!("{owner}: failing: {reason}")),
        }
    }
    if count < expected {
        problems.push(format!("starting: {count} of {expected} dispatchers run"));
    }
    if problems.is_empty() { Ok(()) } else { Err(problems.join("\n")) }
}

/// What is published of a queue, summed over installations that have one of that name.
#[derive(Debug, Default, PartialEq)]
struct Tally {
    pending: i64,
    in_flight: i64,
    locked: i64,
    parked: i64,
    deferred: i64,
    dead: i64,
    oldest_seconds: f64,
    dispatchers: usize,
    partitions_owned: usize,
}

fn tally(statuses: &[Status], owners: &[String]) -> BTreeMap<String, Tally> {
    let mut tallies: BTreeMap<String, Tally> = BTreeMap::new();
    for queue in statuses.iter().flat_map(|status| &status.queues) {
        let tally = tallies.entry(queue.queue.clone()).or_default();
        tally.pending += queue.pending;
        tally.in_flight += queue.in_flight;
        tally.locked += queue.locked;
        tally.parked += queue.parked;
        tally.deferred += queue.deferred;
        tally.dead += queue.dead;
        tally.oldest_seconds = tally.oldest_seconds.max(queue.oldest_seconds.unwrap_or(0.0));
        tally.dispatchers += queue.dispatchers.len();
        let ours = |owner: &Option<String>| owner.as_ref().is_some_and(|owner| owners.contains(owner));
        tally.partitions_owned += queue.partitions.iter().filter(|p| ours(&p.owner) && !p.lapsed).count();
    }
    tallies
}

fn results_waiting(statuses: &[Status]) -> i64 {
    statuses.iter().flat_map(|status| &status.routes).map(|route| route.waiting).sum()
}

fn saturated_keys(statuses: &[Status]) -> i64 {
    statuses.iter().map(|status| status.saturated_keys).sum()
}

fn publish(tallies: &BTreeMap<String, Tally>, results_waiting: i64, saturated_keys: i64) {
    for (queue, tally) in tallies {
        for (state, count) in [
            ("pending", tally.pending),
            ("in_flight", tally.in_flight),
            ("locked", tally.locked),
            ("parked", tally.parked),
            ("deferred", tally.deferred),
        ] {
            metrics::gauge!(REQUESTS, "queue" => queue.clone(), "state" => state).set(count as f64);
        }
        metrics::gauge!(DEAD_LETTERS, "queue" => queue.clone()).set(tally.dead as f64);
        metrics::gauge!(OLDEST_PENDING, "queue" => queue.clone()).set(tally.oldest_seconds);
        metrics::gauge!(DISPATCHERS, "queue" => queue.clone()).set(tally.dispatchers as f64);
        metrics::gauge!(PARTITIONS_OWNED, "queue" => queue.clone()).set(tally.partitions_owned as f64);
    }
    metrics::gauge!(RESULTS_WAITING).set(results_waiting as f64);
    metrics::gauge!(QUOTA_SATURATED_KEYS).set(saturated_keys as f64);
}

#[cfg(test)]
mod tests {
    use leasehold_store::{DispatcherStatus, PartitionStatus, QueueStatus, RouteStatus};

    use super::*;

    fn status(owner: &str, pending: i64, lapsed: bool) -> Status {
        let partition = |partition| PartitionStatus {
            partition,
            owner: Some(owner.to_owned()),
            epoch: 1,
            draining: false,
            lapsed,
        };
        Status {
            queues: vec![QueueStatus {
                queue: "chat".into(),
                receivers: true,
                pending,
                in_flight: 1,
                locked: 2,
                parked: 0,
                deferred: 0,
                dead: 3,
                oldest_seconds: Some(pending as f64),
                dispatchers: vec![DispatcherStatus {
                    owner: owner.to_owned(),
                    member: true,
                    asleep: false,
                    expires_seconds: 10.0,
                }],
                partitions: (0..3).map(partition).collect(),
            }],
            routes: vec![RouteStatus { route: "replies".into(), waiting: 4 }],
            saturated: Vec::new(),
            saturated_keys: 3,
        }
    }

    #[test]
    fn a_process_is_ready_only_when_every_dispatcher_is() {
        let check = |expected, states: &[(&'static str, Readiness)]| judge(expected, states.iter().cloned());
        assert_eq!(check(1, &[("a", Readiness::Ready)]), Ok(()));
        assert_eq!(check(2, &[("a", Readiness::Ready)]), Err("starting: 1 of 2 dispatchers run".into()));
        let failing = Readiness::Failing("no route to host".into());
        let why = check(2, &[("a", Readiness::Ready), ("b", failing)]).unwrap_err();
        assert_eq!(why, "b: failing: no route to host");
    }

    #[test]
    fn installations_with_a_queue_of_the_same_name_are_summed() {
        let both = [status("a", 5, false), status("b", 7, false)];
        let tallies = tally(&both, &["a".to_owned()]);
        let chat = &tallies["chat"];
        assert_eq!((chat.pending, chat.in_flight, chat.dispatchers), (12, 2, 2));
        assert_eq!((chat.locked, chat.dead), (4, 6));
        assert_eq!((chat.partitions_owned, chat.oldest_seconds), (3, 7.0));
        assert_eq!((results_waiting(&both), saturated_keys(&both)), (8, 6));
    }

    #[test]
    fn a_lapsed_partition_is_not_owned() {
        assert_eq!(tally(&[status("a", 0, true)], &["a".to_owned()])["chat"].partitions_owned, 0);
    }
}
