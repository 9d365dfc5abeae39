//! A queue in a database of its own, receivers on it, and handlers that do as they are told.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use leasehold_dispatch::receiver::{Failure, Receiver, WorkerOptions};
use leasehold_store::{Error, Listener, NewMessage, QueueStats, Receive, ReceivedMessage, Reply, Store};
use leasehold_testkit::{proxy::FaultProxy, wait::until};
use serde_json::{Value, json};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
};
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

use crate::ground::{self, Ground, Role};

/// Until a condition must have come true.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
pub(crate) const QUEUE: &str = "q";
/// Of a store.
const CONNECTIONS: usize = 8;
const HOUR: Duration = Duration::from_secs(3600);

pub(crate) struct Bench {
    ground: Ground,
    /// Not through the proxy.
    pub(crate) store: Store,
    /// What the receiver speaks through, its bells excepted.
    pub(crate) proxy: FaultProxy,
    pub(crate) receiver: Receiver,
}

impl Bench {
    /// The queue has these settings beside its defaults.
    pub(crate) async fn new(config: Value) -> Self {
        let ground = Ground::new().await;
        let store = ground.store(Role::Others, CONNECTIONS);
        store.create_queue(QUEUE, &config).await.unwrap();
        let proxy = ground::proxy().await;
        let listener = Arc::new(Listener::start(&ground.store(Role::Receiver, CONNECTIONS)));
        let behind = ground::open(&ground.url_behind(&proxy, Role::Receiver), CONNECTIONS);
        let receiver = Receiver::with_listener(&behind, QUEUE, listener).looking_every(HOUR);
        Self { ground, store, proxy, receiver }
    }

    /// As [`Bench::new`], with a lock of four seconds.
    pub(crate) async fn with_short_locks() -> Self {
        Self::new(json!({"lock_time": "4 seconds"})).await
    }

    /// Not through the proxy; the search path is the installation's schema.
    pub(crate) async fn connect(&self) -> Client {
        self.ground.connect().await
    }

    pub(crate) async fn send(&self, count: usize) -> Vec<i64> {
        self.store.send(QUEUE, &vec![NewMessage::new("body"); count]).await.unwrap()
    }

    /// One after the other, of one group.
    pub(crate) async fn send_group(&self, count: usize) -> Vec<i64> {
        let message = NewMessage { group_id: Some("group".into()), ..NewMessage::new("body") };
        self.store.send(QUEUE, &vec![message; count]).await.unwrap()
    }

    /// One look past the receiver: the only message there is.
    pub(crate) async fn receive_one(&self) -> ReceivedMessage {
        let mut messages = self.store.receive(QUEUE, &Receive::default()).await.unwrap();
        assert_eq!(messages.len(), 1);
        messages.remove(0)
    }

    pub(crate) async fn stats(&self) -> QueueStats {
        self.store.queue_stats(QUEUE).await.unwrap()
    }

    pub(crate) async fn until_empty(&self) {
        until("the queue is empty", PATIENCE, async || self.stats().await.total == 0).await;
    }

    /// A long poll that has looked in vain, is listening, and waits.
    pub(crate) async fn waiting_poll(&self) -> JoinHandle<Result<Vec<ReceivedMessage>, Error>> {
        let receiver = self.receiver.clone();
        let receive = Receive { max: 10, wait: Duration::from_secs(20), ..Receive::default() };
        let poll = tokio::spawn(async move { receiver.receive(&receive).await });
        let client = self.connect().await;
        let listening = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
            AND query LIKE '-- leasehold_store::Listener%LISTEN%' AND state = 'idle'";
        until("the poll waits, or has found something", PATIENCE, async || {
            let listening: i64 = client.query_one(listening, &[]).await.unwrap().get(0);
            poll.is_finished()
                || listening > 0 && self.proxy.statements_matching("Store::next_receivable\n") > 0
        })
        .await;
        poll
    }

