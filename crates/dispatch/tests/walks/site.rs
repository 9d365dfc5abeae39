//! Where walks take place: an installation, and the seats of owners, each behind a proxy. It serves one walk after the
//! other, each with a queue of its own, so that connections and their plans are kept.

use std::time::Duration;

use leasehold_dispatch::{Consumer, ConsumerOptions};
use leasehold_store::Store;
use leasehold_testkit::proxy::FaultProxy;
use tokio::{
    sync::RwLock,
    time::{sleep, timeout},
};
use tokio_postgres::{Client, Statement};

use crate::{
    call::PATIENCE,
    fault::Fault,
    ground::{self, Ground, Role},
    step::SEATS,
    view::Looks,
};

/// Connections of an owner: more than calls of it are ever in the air.
const POOL: usize = 12;

/// What is final depends on the transactions open on the server, those of other walks included. A pinned walk is alone on
/// it; all others share it.
pub(crate) static SERVER: RwLock<()> = RwLock::const_new(());

pub(crate) struct Seat {
    pub(crate) name: String,
    pub(crate) proxy: FaultProxy,
    pub(crate) store: Store,
}

pub(crate) struct Site {
    ground: Ground,
    /// Not through a proxy.
    pub(crate) store: Store,
    /// Not through a proxy; the search path is the installation's schema.
    pub(crate) sql: Client,
    /// For a transaction that stays open.
    pub(crate) locker: Client,
    pub(crate) looks: Looks,
    waiting: Statement,
    active: Statement,
    pub(crate) seats: Vec<Seat>,
    fault: Option<Fault>,
    walks: u32,
}

impl Site {
    /// With a planted fault, or none.
    pub(crate) async fn open(fault: Option<Fault>) -> Self {
        let ground = Ground::new().await;
        let (sql, locker) = (ground.connect().await, ground.connect().await);
        let store = ground.store(Role::Others, 2);
        let waiting = sql
            .prepare(
                "SELECT pid FROM pg_stat_activity
                WHERE datname = current_database() AND application_name = $1 AND wait_event_type = 'Lock'",
            )
            .await
            .unwrap();
        let active = sql
            .prepare(
                "SELECT pid FROM pg_stat_activity
                WHERE datname = current_database() AND application_name = $1 AND state = 'active'",
            )
            .await
            .unwrap();
        let looks = Looks::prepare(&sql).await;
        let mut site =
            Self { ground, store, sql, locker, looks, waiting, active, seats: Vec::new(), fault, walks: 0 };
        site.set_up().await;
        site
    }

    /// Seats without anything that another walk left on its way.
    pub(crate) async fn set_up(&mut self) {
        self.seats.clear();
        for number in 0..SEATS {
            let proxy = ground::proxy().await;
            proxy.keep_sessions();
            if let Some(fault) = self.fault {
                plant(&self.sql, &proxy, fault).await;
            }
            let name = format!("seat{number}");
            let url = self.ground.url_behind(&proxy, Role::Dispatcher);
            let store = ground::open(&format!("{url}?application_name={name}"), POOL);
            self.seats.push(Seat { name, proxy, store });
        }
    }

    /// An empty queue that keeps what fails, and its name.
    pub(crate) async fn queue(&mut self) -> (i32, String) {
        self.walks += 1;
        let name = format!("q{}", self.walks);
        let queue = self.store.ensure_queue(&name).await.unwrap();
        let keep = "SELECT configure_queue($1, '{\"dead_letters\": true}')";
        self.sql.execute(keep, &[&name]).await.unwrap();
        self.store.ensure_partitions(queue).await.unwrap();
        (queue, name)
    }

    /// A walk is over.
    pub(crate) async fn sweep(&self) {
        if self.walks.is_multiple_of(50) {
            let all = "TRUNCATE requests, results, dead_letters, partitions, dispatchers, submissions";
            self.sql.batch_execute(all).await.unwrap();
        }
    }

    /// Until the server has run all that a seat sent. What it has not passed on does not count.
    pub(crate) async fn until_idle(&self, seat: usize) -> Result<(), String> {
        let idle = async {
            while !self.sessions(&self.active, seat).await.is_empty() {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(PATIENCE, idle).await.map_err(|_| format!("seat {seat} is busy"))
    }

    /// What goes on in the server, for people.
    pub(crate) async fn activity(&self) -> String {
        let sql = "SELECT string_agg(concat_ws(' ', pid, application_name, state, wait_event, pg_blocking_pids(pid),
                split_part(query, E'\n', 1)), E'\n') FROM pg_stat_activity WHERE datname = current_database()";
        self.sql.query_one(sql, &[]).await.unwrap().get::<_, Option<String>>(0).unwrap_or_default()
    }

    /// Its sessions that wait for a lock.
    pub(crate) async fn waiting(&self, seat: usize) -> Vec<i32> {
        self.sessions(&self.waiting, seat).await
    }

    async fn sessions(&self, statement: &Statement, seat: usize) -> Vec<i32> {
        let rows = self.sql.query(statement, &[&self.seats[seat].name]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }
}

impl Seat {
    /// Leases that no walk outlives, so that only ageing makes them lapse; the same goes for statements.
    pub(crate) fn consumer(&self, queue: i32, owner: &str, hasty: bool) -> Consumer {
        let drain_timeout = if hasty { Duration::ZERO } else { Duration::from_secs(600) };
        let options = ConsumerOptions { lease_ttl: Duration::from_secs(600), drain_timeout };
        Consumer::new(&self.store, queue, owner, options)
    }
}

/// Into the statements that pass the proxy, or into the function, which is planted for whoever calls it.
async fn plant(sql: &Client, proxy: &FaultProxy, fault: Fault) {
    let Some(function) = fault.marker.strip_prefix("FUNCTION ") else {
        return proxy.rewrite(fault.marker, fault.part, fault.other);
    };
    let definition = "SELECT pg_get_functiondef($1::text::regproc)";
    let definition: String = sql.query_one(definition, &[&function]).await.unwrap().get(0);
    sql.batch_execute(&definition.replace(fault.part, fault.other)).await.unwrap();
}
