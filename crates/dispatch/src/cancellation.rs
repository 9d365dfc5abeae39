//! Cancellation of running requests: asked about once a second, in one query for all workers.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use leasehold_store::Store;
use tokio::{
    sync::{mpsc, oneshot},
    time::{MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;

type Key = (String, String);
type Question = (Key, oneshot::Sender<bool>);

/// Between two looks at everything that runs.
const INTERVAL: Duration = Duration::from_secs(1);
/// Keys in one query at most.
const BATCH: usize = 10_000;

/// Knows which requests of this process have been cancelled.
#[derive(Clone, Debug)]
pub struct Cancellations {
    running: Arc<Mutex<HashMap<Key, Vec<CancellationToken>>>>,
    questions: mpsc::Sender<Question>,
}

/// A request under watch; it ends when dropped.
#[derive(Debug)]
pub struct Watch {
    cancellations: Cancellations,
    key: Key,
    /// Fires when the request has been cancelled.
    pub cancelled: CancellationToken,
}

impl Cancellations {
    /// Starts asking. It ends when `stop` fires.
    pub fn start(store: Store, stop: CancellationToken) -> Self {
        let (questions, asked) = mpsc::channel(BATCH);
        let cancellations = Self { running: Arc::default(), questions };
        let running = Arc::clone(&cancellations.running);
        tokio::spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = keep_looking(&store, &running) => {}
                () = keep_answering(&store, asked) => {}
            }
        });
        cancellations
    }

    /// Watches a request for as long as the answer is kept.
    pub fn watch(&self, id: &str, token: &str) -> Watch {
        let (key, cancelled) = ((id.to_owned(), token.to_owned()), CancellationToken::new());
        lock(&self.running).entry(key.clone()).or_default().push(cancelled.clone());
        Watch { cancellations: self.clone(), key, cancelled }
    }

    /// Has the request been cancelled? Questions asked at the same time share one query. An unknown request, and
    /// a question that the database does not answer, are not cancelled.
    pub async fn is_cancelled(&self, id: &str, token: &str) -> bool {
        let (answer, answered) = oneshot::channel();
        match self.questions.send(((id.to_owned(), token.to_owned()), answer)).await {
            Ok(()) => answered.await.unwrap_or(false),
            Err(_) => false,
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut running = lock(&self.cancellations.running);
        if let Some(tokens) = running.get_mut(&self.key) {
            // Any one of them: all tokens of a key fire together.
            tokens.pop();
            if tokens.is_empty() {
                running.remove(&self.key);
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn keep_looking(store: &Store, running: &Mutex<HashMap<Key, Vec<CancellationToken>>>) {
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let keys: Vec<Key> = lock(running).keys().cloned().collect();
        for keys in keys.chunks(BATCH) {
            for key in ask(store, keys).await {
                lock(running).get(&key).into_iter().flatten().for_each(CancellationToken::cancel);
            }
        }
    }
}

async fn keep_answering(store: &Store, mut asked: mpsc::Receiver<Question>) {
    let mut questions = Vec::new();
    while asked.recv_many(&mut questions, BATCH).await > 0 {
        let keys: Vec<Key> = questions.iter().map(|(key, _)| key.clone()).collect();
        let cancelled = ask(store, &keys).await;
        for (key, answer) in questions.drain(..) {
            let _ = answer.send(cancelled.contains(&key));
        }
    }
}

async fn ask(store: &Store, keys: &[Key]) -> Vec<Key> {
    let keys: Vec<(&str, &str)> = keys.iter().map(|(id, token)| (id.as_str(), token.as_str())).collect();
    match store.cancelled_keys(&keys).await {
        Ok(cancelled) => cancelled,
        Err(error) => {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "could not ask which requests are cancelled"
            );
            Vec::new()
        }
    }
}
