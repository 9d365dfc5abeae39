//! Where it happens: a durable Postgres of the test's own, its queues, and the configuration of those who serve them.

use std::time::Duration;

use leasehold_store::{Store, StoreOptions};
use leasehold_testkit::{
    cluster::{Cluster, ClusterOptions, find_bin_dir},
    database::{connect, temporary_directory},
};
use serde_json::{Value, json};

use crate::backend::Backend;

pub(crate) const DATABASE: &str = "shop";
pub(crate) const LEASE_TTL: Duration = Duration::from_secs(4);
/// What a hanging call costs.
const REQUEST_TIMEOUT: &str = "1500ms";
/// Calls of a tenant at once, and in a second.
pub(crate) const TENANT_SLOTS: usize = 3;
pub(crate) const TENANT_RATE: usize = 25;
/// Handed out more often than that, a request ends.
pub(crate) const MAX_DELIVERIES: i64 = 8;
/// More than there will be: only a receiver's own word ends a message.
const MAIL_DELIVERIES: i64 = 1000;
/// The route that somebody polls.
pub(crate) const POLLED: &str = "r2";

pub(crate) const QUEUES: [&str; 5] = ["plain", "tenants", "orders", "streams", "hasty"];
pub(crate) const MAIL: &str = "mail";
/// Those that keep what fails as dead letters, too.
pub(crate) const KEEPING: [&str; 3] = ["plain", "orders", "hasty"];

/// Notes when a lease on slots is registered, renewed, lapses and ends.
const WITNESS: &str = "
    CREATE SCHEMA witness;
    CREATE TABLE witness.holders (at timestamptz NOT NULL, name text NOT NULL, expires_at timestamptz NOT NULL,
        lapsed boolean NOT NULL, gone boolean NOT NULL);
    CREATE FUNCTION witness.note_holder() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
    BEGIN
        IF TG_OP = 'DELETE' THEN
            INSERT INTO witness.holders VALUES (clock_timestamp(), OLD.name, OLD.expires_at, OLD.lapsed, true);
        ELSE
            INSERT INTO witness.holders VALUES (clock_timestamp(), NEW.name, NEW.expires_at, NEW.lapsed, false);
        END IF;
        RETURN NULL;
    END
    $$;
    CREATE TRIGGER note_holder AFTER INSERT OR UPDATE OR DELETE ON leasehold.quota_holders
        FOR EACH ROW EXECUTE FUNCTION witness.note_holder();";

/// Everybody has what they need and nothing else, and the database is not in UTC.
const ROLES: &str = "
    CREATE ROLE server LOGIN IN ROLE leasehold_dispatcher;
    CREATE ROLE shop LOGIN IN ROLE leasehold_producer, leasehold_poller, leasehold_receiver;
    ALTER DATABASE shop SET timezone = 'Asia/Kathmandu'";

/// Of those who serve.
pub(crate) fn server_url(cluster: &Cluster) -> String {
    cluster.url(DATABASE).replace("//leasehold@", "//server@")
}

/// Of those who enqueue, send, receive and poll.
pub(crate) fn shop_url(cluster: &Cluster) -> String {
    cluster.url(DATABASE).replace("//leasehold@", "//shop@")
}

/// Makes it, with the schema and the queues.
pub(crate) async fn make() -> Cluster {
    let mut options = ClusterOptions::new(temporary_directory(), find_bin_dir().unwrap());
    options.remove_on_exit = true;
    options.settings = [("max_connections", "90"), ("deadlock_timeout", "100ms")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec();
    let cluster = Cluster::start(options).await.unwrap();
    cluster.create_database(DATABASE).await.unwrap();
    let url = cluster.url(DATABASE);
    let store = Store::open(&url, &StoreOptions::default()).unwrap();
    store.migrate().await.unwrap();
    for queue in QUEUES {
        store.configure_queue(queue, &settings_of(queue)).await.unwrap();
    }
    // So that no repeat is another message.
    let mail =
        json!({ "lock_time": "3 seconds", "dedup_window": "1 hour", "max_deliveries": MAIL_DELIVERIES });
    store.create_queue(MAIL, &mail).await.unwrap();
    store.close().await;
    let sql = connect(&url).await;
    sql.batch_execute(WITNESS).await.unwrap();
    sql.batch_execute(ROLES).await.unwrap();
    cluster
}

fn settings_of(queue: &str) -> Value {
    let mut settings = json!({ "max_deliveries": MAX_DELIVERIES, "dead_letters": KEEPING.contains(&queue) });
    if queue == "orders" {
        settings["ordering"] = "group_fifo".into();
    }
    settings
}

/// Of a process that tells the backend its name, by the variable `CHAOS_PROCESS`.
pub(crate) fn configuration(backend: &Backend) -> String {
    let pool = |name: &str, path: &str, rest: &str| {
        format!(
            "[[pools]]\nname = \"{name}\"\nconcurrency = 10\n{rest}\n[pools.backend]\nurl = \"{}{path}\"\n\
             request_timeout = \"{REQUEST_TIMEOUT}\"\nattempt_header = \"x-attempt\"\n\
             headers = {{ x-process = \"env:CHAOS_PROCESS\" }}\n\n",
            backend.base_url()
        )
    };
    let rate = format!(
        "gate = {{ type = \"wait-on-refuse\", gate = {{ type = \"quota\", attribute = \"userid\", mode = \"rate\", \
         limit = {TENANT_RATE}, window = \"1s\" }} }}\n"
    );
    let queue = |name: &str, pool: &str, rest: &str| {
        format!("[[queues]]\nname = \"{name}\"\npool = \"{pool}\"\n{rest}\n")
    };
    let slots = format!(
        "gate = {{ type = \"quota\", attribute = \"userid\", mode = \"concurrency\", limit = {TENANT_SLOTS} }}"
    );
    [
        "[database]\npool_size = 12\n\n[http]\nlisten = \"127.0.0.1:0\"\n\n".to_owned(),
        format!(
            "[dispatcher]\nlease_ttl = \"{}s\"\ndrain_timeout = \"8s\"\npoll_fallback = \"500ms\"\n\
             retry_base = \"50ms\"\nretry_max = \"400ms\"\nretry_after_max = \"1s\"\n\n",
            LEASE_TTL.as_secs()
        ),
        pool("echo", "/echo", ""),
        pool("metered", "/echo", &rate),
        pool("chat", "/v1/chat/completions", ""),
        queue("plain", "echo", ""),
        queue("tenants", "metered", &slots),
        queue("orders", "echo", ""),
        queue("streams", "chat", ""),
        queue("hasty", "echo", ""),
    ]
    .concat()
}
