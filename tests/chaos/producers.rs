//! Those who enqueue, in transactions of their own over a network that fails, and the ledger of what they know.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use tokio::time::sleep;
use tokio_postgres::{Client, Error, NoTls};
use tokio_util::sync::CancellationToken;

use crate::{errors::Errors, world::MAIL};

/// Of each request; together with the id it names the submission.
const TOKEN: &str = "once";
/// More than that are not in play at a time.
const ROOM: i64 = 500;
/// Which queues are chosen, and how often.
const CHOICES: [&str; 16] = [
    "plain", "plain", "plain", "plain", "tenants", "tenants", "tenants", "orders", "orders", "orders",
    "streams", "streams", "hasty", "hasty", MAIL, MAIL,
];

/// What a producer knows of a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    Committed,
    /// It was rolled back, and never repeated after that.
    Undone,
    /// The answer to a COMMIT was lost, and it was never repeated successfully.
    Nothing,
}

/// What was to be enqueued.
#[derive(Clone, Debug)]
pub(crate) struct Submission {
    pub(crate) id: String,
    pub(crate) queue: &'static str,
    pub(crate) route: String,
    pub(crate) group: Option<String>,
    pub(crate) tenant: Option<String>,
    /// In seconds from the enqueue.
    pub(crate) deadline: Option<f64>,
    pub(crate) payload: String,
}

impl Submission {
    fn draw(id: String, rng: &mut StdRng) -> Self {
        let queue = CHOICES[rng.random_range(0..CHOICES.len())];
        let payload = match queue {
            MAIL => id.clone(),
            "streams" => json!({
                "model": "m", "stream": true, "stream_options": { "include_usage": true },
                "messages": [{ "role": "user", "content": format!("say {id} in some more words") }],
            })
            .to_string(),
            _ => format!("the body of {id}"),
        };
        Self {
            queue,
            route: if queue == MAIL { "mailed".into() } else { format!("r{}", rng.random_range(0..3)) },
            group: (queue == "orders").then(|| format!("g{}", rng.random_range(0..8))),
            tenant: (queue == "tenants").then(|| format!("u{}", rng.random_range(0..4))),
            deadline: (queue == "hasty").then(|| rng.random_range(0.2..3.0)),
            payload,
            id,
        }
    }

    async fn enqueue(&self, client: &Client) -> Result<(), Error> {
        if self.queue == MAIL {
            let send = "SELECT leasehold.send($1, $2::text, message_id => $2::text, reply_to => $3)";
            client.execute(send, &[&self.queue, &self.id, &self.route]).await?;
            return Ok(());
        }
        let enqueue = "SELECT leasehold.enqueue($1, $2::text, id => $3, token => $4, route => $5, headers => $6,
            metadata => $7, group_id => $8, deadline => clock_timestamp() + $9::float8 * interval '1 second')";
        let headers = json!({ "x-request": self.id });
        let metadata: Option<Value> = self.tenant.as_ref().map(|tenant| json!({ "userid": tenant }));
        let (route, group, deadline) = (&self.route, &self.group, &self.deadline);
        client
            .execute(
                enqueue,
                &[&self.queue, &self.payload, &self.id, &TOKEN, route, &headers, &metadata, group, deadline],
            )
            .await?;
        Ok(())
    }
}

/// Everything that was submitted, or tried; in this process's memory only.
#[derive(Default)]
pub(crate) struct Ledger {
    entries: Mutex<BTreeMap<String, (Submission, Known)>>,
    cancelled: Mutex<BTreeSet<String>>,
    pub(crate) errors: Errors,
    /// How often something was submitted once more.
    pub(crate) repeats: AtomicI64,
    /// Requests not finished, as the database says now and then.
    pub(crate) in_play: AtomicI64,
}

impl Ledger {
    fn note(&self, submissions: &[Submission], known: Known) {
        let mut entries = self.entries.lock().unwrap();
        for submission in submissions {
            entries.insert(submission.id.clone(), (submission.clone(), known));
        }
    }

    pub(crate) fn entries(&self) -> BTreeMap<String, (Submission, Known)> {
        self.entries.lock().unwrap().clone()
    }

    /// Whose cancellation was asked for, successfully or not.
    pub(crate) fn cancelled(&self) -> BTreeSet<String> {
        self.cancelled.lock().unwrap().clone()
    }
}

