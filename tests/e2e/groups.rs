//! Invariant 6 under a storm: 8 receivers and 3 dispatchers share a queue of groups, and nobody lives long.

mod handlers;
mod history;
mod ledger;
mod producers;
mod storm;

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use leasehold_store::{Store, StoreOptions};
use leasehold_testkit::{
    cluster::{Cluster, ClusterOptions, find_bin_dir},
    database::{connect, temporary_directory},
    wait::until,
};
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;

use crate::{directory::Directory, member::Member, process::leasehold};
use handlers::{Backend, receive, receiver_command};
use history::{Groups, judge, watch};
use ledger::{Entry, Ledger, Scribe, What};
use producers::{ACCEPTED, produce};
use storm::{on_postgres, on_processes};

const QUEUE: &str = "orders";
const GROUPS: usize = 12;
const LOCK_TIME: Duration = Duration::from_millis(1500);
const LEASE_TTL: Duration = Duration::from_millis(2000);
/// Until what the storm has left over is finished.
const CALM: Duration = Duration::from_secs(120);

/// Of the storm: `LEASEHOLD_GROUPS_SECONDS`, 15 s where it is not set.
fn time_of_storm() -> Duration {
    let seconds =
        std::env::var("LEASEHOLD_GROUPS_SECONDS").map(|text| text.parse().expect("a number of seconds"));
    Duration::from_secs(seconds.unwrap_or(15))
}

/// Of everything that is drawn: `LEASEHOLD_GROUPS_SEED`, else any. When the test fails it is printed.
struct Seed(u64);

impl Seed {
    fn draw() -> Self {
        let seed = std::env::var("LEASEHOLD_GROUPS_SEED").map(|text| text.parse().expect("a number"));
        Self(seed.unwrap_or_else(|_| rand::random_range(0..1_000_000)))
    }

    fn of(&self, stream: u64) -> u64 {
        self.0 * 1000 + stream
    }
}

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("LEASEHOLD_GROUPS_SEED={}", self.0);
        }
    }
}

