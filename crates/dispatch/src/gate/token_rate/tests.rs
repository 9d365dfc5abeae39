use leasehold_store::{Store, StoreOptions};

use super::*;
use crate::config::Limits;

/// Of a gate that no test asks: its database is nowhere.
fn estimate_by(bytes_per_token: f64, default_max_tokens: i64, payload: impl AsRef<[u8]>) -> i64 {
    let store = Store::open("postgres://nobody@127.0.0.1:1/nothing", &StoreOptions::default()).unwrap();
    let gate = TokenRate {
        keys: Keys { prefix: "tokens:".into(), attribute: "userid".into(), limit: 1, limits: Limits::Config },
        window: Duration::from_secs(60),
        bytes_per_token,
        default_max_tokens,
        client: QuotaClient::new(&store, "nobody", Duration::from_secs(15)),
    };
    gate.estimate(payload.as_ref())
}

fn estimate(payload: impl AsRef<[u8]>) -> i64 {
    estimate_by(4.0, 512, payload)
}

/// The prompt's part at 4 bytes for each token.
fn prompt(payload: &str) -> i64 {
    i64::try_from(payload.len().div_ceil(4)).unwrap()
}

#[tokio::test]
async fn an_estimate_is_the_payloads_size_and_what_is_wanted() {
    for name in ["max_tokens", "max_completion_tokens", "max_output_tokens"] {
        let payload = format!("{{\"{name}\": 100, \"messages\": []}}");
        assert_eq!(estimate(&payload), prompt(&payload) + 100, "{name}");
        let many = format!("{{\"{name}\": 100, \"n\": 3}}");
        assert_eq!(estimate(&many), prompt(&many) + 300, "{name}");
    }
    let unsaid = "{\"messages\": []}";
    assert_eq!(estimate(unsaid), prompt(unsaid) + 512);
    let unsaid_many = "\n {\"n\": 2}";
    assert_eq!(estimate(unsaid_many), prompt(unsaid_many) + 1024);
    let mistyped = "{\"n\": \"2\", \"max_tokens\": 100}";
    assert_eq!(estimate(mistyped), prompt(mistyped) + 100);
    let none = "{\"max_tokens\": 0, \"n\": 0}";
    assert_eq!(estimate(none), prompt(none));
    let null = "{\"max_tokens\": null, \"n\": null}";
    assert_eq!(estimate(null), prompt(null) + 512);
}

#[tokio::test]
async fn the_newer_name_comes_first() {
    let both = "{\"max_tokens\": 100, \"max_completion_tokens\": 7, \"max_output_tokens\": 1000}";
    assert_eq!(estimate(both), prompt(both) + 7);
    let older = "{\"max_tokens\": 100, \"max_output_tokens\": 1000}";
    assert_eq!(estimate(older), prompt(older) + 100);
}

#[tokio::test]
async fn what_is_not_understood_is_estimated_by_its_size() {
    for garbage in ["{\"max_tokens\": ", "[{\"max_tokens\": 9}]", "plain text", "{\"max_tokens\": -5}"] {
        assert_eq!(estimate(garbage), prompt(garbage) + 512, "{garbage}");
    }
    assert_eq!(estimate([0xff; 8]), 2 + 512);
    assert_eq!(estimate(""), 512);
    assert_eq!(estimate_by(4.0, 0, ""), 1, "never nothing");
}

#[tokio::test]
async fn an_estimate_is_never_more_than_the_database_takes() {
    for payload in [
        "{\"max_tokens\": 18446744073709551615}",
        "{\"max_tokens\": 9223372036854775807, \"n\": 9223372036854775807}",
        "{\"max_tokens\": 1000000000, \"n\": 1000000000}",
    ] {
        assert_eq!(estimate(payload), MOST, "{payload}");
    }
    assert_eq!(estimate_by(f64::MIN_POSITIVE, 512, "hello"), MOST);
    assert_eq!(estimate_by(1000.0, 0, "hello"), 1);
    assert_eq!(estimate_by(2.5, 0, "hello"), 2);
}