/// Submits until it is stopped.
pub(crate) async fn produce(
    url: String,
    name: usize,
    seed: u64,
    ledger: Arc<Ledger>,
    stop: CancellationToken,
) {
    let mut producer = Producer { url, ledger, client: None, rng: StdRng::seed_from_u64(seed) };
    let mut count = 0;
    while !stop.is_cancelled() {
        sleep(Duration::from_millis(producer.rng.random_range(0..100))).await;
        if producer.ledger.in_play.load(Ordering::Relaxed) > ROOM {
            continue;
        }
        let submissions: Vec<Submission> = (0..producer.rng.random_range(1..=6))
            .map(|n| Submission::draw(format!("p{name}-{count}-{n}"), &mut producer.rng))
            .collect();
        count += 1;
        let known = producer.submit(&submissions).await;
        producer.ledger.note(&submissions, known);
        if known == Known::Committed && producer.rng.random_ratio(1, 10) {
            producer.cancel(&submissions[0]).await;
        }
    }
}

struct Producer {
    url: String,
    ledger: Arc<Ledger>,
    client: Option<Client>,
    rng: StdRng,
}

impl Producer {
    /// Tries until it knows, or gives up.
    async fn submit(&mut self, submissions: &[Submission]) -> Known {
        let mut known = Known::Undone;
        loop {
            let commits = self.rng.random_ratio(7, 8);
            match self.transact(submissions, commits).await {
                Tried::Committed => return Known::Committed,
                // Nothing to be repeated: unless an earlier COMMIT has happened, of which nothing is known.
                Tried::RolledBack => return known,
                Tried::Failed => {}
                Tried::Unanswered => known = Known::Nothing,
            }
            // Some never come back.
            if self.rng.random_ratio(1, 6) {
                return known;
            }
            self.ledger.repeats.fetch_add(1, Ordering::Relaxed);
            sleep(Duration::from_millis(self.rng.random_range(20..200))).await;
        }
    }

    async fn transact(&mut self, submissions: &[Submission], commits: bool) -> Tried {
        let Some(client) = self.client().await else { return Tried::Failed };
        let began = async {
            client.batch_execute("BEGIN").await?;
            for submission in submissions {
                submission.enqueue(client).await?;
            }
            Ok::<(), Error>(())
        };
        if let Err(error) = began.await {
            // A repeat that is refused would be none of them.
            self.ledger.errors.note(&error);
            self.client = None;
            return Tried::Failed;
        }
        if !commits {
            if client.batch_execute("ROLLBACK").await.is_err() {
                self.client = None;
            }
            return Tried::RolledBack;
        }
        match client.batch_execute("COMMIT").await {
            Ok(()) => Tried::Committed,
            Err(error) => {
                self.ledger.errors.note(&error);
                self.client = None;
                // What the server refuses to commit is rolled back; anything else may have happened.
                let is_refused =
                    error.as_db_error().is_some_and(|error| error.code().code().starts_with("40"));
                if is_refused { Tried::Failed } else { Tried::Unanswered }
            }
        }
    }

    /// A message has no id to be cancelled by, and a tenant's call that is given up may be counted a little longer than it
    /// runs.
    async fn cancel(&mut self, submission: &Submission) {
        if submission.queue == MAIL || submission.tenant.is_some() {
            return;
        }
        self.ledger.cancelled.lock().unwrap().insert(submission.id.clone());
        let Some(client) = self.client().await else { return };
        if let Err(error) = client.execute("SELECT leasehold.cancel(ARRAY[$1])", &[&submission.id]).await {
            self.ledger.errors.note(&error);
            self.client = None;
        }
    }

    async fn client(&mut self) -> Option<&Client> {
        if self.client.is_none() {
            let connected = tokio_postgres::connect(&self.url, NoTls).await;
            let (client, connection) = connected.inspect_err(|error| self.ledger.errors.note(error)).ok()?;
            tokio::spawn(connection);
            self.client = Some(client);
        }
        self.client.as_ref()
    }
}

/// How a transaction went.
enum Tried {
    Committed,
    RolledBack,
    /// It did not commit, and may be repeated.
    Failed,
    /// It may have committed.
    Unanswered,
}
