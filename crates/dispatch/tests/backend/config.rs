//! Configuration as operators write it.

use std::error::Error;
use std::time::Duration;

use leasehold_dispatch::backend::{BackendConfigError, HttpBackend, HttpBackendConfig};

fn refused(text: &str) -> String {
    toml::from_str::<HttpBackendConfig>(text).unwrap_err().to_string()
}

#[test]
fn a_url_is_enough() {
    let config: HttpBackendConfig = toml::from_str("url = 'https://llm.example.com/v1'").unwrap();
    let wanted = HttpBackendConfig {
        url: "https://llm.example.com/v1".to_owned(),
        request_timeout: Duration::from_mins(5),
        connect_timeout: Duration::from_secs(5),
        max_answer_bytes: 16 << 20,
        idle_timeout: Duration::from_secs(60),
        ..HttpBackendConfig::default()
    };
    assert_eq!(config, wanted);
    HttpBackend::new(config).unwrap();
}

#[test]
fn durations_are_text_with_a_unit() {
    let config: HttpBackendConfig =
        toml::from_str("request_timeout = '1h 30m'\nconnect_timeout = '250ms'").unwrap();
    assert_eq!(config.request_timeout, Duration::from_mins(90));
    assert_eq!(config.connect_timeout, Duration::from_millis(250));
}

#[test]
fn a_bad_duration_is_refused_by_its_value() {
    for value in ["'0s'", "'-5m'", "'5 parsecs'", "'5m30'", "'2y'", "'9000h'", "300", "1.5", "true"] {
        let error = refused(&format!("request_timeout = {value}"));
        assert!(error.contains(value.trim_matches('\'')), "{error}");
        assert!(error.contains("request_timeout"), "{error}");
    }
}

#[test]
fn an_unknown_key_is_refused_by_name() {
    assert!(refused("request_timout = '5m'").contains("request_timout"));
}

#[test]
fn the_url_must_be_set() {
    let error = HttpBackend::new(HttpBackendConfig::default()).unwrap_err();
    assert!(matches!(error, BackendConfigError::UrlMissing));
}

#[test]
fn values_from_code_are_checked_too() {
    let url = "http://localhost/".to_owned();
    let config = HttpBackendConfig { url, ..HttpBackendConfig::default() };
    let zero = HttpBackendConfig { idle_timeout: Duration::ZERO, ..config.clone() };
    let error = HttpBackend::new(zero).unwrap_err();
    assert_eq!(error.to_string(), "idle_timeout: no usable duration");
    assert!(error.source().unwrap().to_string().contains("0s"));
    let none = HttpBackendConfig { max_answer_bytes: 0, ..config };
    assert!(matches!(HttpBackend::new(none), Err(BackendConfigError::NoRoomForAnswers)));
}

#[test]
fn a_missing_environment_variable_is_named() {
    let text = "url = 'http://localhost/'\nheaders = { authorization = 'env:LEASEHOLD_TEST_UNSET' }";
    let error = HttpBackend::new(toml::from_str(text).unwrap()).unwrap_err().to_string();
    assert!(error.contains("LEASEHOLD_TEST_UNSET") && error.contains("authorization"), "{error}");
}

#[test]
fn a_backend_shows_no_credentials() {
    let text = "url = 'http://u:hunter2@localhost/?k=hunter2'\nheaders = { authorization = 'hunter2' }";
    let backend = HttpBackend::new(toml::from_str(text).unwrap()).unwrap();
    let shown = format!("{backend:?}");
    assert!(shown.contains("localhost") && !shown.contains("hunter2"), "{shown}");
}