    /// Workers whose every message comes to the desk.
    pub(crate) fn run(&self, options: WorkerOptions) -> Crew {
        let (arrivals, arrived) = mpsc::unbounded_channel();
        let desk = Desk { arrivals, counts: Arc::default() };
        let counts = Arc::clone(&desk.counts);
        let stop = CancellationToken::new();
        let (receiver, stopped) = (self.receiver.clone(), stop.clone());
        let run = tokio::spawn(async move {
            receiver.run(move |message| desk.clone().handle(message), options, stopped).await
        });
        Crew { run, stop, arrived, counts }
    }
}

/// What handlers have done.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    running: AtomicUsize,
    most: AtomicUsize,
    dropped: AtomicUsize,
}

#[derive(Clone)]
struct Desk {
    arrivals: mpsc::UnboundedSender<Arrival>,
    counts: Arc<Counts>,
}

impl Desk {
    /// Does what the test says, when it says so.
    async fn handle(self, message: ReceivedMessage) -> Result<Reply, Failure> {
        let mut present = Present::arrive(self.counts);
        let (answer, answered) = oneshot::channel();
        self.arrivals.send(Arrival { message, answer }).map_err(Failure::new)?;
        let answer = answered.await;
        present.done = true;
        match answer? {
            Answer::Return(result) => result,
            Answer::Panic => panic!("as the test says"),
        }
    }
}

enum Answer {
    Return(Result<Reply, Failure>),
    Panic,
}

/// A handler that runs.
struct Present {
    counts: Arc<Counts>,
    done: bool,
}

impl Present {
    fn arrive(counts: Arc<Counts>) -> Self {
        let running = counts.running.fetch_add(1, Ordering::SeqCst) + 1;
        counts.most.fetch_max(running, Ordering::SeqCst);
        Self { counts, done: false }
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        self.counts.running.fetch_sub(1, Ordering::SeqCst);
        self.counts.dropped.fetch_add(usize::from(!self.done), Ordering::SeqCst);
    }
}

/// A message that its handler waits with.
pub(crate) struct Arrival {
    pub(crate) message: ReceivedMessage,
    answer: oneshot::Sender<Answer>,
}

impl Arrival {
    pub(crate) fn done(self) {
        self.finish(Ok(Reply::default()));
    }

    pub(crate) fn finish(self, result: Result<Reply, Failure>) {
        assert!(self.answer.send(Answer::Return(result)).is_ok(), "the handler still runs");
    }

    pub(crate) fn panic(self) {
        assert!(self.answer.send(Answer::Panic).is_ok(), "the handler still runs");
    }
}

/// Workers at work.
pub(crate) struct Crew {
    run: JoinHandle<Result<(), Error>>,
    stop: CancellationToken,
    arrived: mpsc::UnboundedReceiver<Arrival>,
    counts: Arc<Counts>,
}

impl Crew {
    /// The next message handed to a handler.
    pub(crate) async fn next(&mut self) -> Arrival {
        tokio::time::timeout(PATIENCE, self.arrived.recv()).await.expect("a message arrives").unwrap()
    }

    /// No message was handed over that [`Crew::next`] did not return.
    pub(crate) fn is_idle(&mut self) -> bool {
        self.arrived.try_recv().is_err()
    }

    pub(crate) fn running(&self) -> usize {
        self.counts.running.load(Ordering::SeqCst)
    }

    /// At once.
    pub(crate) fn most(&self) -> usize {
        self.counts.most.load(Ordering::SeqCst)
    }

    /// Handlers that were cancelled.
    pub(crate) fn dropped(&self) -> usize {
        self.counts.dropped.load(Ordering::SeqCst)
    }

    pub(crate) fn request_stop(&self) {
        self.stop.cancel();
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.run.is_finished()
    }

    pub(crate) async fn ended(self) -> Result<(), Error> {
        tokio::time::timeout(PATIENCE, self.run).await.expect("the run ends").unwrap()
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.ended().await.unwrap();
    }
}
