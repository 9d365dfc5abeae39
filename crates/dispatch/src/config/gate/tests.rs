use super::*;

fn read(toml: &str) -> Result<GateConfig, String> {
    let gate: GateConfig = toml::from_str(toml).map_err(|error| error.to_string())?;
    gate.check().map_err(|error| error.to_string()).map(|()| gate)
}

const QUERY: &str = "type = 'prometheus-query'\nurl = 'http://p:9090'\nquery = 'x'\n";
const SATURATION: &str = "type = 'prometheus-saturation'\nurl = 'http://p:9090'\nquery = 'x'\n";
const BUDGET: &str = "type = 'prometheus-budget'\nurl = 'http://p:9090'\nload = 'x'\n";
const SCRAPE: &str = "type = 'endpoint-scrape'\nurls = ['http://a/metrics', 'http://b/metrics']\n";

#[test]
fn what_is_left_out_has_its_default() {
    let GateConfig::PrometheusQuery(gate) = read(QUERY).unwrap() else { panic!() };
    assert_eq!((gate.fallback, gate.refresh), (0.0, Duration::from_secs(5)));
    let GateConfig::PrometheusSaturation(gate) = read(SATURATION).unwrap() else { panic!() };
    assert_eq!((gate.threshold, gate.fallback, gate.refresh), (0.8, 0.0, Duration::from_secs(5)));
    let GateConfig::PrometheusBudget(gate) = read(&format!("{BUDGET}capacity = 64")).unwrap() else {
        panic!()
    };
    assert_eq!((gate.baseline, gate.fallback, gate.refresh), (0.05, 0.0, Duration::from_secs(5)));
    let GateConfig::EndpointScrape(gate) = read(&format!("{SCRAPE}max_per_endpoint = 8")).unwrap() else {
        panic!()
    };
    assert_eq!(gate.metrics, ["vllm:num_requests_running", "vllm:num_requests_waiting"]);
    assert_eq!((gate.baseline, gate.mode, gate.fallback), (0.0, ScrapeMode::Budget, 0.0));
    assert_eq!((gate.refresh, gate.labels.len()), (Duration::from_secs(5), 0));
}

#[test]
fn numbers_may_be_strings_and_a_capacity_is_a_query_only_where_it_is_no_number() {
    let GateConfig::PrometheusSaturation(gate) =
        read(&format!("{SATURATION}threshold = '0.9'\nfallback = ' 1 '\nrefresh = '250ms'")).unwrap()
    else {
        panic!()
    };
    assert_eq!((gate.threshold, gate.fallback, gate.refresh), (0.9, 1.0, Duration::from_millis(250)));
    for (text, wanted) in [
        ("64", Capacity::Number(64.0)),
        ("6.5", Capacity::Number(6.5)),
        ("'64'", Capacity::Number(64.0)),
        ("' 1e3 '", Capacity::Number(1000.0)),
        ("'sum(slots)'", Capacity::Query("sum(slots)".into())),
        ("'64 * 2'", Capacity::Query("64 * 2".into())),
    ] {
        let GateConfig::PrometheusBudget(gate) = read(&format!("{BUDGET}capacity = {text}")).unwrap() else {
            panic!()
        };
        assert_eq!(gate.capacity, wanted);
    }
    let GateConfig::EndpointScrape(gate) = read(&format!("{SCRAPE}max_per_endpoint = '8'")).unwrap() else {
        panic!()
    };
    assert_eq!(gate.max_per_endpoint, 8);
}

