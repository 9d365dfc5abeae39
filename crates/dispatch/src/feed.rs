//! Feeding a pool from one queue: poll for as much as there is room for, sort out what must not be sent, and
//! know when to look next.

mod admit;
mod tenants;

use std::{sync::Arc, time::Duration};

use leasehold_store::{Bell, Error};
use rand::{SeedableRng, rngs::StdRng};
use tokio::{
    sync::{Notify, mpsc},
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

use crate::{
    consumer::Polled,
    doze::{Cause, Doze, Look, Step},
    gate::Free,
    job::Served,
    pool::Pool,
};
use admit::Aside;
use tenants::Tenants;

/// How long to wait for a budget that is zero, or for a room nobody announced.
const NO_ROOM: Duration = Duration::from_millis(50);
/// Between two looks for cancelled and late requests while there is no room for others.
const ENDED: Duration = Duration::from_secs(1);
/// Between two looks for requests without a tenant where others have one.
const PLAIN: Duration = Duration::from_millis(50);
/// After a failed poll, doubling up to a second.
const FAILED: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// Parked requests made due by one statement.
const PROMOTIONS: i32 = 1000;
/// Between two looks at parked requests and groups while awake, though none is known to be due: nobody rings then.
const PROMOTE: Duration = Duration::from_secs(1);

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
    doze: Doze,
    /// When parked requests and groups are looked at next, and when they were last.
    due: Instant,
    promoted: Instant,
    tenants: Tenants,
    /// Jobs that the gate makes wait, and those it takes its time with.
    aside: JoinSet<Aside>,
    /// Whether requests without a tenant are polled first, and when again after a look that found none.
    plain_first: bool,
    plain_due: Instant,
    /// The last look was for requests of tenants alone: no sleep is longer than until `plain_due`.
    plain_skipped: bool,
    /// What the gate had free when it was last asked.
    free: Option<Free>,
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
        Self {
            served,
            pool,
            options,
            doze: Doze::new(due),
            due,
            promoted: due,
            tenants,
            aside: JoinSet::new(),
            plain_first: false,
            plain_due: due,
            plain_skipped: false,
            free: None,
            stop,
        }
    }

    /// Feeds until told to stop. A poll under way is finished first, and what waits at the gate handed back.
    pub(crate) async fn run(mut self) {
        self.label_tenants();
        let mut failed = FAILED.0;
        let mut batch = self.options.batch;
        let mut ended = Instant::now();
        let mut cause = Cause::Other;
        while !self.stop.is_cancelled() {
            let due = if self.doze.is_asleep() { self.due } else { self.due.min(self.promoted + PROMOTE) };
            if Instant::now() >= due {
                self.promoted = Instant::now();
                self.due = self.promoted + self.promote().await;
            }
            self.look_aside();
            let asked = self.asked(batch);
            if asked == 0 {
                if Instant::now() >= ended {
                    ended = Instant::now() + ENDED;
                    self.end_without_room().await;
                }
                self.wait_for_room().await;
                continue;
            }
            let step = match self.poll(asked, cause).await {
                Ok(polled) => {
                    failed = FAILED.0;
                    batch = batch.saturating_mul(2).min(self.options.batch);
                    let found = polled.len();
                    let back = self.sort_out(polled).await;
                    let asked = asked as usize;
                    // Tries that nothing came of keep nobody awake: `Tenants` knows when the next are due.
                    let found = if found < asked { found - back.of_tenants } else { found };
                    let (at, members) = (Instant::now(), self.served.members());
                    match back.without_tenant {
                        0 => self.doze.step(Look { at, cause, found, asked, members }),
                        _ => Step::Pause(NO_ROOM),
                    }
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
        while let Some(ended) = self.aside.join_next().await {
            self.come_back(ended);
        }
    }

    /// Beside the polls: what they meet unlabelled is labelled when it is handed back.
    fn label_tenants(&self) {
        if !self.options.unlabelled {
            return;
        }
        let (served, stop) = (Arc::clone(&self.served), self.stop.clone());
        tokio::spawn(async move {
            match stop.run_until_cancelled(served.consumer.label_tenants()).await {
                Some(Ok(0)) | None => {}
                Some(Ok(count)) => {
                    tracing::info!(queue = served.name, count, "requests were labelled with their tenants");
                }
                Some(Err(error)) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(
                        queue = served.name,
                        error,
                        "not all requests could be labelled with their tenants"
                    );
                }
            }
        });
    }

    /// Requests of tenants and those without, each first in turn. Where there are tenants, others are looked for when
    /// a bell rang, and now and then.
    async fn poll(&mut self, asked: u32, cause: Cause) -> Result<Vec<Polled>, Error> {
        if !self.served.has_tenants() {
            return self.served.consumer.poll(asked).await;
        }
        self.plain_skipped = cause == Cause::Other && Instant::now() < self.plain_due;
        if self.plain_skipped {
            return self.poll_tenants(asked).await;
        }
        self.plain_first = !self.plain_first;
        let mut polled = match self.plain_first {
            true => self.poll_plain(asked).await?,
            false => self.poll_tenants(asked).await?,
        };
        let left = asked.saturating_sub(u32::try_from(polled.len()).unwrap_or(u32::MAX));
        if left > 0 {
            let second = match self.plain_first {
                true => self.poll_tenants(left).await,
                false => self.poll_plain(left).await,
            };
            match second {
                Ok(second) => polled.extend(second),
                // What the first brought is ours all the same.
                Err(error) => self.report(&error),
            }
        }
        Ok(polled)
    }

    async fn poll_plain(&mut self, asked: u32) -> Result<Vec<Polled>, Error> {
        let polled = self.served.consumer.poll(asked).await?;
        if polled.is_empty() {
            self.plain_due = Instant::now() + PLAIN;
        }
        Ok(polled)
    }

    async fn poll_tenants(&mut self, asked: u32) -> Result<Vec<Polled>, Error> {
        let polled = self.served.consumer.poll_tenants(asked, self.tenants.poll(asked)).await?;
        self.tenants.polled(polled.after);
        Ok(polled.requests)
    }

    /// As many as the pool has room for, up to a batch, times the gate's budget.
    fn asked(&mut self, batch: u32) -> u32 {
        let budget = self.served.gate.budget().min(self.pool.gate.budget()).clamp(0.0, 1.0);
        metrics::gauge!("leasehold_budget", "queue" => self.served.name.clone()).set(budget);
        let room = self.pool.room(self.served.place).saturating_sub(self.aside.len());
        let room = u32::try_from(room).unwrap_or(u32::MAX).min(batch);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to `room`")]
        let asked = (f64::from(room) * budget).ceil() as u32;
        self.free = self.served.gate.free();
        self.free.as_ref().map_or(asked, |free| asked.min(u32::try_from(free.count).unwrap_or(u32::MAX)))
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
                    self.tenants.polled(polled.after);
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
        let freed = async {
            match &self.free {
                Some(free) => free.freed.wait().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = freed => {}
            () = self.pool.room_freed(self.served.place) => {}
            Some(ended) = self.aside.join_next() => self.come_back(ended),
            () = sleep(NO_ROOM) => {}
            () = self.stop.cancelled() => {}
        }
    }

    /// Makes due requests pending; returns when to do so next. Any member may, so that of several each does less.
    async fn promote(&self) -> Duration {
        let fallback = self.options.fallback * self.served.members().clamp(1, 4);
        match self.served.consumer.promote_due(PROMOTIONS).await {
            Ok(promotion) if promotion.promoted >= i64::from(PROMOTIONS) => Duration::ZERO,
            Ok(promotion) => promotion.next.unwrap_or(fallback).min(fallback),
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "parked requests could not be looked at"
                );
                fallback
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
                // They are old, and answered by the look that follows.
                while self.options.bells.try_recv().is_ok() {}
                if let Err(error) = self.served.consumer.set_asleep(step == Step::AskForBell).await {
                    tracing::debug!(
                        error = &error as &dyn std::error::Error,
                        "the bell could not be asked for"
                    );
                }
                // A group that was left for later while nobody could ring.
                self.due = Instant::now();
                Cause::Other
            }
            Step::Sleep => self.sleep().await,
        }
    }

    async fn sleep(&mut self) -> Cause {
        let started = Instant::now();
        let fallback = started + self.options.fallback;
        let mut soonest = self.soonest();
        loop {
            tokio::select! {
                bell = self.options.bells.recv() => match bell {
                    Some(Bell::Rung(partition)) => {
                        let restless = self.doze.hear(Instant::now());
                        if !restless && !self.concerns_us(&partition) {
                            continue;
                        }
                        let mut parked = partition.is_empty();
                        while let Ok(bell) = self.options.bells.try_recv() {
                            self.doze.hear(Instant::now());
                            parked |= !matches!(bell, Bell::Rung(partition) if !partition.is_empty());
                        }
                        if parked {
                            self.due = started;
                        }
                        return Cause::Bell;
                    }
                    Some(Bell::Connected) => return Cause::Other,
                    None => { sleep_until(fallback).await; return Cause::Fallback }
                },
                () = sleep_until(soonest.min(fallback)) => {
                    return if soonest < fallback { Cause::Other } else { Cause::Fallback };
                }
                Some(ended) = self.aside.join_next() => {
                    self.come_back(ended);
                    // Its tenant has its turn again.
                    soonest = self.soonest();
                }
                () = self.served.look.notified() => return Cause::Other,
                () = self.stop.cancelled() => return Cause::Other,
            }
        }
    }

    /// When to look, though nobody rings.
    fn soonest(&self) -> Instant {
        let plain = self.plain_skipped.then_some(self.plain_due);
        self.tenants.next().into_iter().chain(plain).fold(self.due, Instant::min)
    }

    /// A bell names a partition, or none for many requests or a parked one.
    fn concerns_us(&self, partition: &str) -> bool {
        partition.parse().map_or(true, |partition| self.served.consumer.holds(partition))
    }
}
