//! Against a server on the loopback interface.

use std::time::Duration;

use leasehold_testkit::{
    pages::{Page, Pages},
    wait::until,
};

use super::*;
use crate::gate::asking::ask;

const PATIENCE: Duration = Duration::from_secs(20);

fn metrics(running: f64, waiting: f64) -> Page {
    Page::Text(format!(
        "# TYPE vllm:num_requests_running gauge\n\
         vllm:num_requests_running{{model_name=\"m\"}} {running}\n\
         vllm:num_requests_running{{model_name=\"other\"}} 0\n\
         vllm:num_requests_waiting{{model_name=\"m\"}} {waiting}\n"
    ))
}

fn config(pages: &Pages, pods: usize, more: &str) -> EndpointScrape {
    let urls: Vec<_> = (0..pods).map(|pod| pages.url(&format!("/{pod}/metrics"))).collect();
    toml::from_str(&format!("urls = {urls:?}\nmax_per_endpoint = 8\nrefresh = '100ms'\n{more}")).unwrap()
}

fn start(config: &EndpointScrape) -> (Arc<dyn Gate>, tokio_util::sync::DropGuard) {
    let stop = CancellationToken::new();
    (gate(config, stop.clone()).unwrap(), stop.drop_guard())
}

async fn until_budget(gate: &dyn Gate, wanted: f64) {
    until(&format!("the budget is {wanted}"), PATIENCE, async || (gate.budget() - wanted).abs() < 1e-9).await;
}

#[tokio::test]
async fn the_budget_is_the_free_part_of_all_endpoints_less_the_baseline() {
    let pages = Pages::start(|get| match &*get.target {
        "/0/metrics" => metrics(2.0, 0.0),
        "/1/metrics" => metrics(1.0, 1.0),
        _ => metrics(100.0, 100.0),
    })
    .await;
    let (gate, _stop) = start(&config(&pages, 2, ""));
    until_budget(&*gate, 0.75).await;
    let (gate, _stop) = start(&config(&pages, 2, "baseline = '0.25'\nfallback = 1"));
    until_budget(&*gate, 0.5).await;
    // More than there is room for.
    let (gate, _stop) = start(&config(&pages, 3, "fallback = 1"));
    until_budget(&*gate, 0.0).await;
    assert_eq!(ask(&*gate).await.as_str(), "refuse");
    // 1 - 0.95 - 0.05 is a little more than nothing.
    pages.answer_with(|_| metrics(19.0, 0.0));
    let config =
        EndpointScrape { max_per_endpoint: 20, ..config(&pages, 1, "baseline = 0.05\nfallback = 1") };
    let (gate, _stop) = start(&config);
    until("the gate is shut", PATIENCE, async || gate.budget() == 0.0).await;
    assert_eq!(ask(&*gate).await.as_str(), "refuse");
}

#[tokio::test]
async fn metrics_and_labels_can_be_chosen_and_headers_are_sent() {
    let pages = Pages::start(|_| {
        Page::Text("busy{pool=\"a\"} 3\nbusy{pool=\"b\"} 8\nvllm:num_requests_running 8".to_owned())
    })
    .await;
    let more = "metrics = ['busy']\nlabels = { pool = 'a' }\nheaders = { authorization = 'Bearer x' }";
    let (gate, _stop) = start(&config(&pages, 1, more));
    until_budget(&*gate, 0.625).await;
    let headers = &pages.gets()[0].headers;
    assert_eq!(headers["authorization"], "Bearer x");
    assert!(headers["accept"].to_str().unwrap().starts_with("text/plain"));
}

#[tokio::test]
async fn one_endpoint_that_does_not_say_fails_the_reading_of_all() {
    let broken: [fn() -> Page; 9] = [
        || Page::Status(503, vec![], String::new()),
        || Page::Status(404, vec![], "vllm:num_requests_running 1\nvllm:num_requests_waiting 1\n".into()),
        || Page::Status(302, vec![("location", "/0/metrics".into())], String::new()),
        || Page::Text(String::new()),
        || Page::Text("vllm:num_requests_running 1\n".into()),
        || Page::Text("vllm:num_requests_running 1\nvllm:num_requests_waiting NaN\n".into()),
        || Page::Text("vllm:num_requests_running 1\nvllm:num_requests_waiting{ 1\n".into()),
        || Page::Text(format!("# {}\n", "x".repeat(1 << 20))),
        || Page::Hang,
    ];
    let pages = Pages::start(|_| metrics(4.0, 0.0)).await;
    let (gate, _stop) = start(&config(&pages, 2, "fallback = 0.3"));
    let (counted, _stop) = start(&config(&pages, 2, "mode = 'counted'"));
    for broken in broken {
        pages.answer_with(|_| metrics(4.0, 0.0));
        until_budget(&*gate, 0.5).await;
        until_budget(&*counted, 1.0).await;
        pages.answer_with(move |get| match &*get.target {
            "/1/metrics" => broken(),
            _ => metrics(4.0, 0.0),
        });
        until_budget(&*gate, 0.3).await;
        until_budget(&*counted, 0.0).await;
    }
}

#[tokio::test]
async fn labels_that_no_series_has_fail_the_reading() {
    let pages = Pages::start(|_| metrics(0.0, 0.0)).await;
    let (gate, _stop) = start(&config(&pages, 1, "labels = { model_name = 'm' }"));
    until_budget(&*gate, 1.0).await;
    let (gate, _stop) = start(&config(&pages, 1, "labels = { model_name = 'gone' }\nfallback = 0.5"));
    let seen = pages.gets().len();
    until("it was read", PATIENCE, async || pages.gets().len() > seen + 2).await;
    assert_eq!(gate.budget(), 0.5);
}

#[tokio::test]
async fn the_counted_baseline_stays_free() {
    let pages = Pages::start(|_| metrics(2.0, 1.0)).await;
    let config = config(&pages, 1, "mode = 'counted'\nbaseline = 0.25");
    let (gate, _stop) = start(&EndpointScrape { refresh: Duration::from_secs(600), ..config });
    until_budget(&*gate, 1.0).await;
    for wanted in ["continue", "continue", "continue", "refuse"] {
        let mut decision = ask(&*gate).await;
        assert_eq!(decision.as_str(), wanted);
        if let crate::gate::Decision::Continue(pass) = &mut decision {
            pass.release.sent();
        }
    }
}