/// A Postgres of the test's own: it crashes, and remembers when each transaction committed.
async fn cluster() -> (Cluster, String) {
    let mut options = ClusterOptions::new(temporary_directory(), find_bin_dir().unwrap());
    options.remove_on_exit = true;
    // A crash of Postgres, not of the machine: what it has written is there.
    options.durable = false;
    options.settings =
        [("track_commit_timestamp", "on"), ("deadlock_timeout", "100ms"), ("max_connections", "300")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .to_vec();
    let cluster = Cluster::start(options).await.unwrap();
    cluster.create_database("shop").await.unwrap();
    let url = cluster.url("shop");
    (cluster, url)
}

async fn install(url: &str) {
    let store = Store::open(url, &StoreOptions::default()).unwrap();
    store.migrate().await.unwrap();
    let settings = serde_json::json!({
        "ordering": "group_fifo",
        "lock_time": format!("{} milliseconds", LOCK_TIME.as_millis()),
        "max_deliveries": 1000,
    });
    store.create_queue(QUEUE, &settings).await.unwrap();
    store.close().await;
    let sql = connect(url).await;
    watch(&sql).await;
    sql.batch_execute(ACCEPTED).await.unwrap();
}

fn configuration(backend: &Backend) -> String {
    format!(
        "[http]\nlisten = \"127.0.0.1:0\"\n\n[dispatcher]\nlease_ttl = \"{}ms\"\nretry_base = \"50ms\"\n\
         retry_max = \"400ms\"\n\n[[pools]]\nname = \"p\"\nconcurrency = 4\nbackend = {{ url = \"{}\" }}\n\n\
         [[queues]]\nname = \"{QUEUE}\"\npool = \"p\"\n",
        LEASE_TTL.as_millis(),
        backend.url
    )
}

/// Eight receivers (five are processes) and three `serve` share a queue of twelve groups. Processes are killed and
/// stopped for longer than locks and leases last, connections are broken, Postgres crashes once; handlers and the
/// backend fail, or take longer than a lock; producers roll back, deadlock, and linger before they commit.
///
/// Claimed, and shown from three sides:
///
/// - By the commit timestamps of the producers' transactions: in each group, sequence order is commit order.
/// - By the history that the rows themselves leave in the database: in each group, messages are handed out for the
///   first time in this order; again only the one that was handed out last; the next only after the end of the one
///   before, whoever handed them out; and none while a receiver's lock on it holds.
/// - By what the handlers say, outside of the database: before anybody begins with a message, the handling of each
///   earlier one of its group is done whose completion was accepted (of a backend, which does not know that: one that
///   it has answered). A handler whose lock or lease has lapsed may linger, or begin late; its word does not count.
///
/// And nothing is lost: each message that was committed is completed exactly once, by a receiver or with a result, no
/// other is, and nothing is left over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_over_receivers_and_dispatchers_changes_no_group_s_order() {
    let seed = Seed::draw();
    let (mut cluster, url) = cluster().await;
    install(&url).await;
    let ledger = Ledger::open().await;
    let backend = Backend::start(ledger.entries.clone(), seed.of(1)).await;
    let directory = Directory::new();
    let path = directory.write("leasehold.toml", &configuration(&backend));

    let mut dispatchers: Vec<Member> = (0..3)
        .map(|_| {
            let (url, path) = (url.clone(), path.clone());
            Member::start(move || {
                let mut command = leasehold(&["serve", "--config", &path]);
                command.env("DATABASE_URL", &url);
                command
            })
        })
        .collect();
    let mut processes: Vec<Member> = (0..5)
        .map(|n| {
            let (url, address, seed) = (url.clone(), ledger.address, seed.of(10 + n));
            Member::start(move || receiver_command(&url, address, seed))
        })
        .collect();
    let stop = CancellationToken::new();
    let tasks: Vec<_> = (0..3)
        .map(|n| {
            let (url, scribe, seed, stop) =
                (url.clone(), Scribe(ledger.address), seed.of(20 + n), stop.clone());
            tokio::spawn(async move { receive(&url, scribe, seed, stop).await })
        })
        .collect();
    let enough = CancellationToken::new();
    let producers: Vec<_> = (0..5)
        .map(|n| tokio::spawn(produce(url.clone(), n, seed.of(30 + n as u64), enough.clone())))
        .collect();

    let end = Instant::now() + time_of_storm();
    let (on_dispatchers, on_receivers, broken) = tokio::join!(
        on_processes(&mut dispatchers, LEASE_TTL, seed.of(2), end),
        on_processes(&mut processes, LOCK_TIME, seed.of(3), end),
        on_postgres(&mut cluster, &url, seed.of(4), end)
    );
    enough.cancel();
    for producer in producers {
        eprintln!("{:?}", producer.await.unwrap());
    }
    let sql = connect(&url).await;
    until("every message is finished", CALM, async || {
        let total = "SELECT total FROM leasehold.queue_stats($1)";
        sql.query_one(total, &[&QUEUE]).await.unwrap().get::<_, i64>(0) == 0
    })
    .await;
    stop.cancel();
    for task in tasks {
        task.await.unwrap();
    }
    drop((dispatchers, processes));

    let accepted = accepted(&sql).await;
    let handed = judge(&sql, &groups(&accepted)).await;
    let completions = completions(&sql, &accepted).await;
    let entries = ledger.entries.all();
    let late = judge_handlings(&accepted, &completions, &entries);
    eprintln!(
        "seed {}: {} messages, {} by dispatchers; dispatchers {on_dispatchers:?}, receivers {on_receivers:?}, {broken} \
         connections broken; {handed:?}, {late} handlings began too late to count",
        seed.0,
        accepted.len(),
        completions.values().filter(|token| token.is_none()).count(),
    );
    assert!(handed.redeliveries > 0, "the storm has been felt");
}

/// A message that was committed.
struct Accepted {
    seq: i64,
    group: String,
    id: String,
}

