//! The examples of the manual, each run by a shell as it stands.

use std::{collections::BTreeSet, process::Stdio};

use serde_json::{Value, json};
use tokio::process::Command;

use super::Api;
use crate::{code_blocks, read};

/// What an example that settles something needs to have in hand.
async fn in_hand(api: &Api, example: &str) -> Vec<(&'static str, String)> {
    let post = async |path: &str, body| {
        let request =
            api.request("POST", path).bearer_auth("secret").header("content-type", "application/json");
        super::answer(request.body(Value::to_string(&body))).await.1
    };
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    if example.contains("cancel-scheduled") {
        let sent =
            post("/v1/queues/orders/schedule", json!({ "at": "1h", "messages": [{ "body": "1" }] })).await;
        return vec![("SEQ", text(&sent["seqs"][0]))];
    }
    if example.contains("/v1/requests/") {
        let parked = json!({ "id": "parked-1", "token": "1", "payload": 1, "not_before": "1h" });
        post("/v1/queues/chat/enqueue", json!({ "requests": [parked] })).await;
        return Vec::new();
    }
    if example.contains("LEASE") {
        post("/v1/queues/q/enqueue", json!({ "requests": [{ "payload": 1, "route": "replies" }] })).await;
        let leased = post("/v1/routes/replies/lease", json!({ "max": 1, "wait": "20s" })).await;
        return vec![("LEASE", text(&leased["lease"])), ("SEQ", text(&leased["results"][0]["seq"]))];
    }
    if !example.contains("SEQ") {
        return Vec::new();
    }
    post("/v1/queues/orders/send", json!({ "messages": [{ "body": "1", "reply_to": "answers" }] })).await;
    let received = post("/v1/queues/orders/receive", json!({ "wait": "20s" })).await["messages"][0].clone();
    let lock = json!({ "seq": received["seq"], "lock_token": received["lock_token"] });
    if example.contains("receive-deferred") {
        post("/v1/queues/orders/defer", lock.clone()).await;
    }
    vec![("SEQ", text(&lock["seq"])), ("LOCK_TOKEN", text(&lock["lock_token"]))]
}

#[tokio::test]
async fn every_example_runs_and_every_operation_has_one() {
    let api = Api::start_with("tokens = [{ token = \"secret\", scopes = [\"admin\"] }]").await;
    let request = api.request("PUT", "/v1/queues/orders").bearer_auth("secret");
    super::answer(request.header("content-type", "application/json").body("{}")).await;
    api.installation.directory.write(".curlrc", "silent\nshow-error\nfail-with-body\nnoproxy = \"*\"\n");
    let examples: Vec<String> = code_blocks(&read("docs/http.md"), "sh")
        .into_iter()
        .filter(|block| block.starts_with("curl "))
        .collect();
    for example in &examples {
        let mut script = example.clone();
        for (placeholder, value) in in_hand(&api, example).await {
            script = script.replace(placeholder, &value);
        }
        let output = Command::new("sh")
            .args(["-euc", &script])
            .env("API", &api.url)
            .env("AUTH", "Authorization: Bearer secret")
            .env("CURL_HOME", api.installation.directory.path())
            .stdin(Stdio::null())
            .output()
            .await
            .unwrap();
        assert!(output.status.success(), "{script}\n{output:?}");
        if !output.stdout.is_empty() {
            serde_json::from_slice::<Value>(&output.stdout).unwrap();
        }
    }
    let document = super::answer(api.request("GET", "/openapi.json")).await.1;
    let patterns: BTreeSet<String> = document["paths"]
        .as_object()
        .unwrap()
        .iter()
        .flat_map(|(path, operations)| {
            operations
                .as_object()
                .unwrap()
                .keys()
                .map(move |method| format!("{} {path}", method.to_uppercase()))
        })
        .collect();
    let shown: BTreeSet<String> = examples.iter().map(|example| operation(example)).collect();
    assert_eq!(shown, patterns);
    api.serve.stop().await;
}

/// Method and path of an example, as the description has them.
fn operation(example: &str) -> String {
    let url = example.split('"').nth(1).unwrap();
    let path = url.trim_start_matches("$API").split('?').next().unwrap();
    let mut parts: Vec<&str> = path.split('/').collect();
    for n in 1..parts.len() {
        let parameter = match parts[n - 1] {
            "queues" => "{queue}",
            "routes" => "{route}",
            "topics" => "{topic}",
            "subscriptions" => "{name}",
            "requests" if parts[n] != "cancel" => "{id}",
            _ => continue,
        };
        parts[n] = parameter;
    }
    let method = match example.strip_prefix("curl -X ") {
        Some(rest) => rest.split(' ').next().unwrap(),
        None if example.contains("--json") => "POST",
        None => "GET",
    };
    format!("{method} {}", parts.join("/"))
}

#[tokio::test]
async fn every_code_is_in_the_table_of_errors() {
    let api = Api::start().await;
    let document = super::answer(api.request("GET", "/openapi.json")).await.1;
    let manual = read("docs/http.md");
    for code in document["components"]["schemas"]["Code"]["enum"].as_array().unwrap() {
        assert!(manual.contains(&format!("`{}`", code.as_str().unwrap())), "{code} is missing");
    }
    assert!(document.get("security").is_none(), "nobody is asked for a token");
    api.serve.stop().await;
}