#[test]
fn what_cannot_be_is_refused_with_the_gate_and_the_setting() {
    let scrape = |more: &str| format!("{SCRAPE}max_per_endpoint = 8\n{more}");
    let cases = [
        (QUERY.replace("http://p:9090", "ftp://p"), "prometheus-query: url: its scheme is \"ftp\""),
        (QUERY.replace("http://p:9090", ""), "prometheus-query: url: must be set"),
        (QUERY.replace("http://p:9090", "p:9090"), "prometheus-query: url: "),
        (QUERY.replace("'x'", "' '"), "prometheus-query: query must be a query"),
        (QUERY.replace("query = 'x'", ""), "missing field `query`"),
        (format!("{QUERY}fallback = 1.1"), "prometheus-query: fallback must be from 0 to 1"),
        (format!("{QUERY}fallback = 'nan'"), "prometheus-query: fallback must be from 0 to 1"),
        (format!("{QUERY}fallback = 'none'"), "\"none\" is not a number"),
        (format!("{QUERY}refresh = '99ms'"), "prometheus-query: refresh must be from 100ms to 1h"),
        (format!("{QUERY}refresh = '2h'"), "prometheus-query: refresh must be"),
        (format!("{QUERY}refresh = 5"), "duration"),
        (format!("{QUERY}refesh = '5s'"), "unknown field `refesh`"),
        (format!("{QUERY}threshold = 0.8"), "unknown field `threshold`"),
        (
            format!("{QUERY}headers = {{ 'a b' = 'x' }}"),
            "prometheus-query: headers: \"a b\" is no header name",
        ),
        (format!("{QUERY}headers = {{ host = \"\\n\" }}"), "prometheus-query: headers: \"host\""),
        (format!("{SATURATION}threshold = -0.1"), "prometheus-saturation: threshold must be from 0 to 1"),
        (format!("{SATURATION}fallback = inf"), "prometheus-saturation: fallback must be from 0 to 1"),
        (format!("{SATURATION}capacity = 1"), "unknown field `capacity`"),
        (BUDGET.to_owned(), "missing field `capacity`"),
        (format!("{BUDGET}capacity = 0"), "prometheus-budget: capacity must be above 0, not 0"),
        (format!("{BUDGET}capacity = '-1'"), "prometheus-budget: capacity must be above 0"),
        (format!("{BUDGET}capacity = 'inf'"), "prometheus-budget: capacity must be above 0"),
        (format!("{BUDGET}capacity = 'NaN'"), "prometheus-budget: capacity must be above 0"),
        (format!("{BUDGET}capacity = ''"), "prometheus-budget: capacity must be a query"),
        (format!("{BUDGET}capacity = [1]"), "a number or a query"),
        (format!("{BUDGET}capacity = 1\nbaseline = 2"), "prometheus-budget: baseline must be from 0 to 1"),
        (SCRAPE.to_owned(), "missing field `max_per_endpoint`"),
        (format!("{SCRAPE}max_per_endpoint = 0"), "endpoint-scrape: max_per_endpoint must be from 1"),
        (format!("{SCRAPE}max_per_endpoint = -1"), "a number is wanted"),
        (scrape("baseline = 1.5"), "endpoint-scrape: baseline must be from 0 to 1"),
        (scrape("mode = 'count'"), "unknown variant `count`"),
        (scrape("mode = 'counted'\nfallback = 0.5"), "endpoint-scrape: fallback must be 0 for mode counted"),
        (scrape("metrics = []"), "endpoint-scrape: metrics must name at least one"),
        (scrape("metrics = ['a', 'a']"), "endpoint-scrape: metrics: a is there twice"),
        (scrape("metrics = ['a{b=\"c\"}']"), "is no metric's name"),
        (scrape("labels = { '' = 'x' }"), "endpoint-scrape: labels must have"),
        (scrape("").replace("'http://a/metrics', 'http://b/metrics'", ""), "endpoint-scrape: urls must name"),
        (scrape("").replace("http://b", "http://a"), "endpoint-scrape: urls: number 2 is there twice"),
        (scrape("").replace("http://b", "b"), "endpoint-scrape: urls, number 2: "),
    ];
    for (toml, named) in cases {
        let message = read(&toml).expect_err(&toml);
        assert!(message.contains(named), "{message:?} does not name {named:?}");
    }
}

#[test]
fn gates_within_gates_are_checked_too() {
    let inner = "{ type = 'prometheus-query', url = 'http://p', query = 'x', fallback = 2 }";
    for outer in [
        format!("type = 'composite'\ngates = [{{ type = 'constant' }}, {inner}]"),
        format!("type = 'wait-on-refuse'\ngate = {inner}"),
        format!("type = 'tier-admission'\ngate = {inner}"),
    ] {
        assert!(read(&outer).unwrap_err().contains("prometheus-query: fallback"));
        read(&outer.replace('2', "1")).unwrap();
    }
}

#[test]
fn debug_shows_no_credentials() {
    let text = QUERY.replace("http://p:9090", "http://me:hunter2@p/?key=hunter2");
    let gate = read(&format!("{text}headers = {{ authorization = 'hunter2' }}")).unwrap();
    let shown = format!("{gate:?}");
    assert!(!shown.contains("hunter2"), "{shown}");
    assert!(shown.contains("authorization") && shown.contains("http://redacted@p/?redacted"), "{shown}");
}
