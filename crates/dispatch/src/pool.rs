//! A pool: requests held ready, and workers that take them.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use rand::rngs::StdRng;
use tokio::{
    sync::{Notify, Semaphore},
    time::{Instant, sleep},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    backend::Backend, cancellation::Cancellations, config::PoolConfig, gate::Gate, job::Job, lanes::Lanes,
    retry::RetryPolicy, worker,
};

/// After the pool's gate has sent a request back nothing is brought for so long.
const REFUSED: Duration = Duration::from_millis(100);
/// Between two looks at what waits for a worker.
const LOOK: Duration = Duration::from_secs(1);

/// Workers of one backend.
pub(crate) struct Pool {
    pub(crate) name: String,
    pub(crate) gate: Arc<dyn Gate>,
    /// Zero: until the deadline.
    pub(crate) gate_wait_timeout: Duration,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) cancellations: Cancellations,
    pub(crate) retry: RetryPolicy,
    /// Fires when what waits at the gate is to be handed back.
    pub(crate) draining: CancellationToken,
    /// Handed back from there.
    waited: AtomicUsize,
    /// Fires when calls under way are to be given up.
    pub(crate) abort: CancellationToken,
    concurrency: usize,
    prefetch: usize,
    state: Mutex<State>,
    arrived: Notify,
    freed: Vec<Notify>,
    calls: TaskTracker,
}

struct State {
    lanes: Lanes<Job>,
    rng: StdRng,
    /// The pool's gate has just sent a request back: bring no others so soon.
    refused_until: Option<Instant>,
}

impl Pool {
    pub(crate) fn new(
        config: &PoolConfig,
        queues: usize,
        gate: Arc<dyn Gate>,
        backend: Arc<dyn Backend>,
        cancellations: Cancellations,
        retry: RetryPolicy,
        rng: StdRng,
    ) -> Self {
        let prefetch = if config.prefetch == 0 { config.concurrency } else { config.prefetch };
        Self {
            name: config.name.clone(),
            gate,
            gate_wait_timeout: config.gate_wait_timeout,
            backend,
            cancellations,
            retry,
            draining: CancellationToken::new(),
            waited: AtomicUsize::new(0),
            abort: CancellationToken::new(),
            concurrency: config.concurrency,
            prefetch,
            state: Mutex::new(State { lanes: Lanes::new(config.merge, queues), rng, refused_until: None }),
            arrived: Notify::new(),
            freed: (0..queues).map(|_| Notify::new()).collect(),
            calls: TaskTracker::new(),
        }
    }

    /// How many more requests of the queue at `place` may be held ready.
    pub(crate) fn room(&self, place: usize) -> usize {
        let state = self.state();
        if state.refused_until.is_some_and(|until| Instant::now() < until) {
            return 0;
        }
        self.prefetch.saturating_sub(state.lanes.waiting(place))
    }

    /// A request was sent back by the pool's gate.
    pub(crate) fn refused(&self) {
        self.state().refused_until = Some(Instant::now() + REFUSED);
    }

    /// How many requests of each queue are held ready at most.
    pub(crate) fn prefetch(&self) -> usize {
        self.prefetch
    }

    /// Waits until there may be more room for the queue at `place`. Cancel safe.
    pub(crate) async fn room_freed(&self, place: usize) {
        self.freed[place].notified().await;
    }

    /// From now on the job learns of its cancellation.
    pub(crate) fn watch(&self, job: &mut Job) {
        if job.watch.is_none() {
            let stamp = job.stamp();
            job.watch = Some(self.cancellations.watch(&stamp.id, &stamp.token));
        }
    }

    pub(crate) fn push(&self, mut job: Job) {
        self.watch(&mut job);
        let (place, lane) = (job.served.place, job.lane());
        self.state().lanes.push(place, lane, job);
        self.arrived.notify_one();
    }

    /// Ends what waits for a worker and has its outcome already.
    fn end_waiting(&self) {
        let ended = self.state().lanes.take_if(|job| job.outcome_while_waiting().is_some());
        for job in ended {
            self.freed[job.served.place].notify_one();
            if let Some(verdict) = job.outcome_while_waiting() {
                job.settle(verdict);
            }
        }
    }

    /// Takes everything that no worker has begun.
    pub(crate) fn take_ready(&self) -> Vec<Job> {
        self.state().lanes.take_all()
    }

    /// Gives jobs to workers until `stop` fires.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken) {
        let free = Arc::new(Semaphore::new(self.concurrency));
        let work = async {
            loop {
                let Ok(permit) = free.clone().acquire_owned().await else { return };
                let job = self.next().await;
                let pool = Arc::clone(&self);
                self.calls.spawn(async move {
                    worker::run(&pool, job).await;
                    drop(permit);
                });
            }
        };
        let look = async {
            loop {
                sleep(LOOK).await;
                self.end_waiting();
            }
        };
        // Cancelled between jobs only: `next` holds none while it waits.
        stop.run_until_cancelled(async { tokio::join!(work, look) }).await;
    }

    async fn next(&self) -> Job {
        loop {
            // Asked for before looking, so that an arrival in between is not missed.
            let arrived = self.arrived.notified();
            if let Some(job) = self.pop() {
                self.freed[job.served.place].notify_one();
                return job;
            }
            arrived.await;
        }
    }

    fn pop(&self) -> Option<Job> {
        let State { lanes, rng, .. } = &mut *self.state();
        lanes.pop(rng)
    }

    /// Lets calls finish for `timeout`, then gives them up; what only waits at the gate is given up at once. Returns
    /// how many were under way, and how many of them were given up.
    pub(crate) async fn drain(&self, timeout: Duration) -> (usize, usize) {
        self.calls.close();
        let running = self.calls.len();
        self.draining.cancel();
        let mut given_up = 0;
        if tokio::time::timeout(timeout, self.calls.wait()).await.is_err() {
            given_up = self.calls.len();
            self.abort.cancel();
            self.calls.wait().await;
        }
        (running, given_up + self.waited.load(Ordering::SeqCst))
    }

    /// One that waited at the gate is handed back.
    pub(crate) fn gives_up_waiting(&self) {
        self.waited.fetch_add(1, Ordering::SeqCst);
    }

    /// Draws from the pool's generator.
    pub(crate) fn with_rng<T>(&self, draw: impl FnOnce(&mut StdRng) -> T) -> T {
        draw(&mut self.state().rng)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
