//! `/healthz`, `/readyz` and `/metrics`, and what signals do.

use std::{collections::BTreeSet, time::Duration, time::Instant};

use leasehold_testkit::{database::shared_cluster, proxy::FaultProxy, stand_in::Answer, wait::until};

use crate::{
    PATIENCE,
    installation::{Installation, backend},
    serve::{Serve, configuration},
};

/// The names of Prometheus's text format, with the type of each; every line is understood.
fn parse_metrics(text: &str) -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut typed, mut names) = (BTreeSet::new(), BTreeSet::new());
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(comment) = line.strip_prefix("# ") {
            let words: Vec<&str> = comment.splitn(3, ' ').collect();
            match words[..] {
                ["TYPE", name, "counter" | "gauge" | "histogram" | "summary"] => {
                    typed.insert(name.to_owned())
                }
                ["HELP", _, meaning] => !meaning.is_empty(),
                _ => panic!("not understood: {line}"),
            };
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("not understood: {line}"));
        assert!(value.parse::<f64>().is_ok(), "no number: {line}");
        let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
        assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'), "no name: {line}");
        assert!(labels.ends_with('}'), "not understood: {line}");
        for unbounded in ["id=\"", "route=\"", "tenant=\"", "owner=\""] {
            let first = labels.starts_with(unbounded);
            assert!(!first && !labels.contains(&format!(",{unbounded}")), "unbounded label: {line}");
        }
        names.insert(name.to_owned());
    }
    (typed, names)
}

/// §6: Prometheus conventions, bounded labels.
#[tokio::test]
async fn metrics_have_the_names_that_operators_look_for() {
    let installation = Installation::new().await;
    let backend = backend().await;
    let busy = Answer::Status(503, Vec::new(), "busy".to_owned());
    backend.script(vec![busy]);
    let serve = Serve::start(&installation, &configuration(&backend, "retry_base = \"10ms\"")).await;
    let ids: Vec<String> = (0..5).map(|n| format!("request {n}")).collect();
    installation.enqueue("q", &ids).await;
    installation.finish(&ids).await;

    // A result is there before the process that recorded it has counted it.
    let mut text = String::new();
    until("the outcomes are counted", PATIENCE, async || {
        let (status, found) = serve.get("/metrics").await;
        assert_eq!(status, 200);
        text = found;
        text.contains("leasehold_outcomes_total{queue=\"q\",code=\"OK\"} 5")
    })
    .await;
    let (typed, names) = parse_metrics(&text);
    for name in [
        "leasehold_dispatches_total",
        "leasehold_outcomes_total",
        "leasehold_retries_total",
        "leasehold_sheds_total",
        "leasehold_takeovers_total",
        "leasehold_redeliveries_total",
        "leasehold_gate_decisions_total",
        "leasehold_in_flight",
        "leasehold_budget",
        "leasehold_requests",
        "leasehold_oldest_pending_seconds",
        "leasehold_partitions_owned",
        "leasehold_dispatchers",
        "leasehold_results_waiting",
        "leasehold_database_up",
        "leasehold_build_info",
    ] {
        assert!(names.contains(name) && typed.contains(name), "{name} is missing:\n{text}");
    }
    for histogram in ["backend", "queued", "end_to_end", "statement"] {
        let name = format!("leasehold_{histogram}_duration_seconds");
        assert!(typed.contains(&name) && names.contains(&format!("{name}_bucket")), "{name}:\n{text}");
    }
    for line in [
        "leasehold_outcomes_total{queue=\"q\",code=\"OK\"} 5",
        "leasehold_retries_total{queue=\"q\"} 1",
        "leasehold_sheds_total{pool=\"p\"} 1",
        "leasehold_partitions_owned{queue=\"q\"} 64",
        "leasehold_dispatchers{queue=\"q\"} 1",
        "leasehold_database_up 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is missing:\n{text}");
    }
    serve.stop().await;
}

/// §3 and §6: not ready while it drains, alive all the same; calls under way finish.
#[tokio::test]
async fn a_draining_process_is_alive_and_not_ready_until_its_last_call_is_done() {
    let installation = Installation::new().await;
    let backend = backend().await;
    backend.respond_with(|_| Answer::Delay(Duration::from_secs(4)));
    let mut serve = Serve::start(&installation, &configuration(&backend, "")).await;
    assert_eq!(serve.get("/healthz").await, (200, "ok\n".to_owned()));
    assert_eq!(serve.get("/readyz").await, (200, "ready\n".to_owned()));
    let ids = ["slow".to_owned()];
    installation.enqueue("q", &ids).await;
    until("it is called", PATIENCE, async || backend.in_flight() == 1).await;
    serve.process.signal("TERM").await;
    until("it is not ready", PATIENCE, async || serve.get("/readyz").await.0 == 503).await;
    assert!(serve.get("/readyz").await.1.starts_with("draining"));
    assert_eq!(serve.get("/healthz").await.0, 200);
    assert_eq!(backend.in_flight(), 1, "the call goes on");
    serve.process.ended_with(0).await;
    assert_eq!(installation.finish(&ids).await["slow"], 1);
    assert_eq!((backend.calls().len(), backend.aborted()), (1, 0));
}

/// §3: a second signal exits at once.
#[tokio::test]
async fn a_second_signal_ends_it_at_once() {
    let installation = Installation::new().await;
    let backend = backend().await;
    backend.script(vec![Answer::Hang]);
    let lease_ttl = "lease_ttl = \"3s\"";
    let mut serve = Serve::start(&installation, &configuration(&backend, lease_ttl)).await;
    let ids = ["endless".to_owned()];
    installation.enqueue("q", &ids).await;
    until("it is called", PATIENCE, async || backend.in_flight() == 1).await;
    serve.process.signal("TERM").await;
    until("it is not ready", PATIENCE, async || serve.get("/readyz").await.0 == 503).await;
    let asked = Instant::now();
    serve.process.signal("INT").await;
    serve.process.ended_with(8).await;
    // The drain timeout is half a minute.
    assert!(asked.elapsed() < Duration::from_secs(10), "after {:?}", asked.elapsed());
    // Its lease lapses, and somebody else finishes what it left.
    let next = Serve::start(&installation, &configuration(&backend, lease_ttl)).await;
    assert_eq!(installation.finish(&ids).await["endless"], 2);
    next.stop().await;
}

/// §6: 503 when the database fails, and 200 again when it is back.
#[tokio::test]
async fn a_process_that_has_lost_its_database_is_alive_and_not_ready() {
    let installation = Installation::new().await;
    let backend = backend().await;
    let proxy = FaultProxy::start(shared_cluster().await.address()).await;
    let configuration = configuration(&backend, "lease_ttl = \"3s\"");
    let path = installation.directory.write("leasehold.toml", &configuration);
    let serve = Serve::start_at(&proxy.url(&installation.serving_url()), &["serve", "--config", &path]).await;
    proxy.refuse(true);
    proxy.cut();
    until("it is not ready", PATIENCE, async || serve.get("/readyz").await.0 == 503).await;
    assert!(serve.get("/readyz").await.1.contains("failing"));
    assert_eq!(serve.get("/healthz").await.0, 200);
    // What was counted is still told.
    let (status, text) = serve.get("/metrics").await;
    assert_eq!(status, 200);
    assert!(parse_metrics(&text).1.contains("leasehold_takeovers_total"));
    proxy.refuse(false);
    until("it is ready again", PATIENCE, async || serve.get("/readyz").await.0 == 200).await;
    let ids = ["after".to_owned()];
    installation.enqueue("q", &ids).await;
    installation.finish(&ids).await;
    serve.stop().await;
}
