//! A database, clients on it, and what it counts.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use leasehold_dispatch::quota::{Grant, Limit, QuotaClient};
use leasehold_store::Store;
use leasehold_testkit::{proxy::FaultProxy, wait::until};
use tokio_postgres::Client;

use crate::ground::{self, Ground, Role};

/// Until a condition must have come true.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Of a store.
const CONNECTIONS: usize = 16;
/// A holder's lease that no test outlives.
pub(crate) const LONG: Duration = Duration::from_secs(600);

pub(crate) struct Site {
    ground: Ground,
    /// Not the one of the clients.
    pub(crate) store: Store,
    asking: Store,
    pub(crate) sql: Client,
}

impl Site {
    pub(crate) async fn new() -> Self {
        let ground = Ground::new().await;
        Self {
            store: ground.store(Role::Others, CONNECTIONS),
            asking: ground.store(Role::Quota, CONNECTIONS),
            sql: ground.connect().await,
            ground,
        }
    }

    /// A client of a process of its own.
    pub(crate) fn client(&self, ttl: Duration) -> QuotaClient {
        client_on(&self.asking, ttl)
    }

    /// A client whose every statement passes a proxy of its own.
    pub(crate) async fn behind_proxy(&self, ttl: Duration) -> (QuotaClient, FaultProxy) {
        let proxy = ground::proxy().await;
        let store = ground::open(&self.ground.url_behind(&proxy, Role::Quota), CONNECTIONS);
        (client_on(&store, ttl), proxy)
    }

    /// Slots of a key that live holders have.
    pub(crate) async fn held(&self, key: &str) -> i64 {
        let holders = self.store.quota_holders_of(key).await.unwrap();
        holders.iter().map(|holder| i64::from(holder.slots)).sum()
    }

    pub(crate) async fn until_held(&self, key: &str, slots: i64) {
        until("so many slots are held", PATIENCE, async || self.held(key).await == slots).await;
    }

    /// Holders registered, lapsed ones included.
    pub(crate) async fn holders(&self) -> i64 {
        self.sql.query_one("SELECT count(*) FROM quota_holders", &[]).await.unwrap().get(0)
    }

    pub(crate) async fn until_holders(&self, count: i64) {
        until("so many holders are registered", PATIENCE, async || self.holders().await == count).await;
    }

    /// Every holder's lease has ended.
    pub(crate) async fn lapse(&self) {
        let sql = "UPDATE quota_holders SET expires_at = clock_timestamp() - interval '1 second'";
        self.sql.execute(sql, &[]).await.unwrap();
    }
}

/// A slot, or none.
pub(crate) async fn acquire(client: &QuotaClient, limit: &Limit) -> Option<Grant> {
    client.acquire(limit).await.unwrap().grant
}

/// As many slots as there are, by asking until there is none.
pub(crate) async fn acquire_all(client: &QuotaClient, limit: &Limit) -> Vec<Grant> {
    let mut grants = Vec::new();
    while let Some(grant) = acquire(client, limit).await {
        grants.push(grant);
    }
    grants
}

fn client_on(store: &Store, ttl: Duration) -> QuotaClient {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    QuotaClient::new(store, &format!("process-{}", NEXT.fetch_add(1, Ordering::Relaxed)), ttl)
}
