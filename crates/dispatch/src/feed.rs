//! Feeding a pool from one queue: poll for as much as there is room for, sort out what must not be sent, and
//! know when to look next.

mod tenants;

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures_util::future::join_all;
use leasehold_store::{Bell, Error};
use rand::{SeedableRng, rngs::StdRng};
use tokio::{
    sync::{Notify, mpsc},
    task::{JoinError, JoinSet},
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

use crate::{
    backend::ErrorCode,
    consumer::Polled,
    doze::{Cause, Doze, Step},
    gate::{Decision, Patience, Turned},
    job::{Job, Served, Verdict, decode, dropped, failed},
    pool::Pool,
};
use tenants::{Fared, Tenants};

/// How long to wait for a budget that is zero, or for a room nobody announced.
const NO_ROOM: Duration = Duration::from_millis(50);
/// Between two looks for cancelled and late requests while there is no room for others.
const ENDED: Duration = Duration::from_secs(1);
/// After a failed poll, doubling up to a second.
const FAILED: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// A tenant whose gate failed is tried again after so long.
const GATE_FAILED: Duration = Duration::from_millis(250);
/// Parked requests made due by one statement.
const PROMOTIONS: u32 = 1000;

/// What a feeder is told besides its queue and its pool.
pub(crate) struct FeederOptions {
    pub(crate) bells: mpsc::Receiver<Bell>,
    /// Rung when a poll failed: the next beat should not wait.
    pub(crate) beat_now: Arc<Notify>,
    pub(crate) batch: u32,
    pub(crate) fallback: Duration,
    /// Requests are there that came before the queue told tenants apart.
    pub(crate) unlabelled: bool,
}

/// Brings a queue's requests to its pool.
pub(crate) struct Feeder {
    served: Arc<Served>,
    pool: Arc<Pool>,
    options: FeederOptions,
    /// When parked requests are looked at next.
    due: Instant,
    tenants: Tenants,
    /// Jobs that wait at the gate, by tenant.
    waiting: JoinSet<String>,
    /// Whether requests without a tenant are polled first.
    plain_first: bool,
    stop: CancellationToken,
}

impl Feeder {
    pub(crate) fn new(
        served: Arc<Served>,
        pool: Arc<Pool>,
        stop: CancellationToken,
        options: FeederOptions,
    ) -> Self {
        let rng = pool.with_rng(StdRng::from_rng);
        let tenants = Tenants::new(Arc::clone(&served.look), rng);
        let due = Instant::now();
        Self { served, pool, options, due, tenants, waiting: JoinSet::new(), plain_first: false, stop }
    }

    /// Feeds until told to stop. A poll under way is finished first, and what waits at the gate handed back.
    pub(crate) async fn run(mut self) {
        self.label_tenants().await;
        let mut doze = Doze::default();
        let mut failed = FAILED.0;
        let mut batch = self.options.batch;
        let mut ended = Instant::now();
        let mut cause = Cause::Other;
        while !self.stop.is_cancelled() {
            if Instant::now() >= self.due {
                self.due = Instant::now() + self.promote().await;
            }
            self.reap_waiting();
            let asked = self.asked(batch);
            if asked == 0 {
                if Instant::now() >= ended {
                    ended = Instant::now() + ENDED;
                    self.end_without_room().await;
                }
                self.wait_for_room().await;
                continue;
            }
            let step = match self.poll(asked).await {
                Ok(polled) => {
                    failed = FAILED.0;
                    batch = batch.saturating_mul(2).min(self.options.batch);
                    let found = polled.len();
                    let refused = self.sort_out(polled).await;
                    if refused { Step::Pause(NO_ROOM) } else { doze.step(cause, found, asked as usize) }
                }
                Err(error) => {
                    self.report(&error);
                    // Perhaps it was too much for the time a statement has.
                    batch = (asked / 2).max(1);
                    let pause = failed;
                    failed = (failed * 2).min(FAILED.1);
                    Step::Pause(pause)
                }
            };
            cause = self.take(step).await;
        }
        while self.waiting.join_next().await.is_some() {}
    }

    async fn label_tenants(&self) {
        if !self.options.unlabelled {
            return;
        }
        let labelled = self.stop.run_until_cancelled(self.served.consumer.label_tenants()).await;
        match labelled {
            Some(Ok(0)) | None => {}
            Some(Ok(count)) => {
                tracing::info!(queue = self.served.name, count, "requests were labelled with their tenants")
            }
            // What is not labelled is, when a gate hands it back.
            Some(Err(error)) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(
                    queue = self.served.name,
                    error,
                    "not all requests could be labelled with their tenants"
                );
            }
        }
    }

    /// Requests without a tenant and those of tenants, each first in turn.
    async fn poll(&mut self, asked: u32) -> Result<Vec<Polled>, Error> {
        if !self.served.has_tenants() {
            return self.served.consumer.poll(asked).await;
        }
        self.plain_first = !self.plain_first;
        let first = self.poll_one_kind(self.plain_first, asked).await?;
        let left = asked.saturating_sub(u32::try_from(first.len()).unwrap_or(u32::MAX));
        if left == 0 {
            return Ok(first);
        }
        let mut polled = first;
        match self.poll_one_kind(!self.plain_first, left).await {
            Ok(second) => polled.extend(second),
            // What the first brought is ours all the same.
            Err(error) => self.report(&error),
        }
        Ok(polled)
    }

    async fn poll_one_kind(&mut self, plain: bool, asked: u32) -> Result<Vec<Polled>, Error> {
        if plain {
            return self.served.consumer.poll(asked).await;
        }
        let polled = self.served.consumer.poll_tenants(asked, self.tenants.poll(asked)).await?;
        self.tenants.polled(polled.after, polled.tenants);
        Ok(polled.requests)
    }

    /// As many as the pool has room for, up to a batch, times the gate's budget.
    fn asked(&self, batch: u32) -> u32 {
        let budget = self.served.gate.budget().min(self.pool.gate.budget()).clamp(0.0, 1.0);
        metrics::gauge!("leasehold_budget", "queue" => self.served.name.clone()).set(budget);
        let room = self.pool.room(self.served.place).saturating_sub(self.waiting.len());
        let room = u32::try_from(room).unwrap_or(u32::MAX).min(batch);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to `room`")]
        let asked = (f64::from(room) * budget).ceil() as u32;
        asked
    }

    /// Cancelled and late requests have their outcome, room or not.
    async fn end_without_room(&mut self) {
        let consumer = &self.served.consumer;
        let mut ended = consumer.poll_ended(self.options.batch).await;
        if let (Ok(ended), true) = (&mut ended, self.served.has_tenants()) {
            match consumer.poll_tenants(self.options.batch, self.tenants.poll_ended(self.options.batch)).await
            {
                Ok(polled) => {
                    ended.extend(polled.requests);
                    self.tenants.polled(polled.after, 0);
                }
                Err(error) => self.report(&error),
            }
        }
        match ended {
            Ok(polled) => {
                self.sort_out(polled).await;
            }
            Err(error) => self.report(&error),
        }
    }

    fn report(&self, error: &Error) {
        tracing::warn!(
            queue = self.served.name,
            error = error as &dyn std::error::Error,
            "a poll failed; what it may have stamped is handed back"
        );
        self.options.beat_now.notify_one();
    }

    async fn wait_for_room(&mut self) {
        tokio::select! {
            () = self.pool.room_freed(self.served.place) => {}
            Some(waited) = self.waiting.join_next() => self.waited(waited),
            () = sleep(NO_ROOM) => {}
            () = self.stop.cancelled() => {}
        }
    }

    /// Makes due requests pending; returns when to do so next.
    async fn promote(&self) -> Duration {
        match self.served.consumer.promote_due(PROMOTIONS).await {
            Ok(promotion) if promotion.promoted >= i64::from(PROMOTIONS) => Duration::ZERO,
            Ok(promotion) => promotion.next.unwrap_or(self.options.fallback).min(self.options.fallback),
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "parked requests could not be looked at"
                );
                self.options.fallback
            }
        }
    }

    /// Ends what has its outcome already, asks the gate about the rest all at once, and hands what passes to the
    /// pool. True when the gate refused any that has no tenant: the next poll would bring it again.
    async fn sort_out(&mut self, polled: Vec<Polled>) -> bool {
        let queue = &self.served.name;
        metrics::counter!("leasehold_dispatches_total", "queue" => queue.clone())
            .increment(polled.len() as u64);
        metrics::gauge!("leasehold_in_flight", "queue" => queue.clone())
            .set(self.served.consumer.in_flight() as f64);
        let mut jobs = Vec::with_capacity(polled.len());
        for polled in polled {
            let decoded = decode(&polled.request);
            let (headers, metadata) = decoded.clone().unwrap_or_default();
            let job = Job::new(&self.served, polled, headers, metadata);
            match outcome_before_call(&job, decoded.err()) {
                Some(verdict) => job.settle(verdict),
                None => jobs.push(job),
            }
        }
        let gate = &self.served.gate;
        let decisions = join_all(jobs.iter().map(|job| gate.decide(job.asked()))).await;
        let mut fared: HashMap<String, Fared> = HashMap::new();
        let mut refused = false;
        for (job, decision) in std::iter::zip(jobs, decisions) {
            let tenant = job.polled.request.tenant.clone();
            let turned = self.follow(job, decision, fared.entry(tenant.clone()).or_default());
            refused |= turned && tenant.is_empty();
        }
        fared.remove("");
        self.tenants.learn(fared);
        refused
    }

    /// Does what the gate decided. True when the request was handed back.
    fn follow(&mut self, mut job: Job, decision: Decision, fared: &mut Fared) -> bool {
        decision.count(&*self.served.gate);
        match decision {
            Decision::Continue(mut pass) => {
                fared.passed += 1;
                fared.freed = pass.freed.take().or(fared.freed.take());
                job.passed(pass);
                self.pool.push(job);
                false
            }
            Decision::Drop(drop) => {
                let stamp = job.stamp();
                job.settle(dropped(stamp, drop));
                false
            }
            Decision::Wait(turned) => {
                fared.turned = Some(turned.clone());
                let tenant = job.polled.request.tenant.clone();
                self.tenants.waits(&tenant);
                let wait = wait_at_gate(Arc::clone(&self.pool), job, turned, self.stop.clone());
                self.waiting.spawn(async move {
                    wait.await;
                    tenant
                });
                false
            }
            Decision::Refuse(turned) => {
                fared.turned = Some(turned);
                hand_back(job);
                true
            }
            Decision::Fail(failed) => {
                tracing::warn!(
                    queue = self.served.name,
                    gate = failed.by,
                    message = failed.message,
                    "a gate failed"
                );
                fared.turned = Some(Turned { after: Some(GATE_FAILED), ..Turned::by(failed.by) });
                hand_back(job);
                true
            }
        }
    }

    fn reap_waiting(&mut self) {
        while let Some(waited) = self.waiting.try_join_next() {
            self.waited(waited);
        }
    }

    fn waited(&mut self, waited: Result<String, JoinError>) {
        match waited {
            Ok(tenant) => self.tenants.waited(&tenant),
            Err(error) => {
                tracing::error!(error = &error as &dyn std::error::Error, "waiting at a gate panicked")
            }
        }
    }

    /// Does what the doze says, and returns why the next look is made.
    async fn take(&mut self, step: Step) -> Cause {
        match step {
            Step::Look => Cause::Other,
            Step::Pause(pause) => {
                tokio::select! {
                    () = sleep(pause) => {}
                    () = self.served.look.notified() => {}
                    () = self.stop.cancelled() => {}
                }
                Cause::Other
            }
            Step::AskForBell | Step::AskForQuiet => {
                if let Err(error) = self.served.consumer.set_asleep(step == Step::AskForBell).await {
                    tracing::debug!(
                        error = &error as &dyn std::error::Error,
                        "the bell could not be asked for"
                    );
                }
                Cause::Other
            }
            Step::Sleep => self.sleep().await,
        }
    }

    async fn sleep(&mut self) -> Cause {
        let started = Instant::now();
        let fallback = started + self.options.fallback;
        let soonest = self.tenants.next().map_or(self.due, |next| next.min(self.due));
        loop {
            tokio::select! {
                bell = self.options.bells.recv() => match bell {
                    Some(Bell::Rung(partition)) if !self.concerns_us(&partition) => {}
                    Some(Bell::Rung(partition)) => {
                        let mut parked = partition.is_empty();
                        while let Ok(bell) = self.options.bells.try_recv() {
                            parked |= !matches!(bell, Bell::Rung(partition) if !partition.is_empty());
                        }
                        if parked {
                            self.due = started;
                        }
                        return Cause::Bell(started.elapsed());
                    }
                    Some(Bell::Connected) => return Cause::Other,
                    None => { sleep_until(fallback).await; return Cause::Fallback }
                },
                () = sleep_until(soonest.min(fallback)) => {
                    return if soonest < fallback { Cause::Other } else { Cause::Fallback };
                }
                Some(waited) = self.waiting.join_next() => self.waited(waited),
                () = self.served.look.notified() => return Cause::Other,
                () = self.stop.cancelled() => return Cause::Other,
            }
        }
    }

    /// A bell names a partition, or none for many requests or a parked one.
    fn concerns_us(&self, partition: &str) -> bool {
        partition.parse().map_or(true, |partition| self.served.consumer.holds(partition))
    }
}

