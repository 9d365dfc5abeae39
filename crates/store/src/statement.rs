//! The statements, embedded from `queries/<noun>/<verb>.sql`. The first line of each names its Rust function, so
//! that it can be recognised in `pg_stat_activity`.

/// One SQL statement.
pub(crate) struct Statement {
    /// `noun/verb`, its file and its metric label.
    pub(crate) name: &'static str,
    /// The text, sent as it is.
    pub(crate) sql: &'static str,
}

macro_rules! statements {
    ($($constant:ident = $name:literal;)*) => {
        $(pub(crate) static $constant: Statement =
            Statement { name: $name, sql: include_str!(concat!("../queries/", $name, ".sql")) };)*
        #[cfg(test)]
        pub(crate) static ALL: &[&Statement] = &[$(&$constant),*];
    };
}

statements! {
    REQUEST_DISPATCH = "request/dispatch";
    REQUEST_DISPATCH_PAST_LOCKED = "request/dispatch_past_locked";
    REQUEST_DISPATCH_ENDED = "request/dispatch_ended";
    REQUEST_DISPATCH_TENANTS = "request/dispatch_tenants";
    REQUEST_ARRIVALS = "request/arrivals";
    REQUEST_PENDING = "request/pending";
    REQUEST_DISPATCH_ARRIVED = "request/dispatch_arrived";
    REQUEST_LABEL_TENANTS = "request/label_tenants";
    REQUEST_ENQUEUE = "request/enqueue";
    REQUEST_ENQUEUE_ONE = "request/enqueue_one";
    REQUEST_IN_FLIGHT = "request/in_flight";
    REQUEST_RESET_STALE = "request/reset_stale";
    REQUEST_UNDISPATCH = "request/undispatch";
    REQUEST_DEFER = "request/defer";
    REQUEST_RETRY = "request/retry";
    REQUEST_PROMOTE_DUE = "request/promote_due";
    REQUEST_CANCEL = "request/cancel";
    REQUEST_CANCELLED_KEYS = "request/cancelled_keys";
    REQUEST_HAS_REQUESTS = "request/has_requests";
    REQUEST_BACKLOG = "request/backlog";
    REQUEST_STATUS = "request/status";
    REQUEST_PRUNE_SUBMISSIONS = "request/prune_submissions";
    RESULT_ACK = "result/ack";
    RESULT_POP = "result/pop";
    RESULT_LEASE = "result/lease";
    RESULT_ACK_LEASED = "result/ack_leased";
    RESULT_RELEASE_LEASED = "result/release_leased";
    RESULT_LISTEN = "result/listen";
    RESULT_DEPTH = "result/depth";
    RESULT_PRUNE_MARKS = "result/prune_marks";
    MESSAGE_SEND = "message/send";
    MESSAGE_SEND_MANY = "message/send_many";
    MESSAGE_CANCEL_SCHEDULED = "message/cancel_scheduled";
    MESSAGE_RECEIVE = "message/receive";
    MESSAGE_RECEIVE_DEFERRED = "message/receive_deferred";
    MESSAGE_COMPLETE = "message/complete";
    MESSAGE_COMPLETE_BATCH = "message/complete_batch";
    MESSAGE_ABANDON = "message/abandon";
    MESSAGE_REJECT = "message/reject";
    MESSAGE_DEFER = "message/defer";
    MESSAGE_RENEW = "message/renew";
    MESSAGE_RENEW_BATCH = "message/renew_batch";
    MESSAGE_PEEK = "message/peek";
    MESSAGE_LISTEN = "message/listen";
    MESSAGE_NEXT_RECEIVABLE = "message/next_receivable";
    MESSAGE_REDRIVE = "message/redrive";
    MESSAGE_PURGE = "message/purge";
    PARTITION_ENSURE = "partition/ensure";
    PARTITION_HEARTBEAT = "partition/heartbeat";
    PARTITION_ACQUIRE = "partition/acquire";
    PARTITION_SET_DRAINING = "partition/set_draining";
    PARTITION_RELEASE = "partition/release";
    PARTITION_LEAVE = "partition/leave";
    PARTITION_SET_GENERATION = "partition/set_generation";
    PARTITION_SET_ASLEEP = "partition/set_asleep";
    QUEUE_ENSURE = "queue/ensure";
    QUEUE_SETTINGS = "queue/settings";
    QUEUE_ENSURE_TENANT_ATTRIBUTES = "queue/ensure_tenant_attributes";
    QUEUE_CONFIGURE = "queue/configure";
    QUEUE_CREATE = "queue/create";
    QUEUE_DELETE = "queue/delete";
    QUEUE_LIST = "queue/list";
    QUEUE_STATS = "queue/stats";
    TOPIC_SUBSCRIBE = "topic/subscribe";
    TOPIC_UNSUBSCRIBE = "topic/unsubscribe";
    TOPIC_LIST_SUBSCRIPTIONS = "topic/list_subscriptions";
    QUOTA_REGISTER = "quota/register";
    QUOTA_RENEW = "quota/renew";
    QUOTA_DELETE = "quota/delete";
    QUOTA_ACQUIRE = "quota/acquire";
    QUOTA_ACQUIRE_MANY = "quota/acquire_many";
    QUOTA_RELEASE = "quota/release";
    QUOTA_ADMIT = "quota/admit";
    QUOTA_SETTLE = "quota/settle";
    QUOTA_TAKE = "quota/take";
    QUOTA_BUDGET = "quota/budget";
    QUOTA_REAP_HOLDERS = "quota/reap_holders";
    QUOTA_REAP = "quota/reap";
    QUOTA_SET_LIMIT = "quota/set_limit";
    QUOTA_SET_BUDGET = "quota/set_budget";
    QUOTA_SET_RATE = "quota/set_rate";
    QUOTA_REMOVE_RATE = "quota/remove_rate";
    QUOTA_LIST = "quota/list";
    QUOTA_HOLDERS_OF = "quota/holders_of";
    QUOTA_ADMISSIONS_OF = "quota/admissions_of";
    QUOTA_CONTROLS = "quota/controls";
    SESSION_NOW = "session/now";
    SESSION_NAME_CHANNEL = "session/name_channel";
    SESSION_LISTEN = "session/listen";
    SESSION_SCHEMA_VERSION = "session/schema_version";
    MIGRATION_STATE = "migration/state";
    MIGRATION_LOCK = "migration/lock";
    MIGRATION_CREATE_SCHEMA = "migration/create_schema";
    MIGRATION_APPLY_GRANTS = "migration/apply_grants";
    MIGRATION_OUTSTANDING_GRANTS = "migration/outstanding_grants";
    MAINTENANCE_CLAIM = "maintenance/claim";
    MAINTENANCE_PASS = "maintenance/pass";
    MAINTENANCE_DEAD_ROWS = "maintenance/dead_rows";
    MAINTENANCE_CLEAN_REQUESTS = "maintenance/clean_requests";
    MAINTENANCE_CLEAN_RESULTS = "maintenance/clean_results";
    MAINTENANCE_CLEAN_SUBMISSIONS = "maintenance/clean_submissions";
    MAINTENANCE_CLEAN_DEDUP = "maintenance/clean_dedup";
    MAINTENANCE_CLEAN_RECEIPTS = "maintenance/clean_receipts";
    MAINTENANCE_VACUUM_REQUESTS = "maintenance/vacuum_requests";
    MAINTENANCE_VACUUM_RESULTS = "maintenance/vacuum_results";
    MAINTENANCE_VACUUM_SUBMISSIONS = "maintenance/vacuum_submissions";
    MAINTENANCE_VACUUM_DEAD_LETTERS = "maintenance/vacuum_dead_letters";
    MAINTENANCE_VACUUM_RECEIPTS = "maintenance/vacuum_receipts";
    MAINTENANCE_VACUUM_DEDUP = "maintenance/vacuum_dedup";
    MAINTENANCE_VACUUM_REPLAYS = "maintenance/vacuum_replays";
    MAINTENANCE_VACUUM_GROUPS = "maintenance/vacuum_groups";
    MAINTENANCE_REWRITE_REQUESTS = "maintenance/rewrite_requests";
    MAINTENANCE_REWRITE_RESULTS = "maintenance/rewrite_results";
    MAINTENANCE_REWRITE_SUBMISSIONS = "maintenance/rewrite_submissions";
    MAINTENANCE_REWRITE_DEAD_LETTERS = "maintenance/rewrite_dead_letters";
    MAINTENANCE_REWRITE_RECEIPTS = "maintenance/rewrite_receipts";
    MAINTENANCE_REWRITE_DEDUP = "maintenance/rewrite_dedup";
    MAINTENANCE_REWRITE_REPLAYS = "maintenance/rewrite_replays";
    MAINTENANCE_REWRITE_GROUPS = "maintenance/rewrite_groups";
    STATUS_QUEUES = "status/queues";
    STATUS_PARTITIONS = "status/partitions";
    STATUS_DISPATCHERS = "status/dispatchers";
    STATUS_ROUTES = "status/routes";
    STATUS_SATURATED = "status/saturated";
}

#[cfg(test)]
mod tests {
    use leasehold_testkit::database::TestDatabase;

    use super::ALL;
    use crate::{Store, StoreOptions};

    #[tokio::test]
    async fn every_statement_can_be_prepared_on_the_migrated_schema() {
        let database = TestDatabase::empty().await;
        let store = Store::open(database.url(), &StoreOptions::default()).unwrap();
        store.migrate().await.unwrap();
        let client = store.client("test").await.unwrap();
        for statement in ALL {
            let prepared = client.prepare(statement.sql).await;
            assert!(prepared.is_ok(), "{}: {:?}", statement.name, prepared.err());
        }
    }

    #[test]
    fn every_statement_begins_with_the_name_of_its_function() {
        for statement in ALL {
            assert!(
                statement.sql.starts_with("-- leasehold_store::"),
                "{} does not name its function",
                statement.name
            );
        }
    }
}
