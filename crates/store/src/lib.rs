//! Every SQL statement of Leasehold: requests, messages, partitions, results, quotas, and the migrations that
//! make them.
//!
//! [`Store`] is concrete and cheap to clone. Each operation is one statement (or one short transaction) judged
//! by the database's clock, so a process whose own clock is wrong behaves the same. Serialization failures and
//! deadlocks are repeated here, in one place, and nowhere else.
//!
//! What is left out: when to call what. The lease protocol and the dispatcher live in `leasehold-dispatch`.

mod clock;
mod dsn;
mod error;
mod listen;
mod maintenance;
mod message;
mod migrate;
mod partition;
mod queue;
mod quota;
mod request;
mod result;
mod statement;
mod status;
mod store;
mod tls;
mod topic;
mod vacuum;

pub use error::Error;
pub use listen::{Bell, Listener};
pub use message::{
    Lock, MessageState, NewMessage, PeekedMessage, Purge, QueueStats, Receive, ReceiveMode, ReceivedMessage,
    Redrive, Reply,
};
pub use migrate::{MigrationReport, SCHEMA_VERSION};
pub use partition::{Acquired, Heartbeat, Lease, PARTITIONS, partition_of};
pub use queue::{QueueEntry, QueueSettings};
pub use quota::{
    Admitted, LeasedRate, Quota, QuotaAdmissions, QuotaControl, QuotaSlots, QuotaUse, SlotExchange,
};
pub use request::{
    Arrival, Arrivals, Backlog, Deferral, Dispatched, DispatchedArrivals, Enqueued, Envelope, Flight, Mark,
    NewRequest, Place, Promotion, RequestState, RequestStatus, Reset, Retry, Stamp, Stamped, TENANT_VISITS,
    TenantBatch, TenantPoll,
};
pub use result::{Completion, ResultRow};
pub use status::{
    DispatcherStatus, PartitionStatus, QueueStatus, RouteStatus, SATURATED_WITHIN, SaturatedKey, Status,
};
pub use store::{Store, StoreOptions};
pub use topic::Subscription;
pub use vacuum::DeadRows;