/// By sequence number. In each group that is the order of the commits, by the database's own record of them.
async fn accepted(sql: &Client) -> Vec<Accepted> {
    let disorder = "SELECT count(*) FROM (
        SELECT pg_xact_commit_timestamp(xmin) < lag(pg_xact_commit_timestamp(xmin)) OVER (PARTITION BY group_id ORDER BY seq)
            AS earlier FROM witness.accepted) AS a WHERE earlier";
    assert_eq!(
        sql.query_one(disorder, &[]).await.unwrap().get::<_, i64>(0),
        0,
        "sequence order is commit order"
    );
    let unknown = "SELECT count(*) FROM witness.accepted WHERE pg_xact_commit_timestamp(xmin) IS NULL";
    assert_eq!(sql.query_one(unknown, &[]).await.unwrap().get::<_, i64>(0), 0, "each commit has its time");
    let rows = sql.query("SELECT seq, group_id, id FROM witness.accepted ORDER BY seq", &[]).await.unwrap();
    rows.iter().map(|row| Accepted { seq: row.get(0), group: row.get(1), id: row.get(2) }).collect()
}

fn groups(accepted: &[Accepted]) -> Groups {
    let mut groups = Groups::new();
    for message in accepted {
        groups.entry(message.group.clone()).or_default().push(message.seq);
    }
    groups
}

/// By id, the lock token of the completion that was accepted; none of a dispatcher's. Exactly one of each message.
async fn completions(sql: &Client, accepted: &[Accepted]) -> BTreeMap<String, Option<String>> {
    let rows =
        "SELECT coalesce(a.id, 'message ' || p.seq), p.lock_token::text, NULL FROM leasehold.receipts p
            LEFT JOIN witness.accepted a USING (seq) WHERE p.verb LIKE 'complete%'
        UNION ALL SELECT id, NULL, code FROM leasehold.results";
    let mut completions = BTreeMap::new();
    for row in sql.query(rows, &[]).await.unwrap() {
        let (id, token): (String, Option<String>) = (row.get(0), row.get(1));
        assert_eq!(row.get::<_, Option<&str>>(2), None, "{id}");
        assert_eq!(completions.insert(id.clone(), token), None, "{id} was completed twice");
    }
    let mut ids: Vec<&String> = accepted.iter().map(|message| &message.id).collect();
    ids.sort();
    assert!(completions.keys().eq(ids), "{} of {} are completed", completions.len(), accepted.len());
    completions
}

/// Says how many handlings began when a later one of the group had begun: none of them was accepted.
fn judge_handlings(
    accepted: &[Accepted],
    completions: &BTreeMap<String, Option<String>>,
    entries: &[Entry],
) -> usize {
    let mut begun: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    let mut done: BTreeMap<(&str, Option<&str>), usize> = BTreeMap::new();
    for (at, entry) in entries.iter().enumerate() {
        match entry.what {
            What::Begin => begun.entry(&entry.message_id).or_default().push(at),
            // The first: a backend may be called again by one who has lost the message.
            What::Done => {
                done.entry((&entry.message_id, entry.lock_token.as_deref())).or_insert(at);
            }
        }
    }
    let mut late = 0;
    for messages in by_group(accepted).values() {
        for pair in messages.windows(2) {
            let [earlier, message] = pair else { unreachable!("two at a time") };
            let by = completions[&earlier.id].as_deref();
            let is_done = done.get(&(&*earlier.id, by)).unwrap_or_else(|| panic!("{} is done", earlier.id));
            let begins = begun[&*message.id][0];
            assert!(*is_done < begins, "{} was begun before {} was done", message.id, earlier.id);
            late += begun[&*earlier.id].iter().filter(|at| **at > begins).count();
        }
    }
    late
}

fn by_group(accepted: &[Accepted]) -> BTreeMap<&str, Vec<&Accepted>> {
    let mut groups: BTreeMap<&str, Vec<&Accepted>> = BTreeMap::new();
    for message in accepted {
        groups.entry(&message.group).or_default().push(message);
    }
    groups
}
