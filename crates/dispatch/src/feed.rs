//! Feeding a pool from one queue: poll for as much as there is room for, sort out what must not be sent, and
//! know when to look next.

use std::{sync::Arc, time::Duration};

use leasehold_store::{Bell, Error};
use tokio::{
    sync::{Notify, mpsc},
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

use crate::{
    backend::ErrorCode,
    consumer::Polled,
    doze::{Cause, Doze, Step},
    gate::Decision,
    job::{Job, Served, Verdict, decode, failed},
    pool::Pool,
};

/// How long to wait for a budget that is zero, or for a room nobody announced.
const NO_ROOM: Duration = Duration::from_millis(50);
/// Between two looks for cancelled and late requests while there is no room for others.
const ENDED: Duration = Duration::from_secs(1);
/// After a failed poll, doubling up to a second.
const FAILED: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// Parked requests made due by one statement.
const PROMOTIONS: u32 = 1000;

/// Brings a queue's requests to its pool.
pub(crate) struct Feeder {
    pub(crate) served: Arc<Served>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) bells: mpsc::Receiver<Bell>,
    /// Rung when a poll failed: the next beat should not wait.
    pub(crate) beat_now: Arc<Notify>,
    pub(crate) batch: u32,
    pub(crate) fallback: Duration,
    /// When parked requests are looked at next.
    pub(crate) due: Instant,
    pub(crate) stop: CancellationToken,
}

impl Feeder {
    /// Feeds until told to stop. A poll under way is finished first.
    pub(crate) async fn run(mut self) {
        let mut doze = Doze::default();
        let mut failed = FAILED.0;
        let mut batch = self.batch;
        let mut ended = Instant::now();
        let mut cause = Cause::Other;
        while !self.stop.is_cancelled() {
            if Instant::now() >= self.due {
                self.due = Instant::now() + self.promote().await;
            }
            let asked = self.asked(batch);
            if asked == 0 {
                if Instant::now() >= ended {
                    ended = Instant::now() + ENDED;
                    self.end_without_room().await;
                }
                self.wait_for_room().await;
                continue;
            }
            let step = match self.served.consumer.poll(asked).await {
                Ok(polled) => {
                    failed = FAILED.0;
                    batch = batch.saturating_mul(2).min(self.batch);
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
    }

    /// As many as the pool has room for, up to a batch, times the gate's budget.
    fn asked(&self, batch: u32) -> u32 {
        let budget = self.served.gate.budget().min(self.pool.gate.budget()).clamp(0.0, 1.0);
        metrics::gauge!("leasehold_budget", "queue" => self.served.name.clone()).set(budget);
        let room = u32::try_from(self.pool.room(self.served.place)).unwrap_or(u32::MAX).min(batch);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to `room`")]
        let asked = (f64::from(room) * budget).ceil() as u32;
        asked
    }

    /// Cancelled and late requests have their outcome, room or not.
    async fn end_without_room(&self) {
        match self.served.consumer.poll_ended(self.batch).await {
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
        self.beat_now.notify_one();
    }

    async fn wait_for_room(&self) {
        tokio::select! {
            () = self.pool.room_freed(self.served.place) => {}
            () = sleep(NO_ROOM) => {}
            () = self.stop.cancelled() => {}
        }
    }

    /// Makes due requests pending; returns when to do so next.
    async fn promote(&self) -> Duration {
        match self.served.consumer.promote_due(PROMOTIONS).await {
            Ok(promotion) if promotion.promoted >= i64::from(PROMOTIONS) => Duration::ZERO,
            Ok(promotion) => promotion.next.unwrap_or(self.fallback).min(self.fallback),
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "parked requests could not be looked at"
                );
                self.fallback
            }
        }
    }

    /// Ends what has its outcome already, asks the gate about the rest, and hands that to the pool. True when the
    /// gate refused any.
    async fn sort_out(&self, polled: Vec<Polled>) -> bool {
        let queue = &self.served.name;
        metrics::counter!("leasehold_dispatches_total", "queue" => queue.clone())
            .increment(polled.len() as u64);
        metrics::gauge!("leasehold_in_flight", "queue" => queue.clone())
            .set(self.served.consumer.in_flight() as f64);
        let mut refused = false;
        for polled in polled {
            let decoded = decode(&polled.request);
            let (headers, metadata) = decoded.clone().unwrap_or_default();
            let job = Job::new(&self.served, polled, headers, metadata);
            match outcome_before_call(&job, decoded.err()) {
                Some(verdict) => job.settle(verdict),
                None => refused |= !self.ask_gate(job).await,
            }
        }
        refused
    }

    async fn ask_gate(&self, mut job: Job) -> bool {
        let gate = &self.served.gate;
        loop {
            let decision = gate.decide(&job.polled.request).await;
            metrics::counter!("leasehold_gate_decisions_total", "gate" => gate.name(), "decision" => decision.as_str())
                .increment(1);
            match decision {
                Decision::Continue(release) => {
                    job.releases.push(release);
                    self.pool.push(job);
                    return true;
                }
                Decision::Wait if !self.stop.is_cancelled() => sleep(NO_ROOM).await,
                Decision::Drop(message) => {
                    let stamp = job.stamp();
                    job.settle(Verdict::Done(failed(stamp, ErrorCode::GateDropped, message)));
                    return true;
                }
                Decision::Fail(message) => {
                    tracing::warn!(queue = self.served.name, gate = gate.name(), message, "a gate failed");
                    let stamp = job.stamp();
                    job.settle(Verdict::Back(stamp));
                    return false;
                }
                Decision::Wait | Decision::Refuse => {
                    let stamp = job.stamp();
                    job.settle(Verdict::Back(stamp));
                    return false;
                }
            }
        }
    }

    /// Does what the doze says, and returns why the next look is made.
    async fn take(&mut self, step: Step) -> Cause {
        match step {
            Step::Look => Cause::Other,
            Step::Pause(pause) => {
                tokio::select! { () = sleep(pause) => {} () = self.stop.cancelled() => {} }
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
        let fallback = started + self.fallback;
        loop {
            tokio::select! {
                bell = self.bells.recv() => match bell {
                    Some(Bell::Rung(partition)) if !self.concerns_us(&partition) => {}
                    Some(Bell::Rung(partition)) => {
                        let mut parked = partition.is_empty();
                        while let Ok(bell) = self.bells.try_recv() {
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
                () = sleep_until(self.due.min(fallback)) => {
                    return if self.due < fallback { Cause::Other } else { Cause::Fallback };
                }
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
