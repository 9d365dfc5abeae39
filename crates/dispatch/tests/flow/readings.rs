//! Gates on what is read over HTTP: case 78, and for each that it opens, shuts, and does as it is told while there
//! is nothing to read.

use leasehold_dispatch::{
    Dispatcher,
    config::{DispatcherConfig, GateConfig},
};
use leasehold_testkit::{
    pages::{Get, Page, Pages},
    wait::until,
};

use crate::{
    bench::{Bench, PATIENCE, config, queue},
    desk::Desk,
};

fn gate(toml: &str) -> GateConfig {
    toml::from_str(toml).unwrap()
}

fn metrics(running: usize, waiting: usize) -> Page {
    Page::Text(format!("vllm:num_requests_running {running}\nvllm:num_requests_waiting {waiting}\n"))
}

fn value(value: &str) -> Page {
    let data = format!(r#"{{"resultType":"scalar","result":[0,"{value}"]}}"#);
    Page::Text(format!(r#"{{"status":"success","data":{data}}}"#))
}

/// Waits until everything asked for from now on makes up `count` readings of `gets` each, and a part of one more
/// that may have begun before.
async fn until_readings(pages: &Pages, gets: usize, count: usize) {
    let wanted = pages.gets().len() + gets * (count + 1);
    until("so many readings have come", PATIENCE, async || pages.gets().len() >= wanted).await;
}

const PODS: usize = 8;

/// 60 of 64 slots are busy.
fn busy_pods(get: &Get) -> Page {
    match &*get.target {
        "/0" | "/1" | "/2" | "/3" => metrics(6, 1),
        _ => metrics(7, 1),
    }
}

fn counted(pages: &Pages) -> GateConfig {
    let urls: Vec<String> = (0..PODS).map(|pod| pages.url(&format!("/{pod}"))).collect();
    gate(&format!(
        "type = 'endpoint-scrape'\nurls = {urls:?}\nmax_per_endpoint = 8\nmode = 'counted'\nrefresh = '1s'"
    ))
}

/// Case 78.
async fn counted_readings_admit_what_is_free(pages: &Pages, config: DispatcherConfig) {
    let bench = Bench::new().await;
    let desk = Desk::closed();
    let mut config = config;
    config.pools[0].concurrency = 64;
    let _dispatcher = bench.start(config, &desk).await;
    bench.enqueue(40).await;
    for readings in 1..=3 {
        desk.until_called(4 * readings).await;
        // The calls first: a reading in between admits only more.
        let (called, gets) = (desk.calls().len(), pages.gets().len());
        assert!(called <= 4 * gets.div_ceil(PODS), "{called} calls after {gets} of {PODS} for each reading");
    }

    pages.answer_with(|get| match &*get.target {
        "/5" => Page::Status(503, vec![], "busy".into()),
        _ => metrics(0, 0),
    });
    until_readings(pages, PODS, 1).await;
    let called = desk.calls().len();
    until_readings(pages, PODS, 2).await;
    assert_eq!(desk.calls().len(), called, "a failed reading admits nothing");

    pages.answer_with(|_| metrics(0, 0));
    desk.answer();
    bench.finish().await;
    assert_eq!(desk.calls().len(), 40);
}

#[tokio::test]
async fn a_counted_scrape_at_the_queue_admits_what_is_free_and_no_more_until_the_next_reading() {
    let pages = Pages::start(busy_pods).await;
    let mut config = config();
    config.queues[0].gate = counted(&pages);
    counted_readings_admit_what_is_free(&pages, config).await;
}

#[tokio::test]
async fn a_counted_scrape_at_the_pool_admits_what_is_free_and_no_more_until_the_next_reading() {
    let pages = Pages::start(busy_pods).await;
    let mut config = config();
    config.pools[0].gate = counted(&pages);
    counted_readings_admit_what_is_free(&pages, config).await;
}

#[tokio::test]
async fn requests_wait_for_the_next_counted_reading_where_refusals_wait() {
    let pages = Pages::start(busy_pods).await;
    let mut config = config();
    config.queues[0].gate = GateConfig::WaitOnRefuse { gate: Box::new(counted(&pages)) };
    counted_readings_admit_what_is_free(&pages, config).await;
}

/// A gate, how many GETs make a reading of it, and what opens and shuts it.
struct Case {
    gate: &'static str,
    gets: usize,
    open: fn(&Get) -> Page,
    shut: fn(&Get) -> Page,
}

const CASES: [Case; 5] = [
    Case {
        gate: "type = 'prometheus-query'\nquery = 'budget'",
        gets: 1,
        open: |_| value("0.5"),
        shut: |_| value("0"),
    },
    Case {
        gate: "type = 'prometheus-saturation'\nquery = 'saturation'\nfallback = 1",
        gets: 1,
        open: |_| value("0.5"),
        shut: |_| value("0.8"),
    },
    Case {
        gate: "type = 'prometheus-budget'\nload = 'load'\ncapacity = 'slots'",
        gets: 2,
        open: |get| value(if get.target.contains("load") { "4" } else { "8" }),
        shut: |get| value(if get.target.contains("load") { "7.6" } else { "8" }),
    },
    Case {
        gate: "type = 'endpoint-scrape'\nmax_per_endpoint = 8",
        gets: 1,
        open: |_| metrics(1, 1),
        shut: |_| metrics(8, 9),
    },
    Case {
        gate: "type = 'endpoint-scrape'\nmax_per_endpoint = 8\nmode = 'counted'",
        gets: 1,
        open: |_| metrics(4, 0),
        shut: |_| metrics(8, 9),
    },
];

/// Nothing is taken while the gate is shut, everything once it is open.
#[tokio::test]
async fn a_gate_opens_and_shuts_by_its_readings_and_stays_shut_without_them() {
    futures_util::future::join_all(CASES.map(opens_and_shuts)).await;
}

async fn opens_and_shuts(Case { gate: text, gets, open, shut }: Case) {
    let pages = Pages::start(shut).await;
    let source = if text.contains("scrape") { "urls = ['URL/m']" } else { "url = 'URL'" };
    let source = source.replace("URL", &pages.url(""));
    let mut config = config();
    config.queues[0].gate = gate(&format!("{text}\n{source}\nrefresh = '100ms'"));
    let bench = Bench::new().await;
    let desk = Desk::open();
    let _dispatcher = bench.start(config, &desk).await;
    let broken: [fn(&Get) -> Page; 3] = [shut, |_| Page::Status(500, vec![], String::new()), |_| Page::Hang];
    for closed in broken {
        pages.answer_with(closed);
        until_readings(&pages, gets, 1).await;
        bench.enqueue(3).await;
        let called = desk.calls().len();
        until_readings(&pages, gets, 1).await;
        assert_eq!(desk.calls().len(), called, "{text}");
        bench.until_stamped(0).await;
        pages.answer_with(open);
        bench.finish().await;
    }
}

#[tokio::test]
async fn a_gate_that_fails_open_lets_requests_pass_without_a_reading() {
    let pages = Pages::start(|_| Page::Hang).await;
    let bench = Bench::new().await;
    let mut config = config();
    config.queues[0].gate =
        gate(&format!("type = 'prometheus-saturation'\nquery = 'x'\nurl = '{}'", pages.url("")));
    let _dispatcher = bench.start(config, &Desk::open()).await;
    bench.enqueue(3).await;
    bench.finish().await;
}

/// Nothing is leased by a dispatcher that does not start, and nothing of it goes on.
#[tokio::test]
async fn a_source_that_cannot_be_read_at_all_is_refused_at_the_start() {
    let bench = Bench::new().await;
    let mut config = config();
    config.queues.push(queue("second"));
    config.queues[1].gate = gate(
        "type = 'prometheus-query'\nquery = 'x'\nurl = 'http://localhost'\n\
         headers = { authorization = 'env:LEASEHOLD_TEST_MISSING' }",
    );
    let backends = [(config.pools[0].name.clone(), Desk::open().backend())].into();
    let error = Dispatcher::start_with(bench.serving.clone(), config, backends).await.err().unwrap();
    let error = format!("{error}: {}", std::error::Error::source(&error).unwrap());
    for named in ["queue \"second\"", "prometheus-query", "authorization", "LEASEHOLD_TEST_MISSING"] {
        assert!(error.contains(named), "{error}");
    }
    let leased: i64 = bench.value("SELECT count(*) FROM partitions WHERE owner IS NOT NULL", &[]).await;
    assert_eq!(leased, 0);
}
