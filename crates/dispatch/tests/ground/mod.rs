//! The ground these tests stand on: not a superuser's plain database, but an installation among others. It is a second
//! schema's, made by a role that may only make it; whoever works with it has one role of Leasehold's; and the database
//! reads and writes times, intervals and bytes in its own way.

use leasehold_store::{Store, StoreOptions};
use leasehold_testkit::{
    database::{TestDatabase, shared_cluster},
    proxy::FaultProxy,
};
use tokio_postgres::{Client, error::SqlState};

pub(crate) const SCHEMA: &str = "leasehold_eu";
/// What makes the installation, and owns it.
const OWNER: &str = "site_owner";
/// What a session of the database begins with.
const SETTINGS: [(&str, &str); 5] = [
    ("timezone", "Asia/Kathmandu"),
    ("datestyle", "SQL, DMY"),
    ("intervalstyle", "sql_standard"),
    ("bytea_output", "escape"),
    ("extra_float_digits", "0"),
];

/// Who opens a store.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Role {
    /// What `leasehold serve` needs.
    Dispatcher,
    /// A program that receives messages.
    Receiver,
    /// A program that asks for quotas by itself.
    Quota,
    /// Whoever else there is besides the one under test: it enqueues, sends, pops, looks, and sets what is to be set.
    Others,
}

impl Role {
    /// The login role, which is a member of `leasehold_*` roles and nothing else.
    fn name(self) -> &'static str {
        match self {
            Self::Dispatcher => "site_dispatcher",
            Self::Receiver => "site_receiver",
            Self::Quota => "site_quota",
            Self::Others => "site_others",
        }
    }
}

/// A database with an installation in it.
pub(crate) struct Ground(TestDatabase);

impl Ground {
    pub(crate) async fn new() -> Self {
        let database = TestDatabase::from_template("ground", make).await;
        let settings = SETTINGS.map(|(name, value)| format!("SET {name} = '{value}'"));
        let set = settings.map(|set| {
            format!("EXECUTE format('ALTER DATABASE %I {}', current_database());", set.replace('\'', "''"))
        });
        run(&database.connect().await, &format!("DO $$ BEGIN {} END $$", set.concat())).await;
        Self(database)
    }

    pub(crate) fn url(&self, role: Role) -> String {
        as_role(self.0.url(), role.name())
    }

    /// As [`Ground::url`], by way of a proxy.
    pub(crate) fn url_behind(&self, proxy: &FaultProxy, role: Role) -> String {
        as_role(&proxy.url(self.0.url()), role.name())
    }

    pub(crate) fn store(&self, role: Role, connections: usize) -> Store {
        open(&self.url(role), connections)
    }

    /// A superuser, who sees all tables; the search path is the installation's schema.
    pub(crate) async fn connect(&self) -> Client {
        let client = self.0.connect().await;
        run(&client, &format!("SET search_path TO {SCHEMA}")).await;
        client
    }
}

/// A proxy before the server of all these databases.
pub(crate) async fn proxy() -> FaultProxy {
    FaultProxy::start(shared_cluster().await.address()).await
}

/// A store on the installation at `url`.
pub(crate) fn open(url: &str, connections: usize) -> Store {
    let options = StoreOptions { schema: SCHEMA.into(), pool_size: connections, ..StoreOptions::default() };
    Store::open(url, &options).unwrap()
}

/// Roles are the server's: whoever makes the first template of a process makes them.
async fn make(url: String) {
    let superuser = connect(&url).await;
    let owner = format!(
        "CREATE ROLE {OWNER} LOGIN CREATEROLE;
         DO $$ BEGIN EXECUTE format('GRANT CREATE ON DATABASE %I TO {OWNER}', current_database()); END $$"
    );
    run(&superuser, &owner).await;
    let store = open(&as_role(&url, OWNER), 1);
    let report = store.migrate().await.unwrap();
    assert_eq!(report.outstanding, [""; 0], "its owner need not be a superuser");
    store.close().await;
    let members = format!(
        "CREATE ROLE {} LOGIN IN ROLE leasehold_dispatcher; CREATE ROLE {} LOGIN IN ROLE leasehold_receiver;
         CREATE ROLE {} LOGIN IN ROLE leasehold_quota;
         CREATE ROLE {} LOGIN IN ROLE leasehold_producer, leasehold_poller, leasehold_receiver, leasehold_dispatcher,
             leasehold_quota, leasehold_admin",
        Role::Dispatcher.name(),
        Role::Receiver.name(),
        Role::Quota.name(),
        Role::Others.name()
    );
    run(&superuser, &members).await;
}

fn as_role(url: &str, role: &str) -> String {
    assert!(url.contains("//leasehold@"), "{url} is a superuser's");
    url.replace("//leasehold@", &format!("//{role}@"))
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    // Ends with the client.
    tokio::spawn(connection);
    client
}

/// In one transaction; once more when it met somebody who writes the same rows in another order.
pub(crate) async fn run(client: &Client, statements: &str) {
    while let Err(error) = client.batch_execute(statements).await {
        assert_eq!(error.code(), Some(&SqlState::T_R_DEADLOCK_DETECTED), "{statements}: {error:?}");
    }
}
