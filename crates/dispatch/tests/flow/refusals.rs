//! Case 79: what a dispatcher does not know it refuses by name, before it leases anything.

use std::collections::HashMap;

use leasehold_dispatch::{
    Dispatcher, StartError,
    config::{DispatcherConfig, GateConfig, QuotaMode},
};
use serde_json::json;

use crate::{
    bench::{Bench, POOL, QUEUE, config, queue},
    desk::Desk,
    tenants::quota,
};

async fn assert_refused(config: DispatcherConfig, named: &str) {
    let bench = Bench::new().await;
    let mut config = config;
    for pool in &mut config.pools {
        "http://localhost:1/".clone_into(&mut pool.backend.url);
    }
    let error = Dispatcher::start(bench.serving.clone(), config).await.err().expect(named);
    let StartError::Config(reason) = &error else { panic!("{error:?}") };
    assert!(reason.to_string().contains(named), "{reason} does not name {named}");
    assert_eq!(bench.value::<i64>("SELECT count(*) FROM queues", &[]).await, 0, "nothing was made");
    assert_eq!(bench.value::<i64>("SELECT count(*) FROM partitions", &[]).await, 0, "nothing was leased");
}

#[tokio::test]
async fn an_unknown_pool_is_refused_by_name() {
    let mut config = config();
    "elsewhere".clone_into(&mut config.queues[0].pool);
    assert_refused(config, "there is no pool \"elsewhere\"").await;
}

#[tokio::test]
async fn a_queue_configured_twice_is_refused_by_name() {
    let mut config = config();
    config.queues.push(queue("other"));
    config.queues.push(queue("other"));
    assert_refused(config, "queue \"other\" is configured twice").await;
}

#[tokio::test]
async fn a_gate_that_cannot_be_is_refused_by_name() {
    let mut at_queue = config();
    at_queue.queues[0].gate = GateConfig::LocalConcurrency { limit: 0 };
    assert_refused(at_queue, "queue \"q\": gate local-concurrency: limit").await;
    let mut at_pool = config();
    at_pool.pools[0].gate = GateConfig::Constant { budget: f64::NAN };
    assert_refused(at_pool, "pool \"p\": gate constant: budget").await;
}

#[test]
fn an_unknown_gate_and_an_unknown_parameter_are_refused_by_name() {
    let with = |gate: &str| {
        let text = format!("[[pools]]\nname = 'p'\n[[queues]]\nname = 'q'\npool = 'p'\ngate = {gate}");
        toml::from_str::<DispatcherConfig>(&text).expect_err(gate).to_string()
    };
    assert!(with("{ type = 'turnstile' }").contains("turnstile"));
    assert!(with("{ type = 'constant', bugdet = 1 }").contains("bugdet"));
}

#[tokio::test]
async fn a_pool_without_a_backend_is_refused_by_name() {
    let bench = Bench::new().await;
    let error = Dispatcher::start_with(bench.serving.clone(), config(), HashMap::new()).await.err().unwrap();
    assert_eq!(error.to_string(), format!("pool \"{POOL}\" has no backend"));
    let error = Dispatcher::start(bench.serving.clone(), config()).await.err().unwrap();
    assert!(matches!(&error, StartError::Backend { pool, .. } if pool == POOL), "{error:?}");
    assert_eq!(bench.value::<i64>("SELECT count(*) FROM partitions", &[]).await, 0, "nothing was leased");
}

/// A gate with a limit for each user on a queue that tells only organisations apart: one user's backlog would hide
/// others' behind it.
#[tokio::test]
async fn a_gate_whose_tenants_the_queue_does_not_tell_apart_is_refused_by_name() {
    let bench = Bench::new().await;
    bench.store.configure_queue(QUEUE, &json!({ "tenant_attributes": ["org"] })).await.unwrap();
    let mut config = config();
    config.queues[0].gate = quota(QuotaMode::Concurrency, 1);
    let backends = || HashMap::from([(POOL.to_owned(), Desk::open().backend())]);
    let refused = Dispatcher::start_with(bench.serving.clone(), config.clone(), backends()).await;
    let Err(StartError::Config(error)) = refused else { panic!("it started") };
    let message = error.to_string();
    assert!(
        message.contains("queue \"q\"") && message.contains("userid") && message.contains("org"),
        "{message}"
    );
    bench.store.configure_queue(QUEUE, &json!({ "tenant_attributes": ["org", "userid"] })).await.unwrap();
    Dispatcher::start_with(bench.serving.clone(), config, backends()).await.unwrap();
}
