//! Dispatches requests leased from Postgres to the backends that answer them.
//!
//! [`Dispatcher`] is a whole process's work: it shares each queue with its peers by leasing partitions, polls
//! what it holds, asks gates, runs the calls in pools, and settles every outcome. [`Consumer`] is the lease
//! protocol of one queue by itself, for who wants to bring the rest. [`receiver::Receiver`] is for messages that
//! are received under a lock instead: a long poll, and workers.

mod beat;
mod cancellation;
mod consumer;
mod dispatcher;
mod doze;
mod feed;
mod job;
mod lanes;
mod maintenance;
mod pool;
mod settle;
mod trace;
mod worker;

pub mod backend;
pub mod config;
pub mod duration;
pub mod gate;
pub mod quota;
pub mod receiver;
pub mod retry;

#[doc(hidden)] // for `leasehold-model`, which holds ledgers in its states
pub use consumer::ledger;

pub use cancellation::{Cancellations, Watch};
pub use consumer::{Beat, Bookkeeping, Consumer, ConsumerOptions, Polled, PolledTenants};
pub use dispatcher::{Dispatcher, DrainReport, Readiness, StartError};
pub use maintenance::maintain;
