//! Against a server on the loopback interface.

use leasehold_testkit::{
    pages::{Page, Pages},
    wait::until,
};
use tokio_util::sync::DropGuard;

use super::*;
use crate::gate::{Gate, asking::ask};

const PATIENCE: Duration = Duration::from_secs(20);

fn scalar(value: &str) -> String {
    format!(r#"{{"status":"success","data":{{"resultType":"scalar","result":[1435781451.781,"{value}"]}}}}"#)
}

fn vector(values: &[&str]) -> String {
    let samples: Vec<_> = values
        .iter()
        .map(|value| format!(r#"{{"metric":{{"pod":"a"}},"value":[1435781451,"{value}"]}}"#))
        .collect();
    let samples = samples.join(",");
    format!(
        r#"{{"status":"success","data":{{"resultType":"vector","result":[{samples}]}},"warnings":["x"]}}"#
    )
}

const FAILED: &str = r#"{"status":"error","errorType":"bad_data","error":"parse error: unclosed"}"#;

fn started<C: serde::de::DeserializeOwned>(
    build: impl Fn(&C, CancellationToken) -> Result<BudgetGate, BackendConfigError>,
    pages: &Pages,
    more: &str,
) -> (BudgetGate, DropGuard) {
    let text = format!("url = '{}'\nrefresh = '100ms'\n{more}", pages.url(""));
    let stop = CancellationToken::new();
    (build(&toml::from_str(&text).unwrap(), stop.clone()).unwrap(), stop.drop_guard())
}

async fn until_budget(gate: &BudgetGate, wanted: f64) {
    until(&format!("the budget is {wanted}"), PATIENCE, async || (gate.budget() - wanted).abs() < 1e-9).await;
}

#[test]
fn a_scalar_or_one_sample_is_a_value_and_nothing_else_is() {
    assert_eq!(value_of(&scalar("0.5")), Ok(0.5));
    assert_eq!(value_of(&vector(&["1e-3"])), Ok(0.001));
    assert_eq!(value_of(&vector(&["+Inf"])), Ok(f64::INFINITY));
    let histogram = r#"{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"histogram":[1,{"count":"1","sum":"1"}]}]}}"#;
    let matrix =
        r#"{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[[1,"1"]]}]}}"#;
    let string = r#"{"status":"success","data":{"resultType":"string","result":[1,"1"]}}"#;
    for (text, reason) in [
        (vector(&[]), "no sample"),
        (vector(&["1", "2", "3"]), "gives 3 samples, and must give one"),
        (vector(&["NaN"]), "no number"),
        (scalar("nan"), "no number"),
        (scalar("much"), "no number"),
        (FAILED.to_owned(), "parse error: unclosed"),
        (histogram.to_owned(), "a histogram"),
        (matrix.to_owned(), "neither a scalar nor"),
        (string.to_owned(), "neither a scalar nor"),
        (String::new(), "not Prometheus'"),
        ("<html>".to_owned(), "not Prometheus'"),
        ("{}".to_owned(), "not Prometheus'"),
        (r#"{"status":"success"}"#.to_owned(), "not Prometheus'"),
    ] {
        let error = value_of(&text).expect_err(&text);
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn what_is_left_of_a_saturation_and_of_a_capacity() {
    for (saturation, budget) in [(0.0, 0.8), (0.5, 0.3), (0.8, 0.0), (2.0, 0.0), (f64::INFINITY, 0.0)] {
        assert!((unsaturated(saturation, 0.8) - budget).abs() < 1e-9, "{saturation}");
    }
    assert!(unsaturated(f64::NAN, 0.8).is_nan());
    for (load, capacity, budget) in [
        (0.0, 10.0, 0.95),
        (5.0, 10.0, 0.45),
        (9.5, 10.0, 0.0),
        (9.6, 10.0, 0.0),
        (20.0, 10.0, 0.0),
        (f64::INFINITY, 10.0, 0.0),
    ] {
        let left = left_over(load, capacity, 0.05).unwrap();
        assert!((left - budget).abs() < 1e-9, "{load} of {capacity} leaves {left}");
    }
    for capacity in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(left_over(1.0, capacity, 0.05).is_err(), "{capacity}");
    }
}

#[tokio::test]
async fn a_query_is_asked_for_with_its_headers_and_gives_the_budget() {
    let pages = Pages::start(|_| Page::Text(vector(&["0.25"]))).await;
    let more = "query = 'sum(rate(x{a=\"b&c\"}[5m])) + 1'\nheaders = { authorization = 'Bearer x' }";
    let (gate, _stop) = started(query, &pages, more);
    until_budget(&gate, 0.25).await;
    assert_eq!(ask(&gate).await.as_str(), "continue");
    let get = pages.gets().remove(0);
    assert_eq!(get.target, "/api/v1/query?query=sum%28rate%28x%7Ba%3D%22b%26c%22%7D%5B5m%5D%29%29+%2B+1");
    assert_eq!(get.headers["authorization"], "Bearer x");
    pages.answer_with(|_| Page::Text(scalar("17")));
    until_budget(&gate, 1.0).await;
    pages.answer_with(|_| Page::Text(scalar("-17")));
    until_budget(&gate, 0.0).await;
    assert_eq!(ask(&gate).await.as_str(), "refuse");
}

#[test]
fn a_url_may_have_a_path_and_a_query_of_its_own() {
    for (url, asked) in [
        ("http://p:9090", "http://p:9090/api/v1/query"),
        ("http://p:9090/", "http://p:9090/api/v1/query"),
        ("https://p/prometheus", "https://p/prometheus/api/v1/query"),
        ("http://p/a/?tenant=1", "http://p/a/api/v1/query?tenant=1"),
    ] {
        let server = Server::new(&SourceUrl(url.to_owned()), &SourceHeaders::default()).unwrap();
        assert_eq!(server.url.as_str(), asked);
    }
}

#[tokio::test]
async fn whatever_is_no_reading_gives_the_fallback_until_one_succeeds() {
    let broken: [fn() -> Page; 8] = [
        || Page::Status(500, vec![], scalar("0.5")),
        || Page::Status(400, vec![], FAILED.into()),
        || Page::Status(307, vec![("location", "/elsewhere".into())], String::new()),
        || Page::Text(FAILED.into()),
        || Page::Text(vector(&[])),
        || Page::Text(vector(&["NaN"])),
        || Page::Text(format!("{}{}", scalar("0.5"), " ".repeat(1 << 20))),
        || Page::Hang,
    ];
    let pages = Pages::start(|_| Page::Hang).await;
    let (open, _stop) = started(query, &pages, "query = 'x'\nfallback = 1");
    let (shut, _stop) = started(query, &pages, "query = 'x'");
    let (saturated, _stop) = started(saturation, &pages, "query = 'x'\nfallback = 1.0");
    let (idle, _stop) = started(saturation, &pages, "query = 'x'");
    let (left, _stop) = started(budget, &pages, "load = 'x'\ncapacity = 'y'\nfallback = '0.2'");
    let gates = [&open, &shut, &saturated, &idle, &left];
    let fallbacks = [1.0, 0.0, 0.0, 0.8, 0.2];
    for (gate, fallback) in std::iter::zip(gates, fallbacks) {
        assert_eq!(gate.budget(), fallback, "before the first reading");
    }
    for broken in broken {
        pages.answer_with(|_| Page::Text(scalar("0.5")));
        // 1 - 0.5 / 0.5 is nothing.
        for (gate, read) in std::iter::zip(gates, [0.5, 0.5, 0.3, 0.3, 0.0]) {
            until_budget(gate, read).await;
        }
        pages.answer_with(move |_| broken());
        for (gate, fallback) in std::iter::zip(gates, fallbacks) {
            until_budget(gate, fallback).await;
        }
        assert!(pages.gets().iter().all(|get| get.target != "/elsewhere"), "no redirect is followed");
    }
}

#[tokio::test]
async fn a_capacity_is_a_number_or_a_query() {
    let pages = Pages::start(|get| match get.target.contains("=load") {
        true => Page::Text(scalar("30")),
        false => Page::Text(vector(&["120"])),
    })
    .await;
    for (capacity, left) in [("40", 0.25), ("'60'", 0.5), ("60.0", 0.5), ("'sum(slots)'", 0.75)] {
        let more = format!("load = 'load'\ncapacity = {capacity}\nbaseline = 0\nfallback = 1");
        let (gate, _stop) = started(budget, &pages, &more);
        until_budget(&gate, left).await;
    }
    pages.answer_with(|get| match get.target.contains("=load") {
        true => Page::Text(scalar("30")),
        false => Page::Text(scalar("0")),
    });
    let (gate, _stop) = started(budget, &pages, "load = 'load'\ncapacity = 'slots'\nfallback = 0.7");
    let seen = pages.gets().len();
    until("it was read", PATIENCE, async || pages.gets().len() > seen + 4).await;
    assert_eq!(gate.budget(), 0.7, "a capacity of nothing is no reading");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_no_reading_and_messages_show_no_secret() {
    let pages = Pages::start(|_| Page::Hang).await;
    let url = pages.url("/?key=hunter2").replace("http://", "http://user:hunter2@");
    drop(pages);
    let server = Server::new(&SourceUrl(url), &SourceHeaders::default()).unwrap();
    let gone = async || server.value("up").await.unwrap_err();
    until("it is gone", PATIENCE, async || gone().await.contains("onnect")).await;
    let message = gone().await;
    assert!(!message.contains("hunter2"), "{message}");
}
