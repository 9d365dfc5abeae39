use super::*;

fn map<const N: usize>(entries: [(&str, &str); N]) -> BTreeMap<String, String> {
    entries.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}

fn with_configured<const N: usize>(entries: [(&str, &str); N]) -> Result<CallHeaders, BackendConfigError> {
    let config = HttpBackendConfig { headers: map(entries), ..HttpBackendConfig::default() };
    CallHeaders::new(&config, |name| match name {
        "TOKEN" => Some("Bearer t0ken".to_owned()),
        "EMPTY" => Some(String::new()),
        _ => None,
    })
}

fn sent(call: &Call) -> BTreeMap<String, String> {
    let headers = with_configured([("authorization", "env:TOKEN"), ("x-team", "ours")]).unwrap();
    headers
        .for_call(call)
        .unwrap()
        .iter()
        .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
        .collect()
}

const ALWAYS: [(&str, &str); 5] = [
    ("accept-encoding", "identity"),
    ("authorization", "Bearer t0ken"),
    ("content-length", "0"),
    ("content-type", "application/json"),
    ("x-team", "ours"),
];

#[test]
fn a_bare_call_has_the_default_and_configured_headers() {
    assert_eq!(sent(&Call::default()), map(ALWAYS));
}

#[test]
fn hop_by_hop_headers_and_credentials_are_not_a_requests_to_send() {
    let headers = map([
        ("Connection", "close, X-Hop"),
        ("x-hop", "1"),
        ("Keep-Alive", "timeout=5"),
        ("Proxy-Authorization", "Basic eDp5"),
        ("proxy-anything", "1"),
        ("TE", "trailers"),
        ("Trailer", "x"),
        ("Transfer-Encoding", "chunked"),
        ("Upgrade", "h2c"),
        ("Host", "elsewhere"),
        ("Content-Length", "7"),
        ("Expect", "100-continue"),
        ("Accept-Encoding", "gzip"),
        ("AUTHORIZATION", "Bearer stolen"),
        ("Cookie", "a=b"),
        ("Set-Cookie", "a=b"),
        ("X-Api-Key", "k"),
        ("api-KEY", "k\n"),
    ]);
    assert_eq!(sent(&Call { headers, ..Call::default() }), map(ALWAYS));
}

#[test]
fn a_request_sets_its_own_headers_but_none_that_is_given() {
    let call = Call {
        headers: map([
            ("Content-Type", "text/plain"),
            ("X-Own", "yes"),
            ("X-Team", "theirs"),
            ("Traceparent", "theirs"),
            ("X-Gateway-Inference-Objective", "theirs"),
            ("X-Gateway-Inference-Fairness-Id", "theirs"),
        ]),
        metadata: map([("fairness_id", "tenant-7"), ("else", "x")]),
        trace: map([("traceparent", "00-ours"), ("tracestate", "bad\nvalue")]),
        inference_objective: Some("batch".to_owned()),
        ..Call::default()
    };
    let mut wanted = map(ALWAYS);
    wanted.extend(map([
        ("content-type", "text/plain"),
        ("x-own", "yes"),
        ("traceparent", "00-ours"),
        ("x-gateway-inference-objective", "batch"),
        ("x-gateway-inference-fairness-id", "tenant-7"),
    ]));
    assert_eq!(sent(&call), wanted);
}

#[test]
fn an_invalid_header_is_named_without_its_value() {
    for (name, value) in
        [("x bad", "v"), ("", "v"), ("ü", "v"), ("x-nul", "se\0cret"), ("x-nl", "secret\r\nx: y")]
    {
        let call = Call { headers: map([(name, value)]), ..Call::default() };
        let failure = with_configured([]).unwrap().for_call(&call).unwrap_err();
        assert_eq!(failure.code, ErrorCode::InvalidRequest);
        assert!(failure.message.contains(&format!("{name:?}")), "{}", failure.message);
        assert!(!failure.message.contains("cret"), "{}", failure.message);
    }
}

#[test]
fn an_invalid_fairness_id_names_its_header() {
    let call = Call { metadata: map([("fairness_id", "a\nb")]), ..Call::default() };
    let failure = with_configured([]).unwrap().for_call(&call).unwrap_err();
    assert!(failure.message.contains("x-gateway-inference-fairness-id"), "{}", failure.message);
}

#[test]
fn a_bad_configured_header_is_refused_by_name() {
    for (name, value, wanted) in [
        ("x-key", "env:MISSING", "\"MISSING\""),
        ("x-key", "env:EMPTY", "\"EMPTY\""),
        ("x-key", "env:", "\"x-key\""),
        ("x key", "v", "\"x key\""),
        ("x-key", "sec\nret", "\"x-key\""),
        ("Content-Length", "1", "\"Content-Length\""),
        ("Proxy-Authorization", "secret", "\"Proxy-Authorization\""),
        ("traceparent", "00", "\"traceparent\""),
    ] {
        let error = with_configured([(name, value)]).err().unwrap().to_string();
        assert!(error.contains(wanted), "{error}");
        assert!(!error.contains("secret") && !error.contains("sec\nret"), "{error}");
    }
    let twice = with_configured([("X-Key", "1"), ("x-key", "2")]).err().unwrap().to_string();
    assert!(twice.contains("given twice"), "{twice}");
}

#[test]
fn a_bad_header_name_is_refused_by_its_key() {
    let config = HttpBackendConfig { fairness_header: "x y".to_owned(), ..HttpBackendConfig::default() };
    let error = CallHeaders::new(&config, |_| None).err().unwrap().to_string();
    assert_eq!(error, "fairness_header: \"x y\" is no header name");
}

#[test]
fn the_attempt_is_sent_where_it_has_a_header_and_is_no_requests_to_set() {
    let config = HttpBackendConfig { attempt_header: "X-Attempt".to_owned(), ..HttpBackendConfig::default() };
    let call = Call { attempt: 17, headers: map([("x-attempt", "theirs")]), ..Call::default() };
    let headers = CallHeaders::new(&config, |_| None).unwrap().for_call(&call).unwrap();
    assert_eq!(headers["x-attempt"], "17");
}

#[test]
fn an_emptied_header_name_sends_nothing() {
    let config = HttpBackendConfig {
        fairness_header: String::new(),
        inference_objective_header: String::new(),
        ..HttpBackendConfig::default()
    };
    let call = Call {
        metadata: map([("fairness_id", "tenant-7")]),
        inference_objective: Some("batch".to_owned()),
        ..Call::default()
    };
    let headers = CallHeaders::new(&config, |_| None).unwrap().for_call(&call).unwrap();
    assert_eq!(headers.len(), 3, "{headers:?}");
}
