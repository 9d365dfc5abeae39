//! Rows that Postgres holds and this program cannot.

use crate::bench::{Bench, completions};

/// Invariant 5: one such row must not make every poll of its partition fail, and be handed back, for ever.
#[tokio::test]
async fn json_that_cannot_be_held_is_dispatched_with_everything_else() {
    let bench = Bench::new().await;
    let deep = format!("{}1{}", r#"{"a":"#.repeat(200), "}".repeat(200));
    for metadata in [r#"{"n": 1e400}"#, deep.as_str(), r#"{"n": 1}"#] {
        bench.enqueue_with_metadata(metadata).await;
    }
    let a = bench.peer("a").await;
    a.rebalance().await.unwrap();
    let polled = a.poll(10).await.unwrap();
    assert_eq!(polled.len(), 3);
    let readable: Vec<bool> = polled
        .iter()
        .map(|p| p.request.envelope.metadata.as_ref().is_some_and(serde_json::Value::is_object))
        .collect();
    assert_eq!(readable, [false, false, true], "what is no object is refused by its worker");
    assert_eq!(a.ack(&completions(&polled)).await.unwrap(), [true; 3]);
    bench.assert_invariants(&[&a]).await;
}
