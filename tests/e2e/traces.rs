//! One trace from the producer to the backend.

use leasehold_testkit::wait::until;

use crate::{
    PATIENCE,
    installation::{Installation, backend},
    serve::{Serve, configuration},
};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";

/// The backend's `traceparent`, for a request whose producer sent one.
async fn sent(endpoint: &str) -> Vec<String> {
    let installation = Installation::new().await;
    let backend = backend().await;
    let traces = format!("{}\n[traces]\nendpoint = \"{endpoint}\"\n", configuration(&backend, ""));
    let serve = Serve::start(&installation, &traces).await;
    let headers = format!("{{\"traceparent\": \"00-{TRACE}-{SPAN}-01\"}}");
    let sql = format!("SELECT enqueue('q', 'x', headers => '{headers}')");
    installation.sql.batch_execute(&sql).await.unwrap();
    installation.until_results(1).await;
    // The last spans leave with the process.
    serve.stop().await;
    let call = backend.calls().remove(0);
    let traceparent = call.headers.get("traceparent").expect("the trace goes on").to_str().unwrap();
    traceparent.split('-').map(str::to_owned).collect()
}

/// §6: the producer's `traceparent` continues through dispatch and backend call, each a span of its own.
#[tokio::test]
async fn a_producers_trace_continues_to_the_backend_and_the_collector() {
    let collector = backend().await;
    let sent = sent(&format!("{}/v1/traces", collector.base_url())).await;
    assert_eq!((sent[1].as_str(), sent[3].as_str()), (TRACE, "01"));
    assert_ne!(sent[2], SPAN, "the dispatch is a span of its own");
    let bytes = |hex: &str| -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|n| u8::from_str_radix(&hex[n..n + 2], 16).unwrap()).collect()
    };
    let exported = |wanted: Vec<u8>| {
        collector.calls().iter().any(|call| {
            call.path == "/v1/traces" && call.body.windows(wanted.len()).any(|window| window == wanted)
        })
    };
    until("the dispatch's span is exported", PATIENCE, async || {
        exported(bytes(TRACE)) && exported(bytes(&sent[2])) && exported(bytes(SPAN))
    })
    .await;
}

/// Without a collector the producer's own context goes through as it is.
#[tokio::test]
async fn a_producers_trace_reaches_the_backend_without_a_collector() {
    assert_eq!(sent("").await, ["00", TRACE, SPAN, "01"]);
}
