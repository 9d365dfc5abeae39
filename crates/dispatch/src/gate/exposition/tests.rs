use super::*;

fn all(text: &str, metric: &str) -> Result<Option<f64>, String> {
    sum(text, metric, &BTreeMap::new())
}

fn with(text: &str, name: &str, value: &str) -> Option<f64> {
    sum(text, "m", &BTreeMap::from([(name.to_owned(), value.to_owned())])).unwrap()
}

const VLLM: &str = r#"# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="meta-llama/Llama-3.1-8B"} 6.0
vllm:num_requests_running{engine="1",model_name="meta-llama/Llama-3.1-8B"} 1.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="meta-llama/Llama-3.1-8B"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 9.0
vllm:e2e_request_latency_seconds_bucket{engine="0",le="+Inf"} 17.0
"#;

#[test]
fn all_series_of_a_metric_are_summed_and_no_longer_name_is_taken_for_it() {
    assert_eq!(all(VLLM, "vllm:num_requests_running"), Ok(Some(7.0)));
    assert_eq!(all(VLLM, "vllm:num_requests_waiting"), Ok(Some(0.0)));
    assert_eq!(all(VLLM, "vllm:num_requests"), Ok(None));
    assert_eq!(all("", "m"), Ok(None));
    assert_eq!(all("# m 1\n#m 1\n# TYPE m gauge\nam 1\n", "m"), Ok(None));
}

#[test]
fn values_timestamps_and_line_ends_are_read_in_every_spelling() {
    for (line, value) in [
        ("m 1", 1.0),
        ("m 1\n", 1.0),
        ("m 1\r\n", 1.0),
        ("m 1\r", 1.0),
        ("  m\t 1 \t", 1.0),
        ("m{} 1", 1.0),
        ("m {} 1", 1.0),
        ("m{a=\"b\",} 1", 1.0),
        ("m { a = \"b\" , c = \"\" } 1", 1.0),
        ("m 1 1395066363000", 1.0),
        ("m 1 -3", 1.0),
        ("m{a=\"b\"}1", 1.0),
        ("m 1 # {trace_id=\"x\"} 0.5 1.7", 1.0),
        ("m 1 1395066363.1 # {trace_id=\"x\"} 0.5", 1.0),
        ("m 1.5e3", 1500.0),
        ("m -2", -2.0),
        ("m +Inf", f64::INFINITY),
        ("m -Inf", f64::NEG_INFINITY),
    ] {
        assert_eq!(all(line, "m"), Ok(Some(value)), "{line:?}");
    }
    assert!(all("m NaN", "m").unwrap().unwrap().is_nan());
    assert_eq!(all("a 1\nm 2\r\n\n\r\nm{x=\"y\"} 3", "m"), Ok(Some(5.0)));
}

#[test]
fn labels_tell_series_apart_whatever_their_values_hold() {
    let text = r#"m{a="x",b="1"} 1
m{a="with \"quotes\"",b="2"} 2
m{a="comma, and }brace{",b="3"} 4
m{a="back\\slash\nnew=line",b="4"} 8
m{b="5",a="größe ✓"} 16
m{b="6"} 32
"#;
    for (value, wanted) in [
        ("x", 1.0),
        ("with \"quotes\"", 2.0),
        ("comma, and }brace{", 4.0),
        ("back\\slash\nnew=line", 8.0),
        ("größe ✓", 16.0),
        ("", 32.0),
    ] {
        assert_eq!(with(text, "a", value), Some(wanted), "{value:?}");
    }
    assert_eq!(with(text, "a", "y"), None);
    assert_eq!(with(text, "c", "x"), None);
    let both = BTreeMap::from([("a".to_owned(), "x".to_owned()), ("b".to_owned(), "2".to_owned())]);
    assert_eq!(sum(text, "m", &both), Ok(None), "every label must be met");
}

#[test]
fn a_malformed_line_of_the_metric_is_an_error_with_its_number() {
    for line in [
        "m{",
        "m{}",
        "m one",
        "m 1 then",
        "m 1 2 3",
        "m{a} 1",
        "m{a=b} 1",
        "m{a=\"b} 1",
        "m{a=\"b\\\"} 1",
        "m{a=\"\\t\"} 1",
        "m{a=\"b\" c=\"d\"} 1",
        "m{a=\"b\",a=\"c\"} 1",
        "m{=\"b\"} 1",
        "m{a b=\"c\"} 1",
        "m{,} 1",
        "m 1,5",
    ] {
        let error = all(&format!("m 1\n{line}\n"), "m").expect_err(line);
        assert!(error.starts_with("line 2, m: "), "{error}");
    }
    assert_eq!(all("other{broken 1\nm 1\n", "m"), Ok(Some(1.0)), "others' lines are theirs");
}

#[test]
fn no_text_makes_it_panic() {
    use proptest::prelude::*;
    proptest!(|(text in "(m|\\{|\\}|\"|\\\\|,|=| |\n|a|1|é)*")| {
        let _ = all(&text, "m");
        let _ = all(&format!("m{{{text}"), "m");
    });
}