/// Asks the gate until it decides. What waits is handed back when the feeder stops.
async fn wait_at_gate(pool: Arc<Pool>, mut job: Job, mut turned: Turned, stop: CancellationToken) {
    pool.watch(&mut job);
    let gate = Arc::clone(&job.served.gate);
    let lost = job.polled.lost.clone();
    let mut patience = Patience::default();
    loop {
        tokio::select! {
            () = patience.pause(&turned, &pool) => {}
            () = lost.cancelled() => return,
            () = stop.cancelled() => return hand_back(job),
        }
        if let Some(verdict) = job.outcome_while_waiting() {
            return job.settle(verdict);
        }
        let decision = gate.decide(job.asked()).await;
        decision.count(&*gate);
        match decision {
            Decision::Wait(again) => turned = again,
            Decision::Continue(pass) => {
                job.passed(pass);
                return pool.push(job);
            }
            Decision::Drop(drop) => {
                let stamp = job.stamp();
                return job.settle(dropped(stamp, drop));
            }
            Decision::Refuse(_) => return hand_back(job),
            Decision::Fail(failed) => {
                tracing::warn!(gate = failed.by, message = failed.message, "a gate failed");
                return hand_back(job);
            }
        }
    }
}

/// It keeps its place, and the delivery does not count.
fn hand_back(job: Job) {
    let stamp = job.stamp();
    job.settle(Verdict::Back(stamp));
}

/// In the order of the contract: undecodable, deadline passed, cancelled, handed out too often.
fn outcome_before_call(job: &Job, undecodable: Option<String>) -> Option<Verdict> {
    let request = &job.polled.request;
    let (code, message) = if let Some(message) = undecodable {
        (ErrorCode::InvalidRequest, message)
    } else if request.expired {
        (ErrorCode::DeadlineExceeded, "the deadline passed before the dispatch".to_owned())
    } else if request.cancelled {
        (ErrorCode::Cancelled, "the request was cancelled".to_owned())
    } else if request.deliveries > job.served.max_deliveries() {
        let times = request.deliveries - 1;
        (ErrorCode::MaxDeliveriesExceeded, format!("handed out {times} times without an outcome"))
    } else {
        return None;
    };
    Some(Verdict::Done(failed(job.stamp(), code, message)))
}
