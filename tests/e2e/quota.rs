//! `leasehold quota` and its documents, against a real database, and limits that are changed while a process serves.

use leasehold_testkit::{stand_in::Answer, wait::until};
use serde_json::{Value, json};

use crate::{
    PATIENCE, code_blocks,
    directory::Directory,
    installation::{Installation, backend},
    process::leasehold,
    ran::run,
    read,
    serve::{Serve, configuration},
};

/// Alice's holder has 3 slots and cannot have a fourth; Bob has used 2 of 50 in a minute.
async fn in_use() -> Installation {
    let installation = Installation::new().await;
    for statement in [
        "SELECT quota_register('host-1', '10 minutes')",
        "SELECT quota_acquire('host-1', 'quota:userid:alice', 4, 3)",
        "SELECT quota_admit('quota:userid:bob', 2, 50)",
    ] {
        installation.sql.simple_query(statement).await.unwrap();
    }
    installation
}

async fn set(installation: &Installation, args: &[&str]) -> String {
    installation.run(&[&["quota", "set"], args].concat()).await.good().stdout
}

#[tokio::test]
async fn list_shows_what_is_used_of_which_limit() {
    let installation = Installation::new().await;
    let ran = installation.run(&["quota", "list"]).await.good();
    assert_eq!((ran.stdout.as_str(), ran.stderr.contains("no key")), ("", true));

    let installation = in_use().await;
    set(&installation, &["quota:userid:*", "--concurrency", "4"]).await;
    set(&installation, &["spend", "--budget", "0.5"]).await;
    let lines = installation.run(&["quota", "list", "--json"]).await.good().lines();
    let seen: Vec<_> = lines.iter().map(|line| [&line["key"], &line["kind"], &line["used"]]).collect();
    assert_eq!(
        json!(seen),
        json!([
            ["quota:userid:*", "slots", 0],
            ["quota:userid:alice", "slots", 3],
            ["quota:userid:bob", "window", 2],
            ["spend", "budget", null]
        ])
    );
    let [default, alice, bob, spend] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!((&default["set_limit"], &default["limit"]), (&json!(4), &Value::Null));
    assert_eq!(
        (&alice["saturated"], &alice["limit"], &alice["set_limit"]),
        (&json!(true), &json!(3), &Value::Null)
    );
    assert!(alice["refused_seconds"].as_f64().unwrap() >= 0.0 && alice["refused_at"].is_string());
    assert_eq!((&bob["saturated"], &bob["window_seconds"]), (&json!(false), &json!(60.0)));
    assert_eq!(spend["budget"], json!(0.5));

    let text = installation.run(&["quota", "list"]).await.good().stdout;
    let marked: Vec<&str> = text.lines().filter(|line| line.ends_with("SATURATED")).collect();
    assert!(marked.len() == 1 && marked[0].starts_with("quota:userid:alice  slots"), "{text}");
    let column = |line: &str, word: &str| line.find(word).unwrap_or_else(|| panic!("{word} in {text}"));
    let header = text.lines().next().unwrap();
    assert_eq!(column(header, "KIND"), column(marked[0], "slots"));
    assert_eq!(
        column(header, "REFUSED"),
        marked[0].rfind(" ago").map(|_| column(header, "REFUSED")).unwrap()
    );

    let ran = installation.run(&["quota", "list", "quota:userid:", "--max", "2"]).await.good();
    assert_eq!(ran.stdout.lines().count(), 3, "{}", ran.stdout);
    assert!(ran.stderr.contains("only the first 2"), "{}", ran.stderr);
    let ran = installation.run(&["quota", "list", "nobody:"]).await.good();
    assert!(ran.stdout.is_empty() && ran.stderr.contains("\"nobody:\""), "{}", ran.stderr);
}

#[tokio::test]
async fn show_tells_who_holds_what_and_since_when() {
    let installation = in_use().await;
    set(&installation, &["quota:userid:bob", "--rate", "60"]).await;
    set(&installation, &["quota:userid:bob", "--rate", "900", "--window", "1h"]).await;
    set(&installation, &["quota:userid:bob", "--leased-rate", "2.5", "--ttl", "1h"]).await;
    let show = async |key: &'static str| {
        installation.run(&["quota", "show", key, "--json"]).await.good().lines().remove(0)
    };

    let alice = show("quota:userid:alice").await;
    let held = &alice["limits"][0]["holders"][0];
    assert_eq!((&held["holder"], &held["slots"]), (&json!("host-1"), &json!(3)));
    assert!(held["since"].is_string() && held["expires_at"].is_string(), "{held}");
    let text = installation.run(&["quota", "show", "quota:userid:alice"]).await.good().stdout;
    assert!(
        text.contains("Slots: 3 of 3 used") && text.contains("host-1") && text.contains("SATURATED"),
        "{text}"
    );

    let bob = show("quota:userid:bob").await;
    let limits: Vec<_> = bob["limits"]
        .as_array()
        .unwrap()
        .iter()
        .map(|limit| {
            [&limit["window_seconds"], &limit["used"], &limit["set_limit"], &limit["admissions"][0]["count"]]
        })
        .collect();
    assert_eq!(json!(limits), json!([[60.0, 2, 60, 2], [3600.0, 0, 900, null]]));
    assert_eq!((&bob["leased_rate"]["rate"], &bob["budget"]), (&json!(2.5), &Value::Null));
    let left = bob["leased_rate"]["expires_seconds"].as_f64().unwrap();
    assert!(left > 1800.0 && left <= 3600.0, "{left}");
    let text = installation.run(&["quota", "show", "quota:userid:bob"]).await.good().stdout;
    for said in [
        "Window 1m: 2 of 50 used",
        "Window 1h: nobody has asked",
        "Leased rate: 2.5 a second, for another 59 m",
    ] {
        assert!(text.contains(said), "{text}");
    }

    // Part of a key is none.
    for unknown in ["nobody", "quota:userid:ali", "quota:userid:alice:"] {
        let ran = installation.run(&["quota", "show", unknown]).await;
        assert_eq!(ran.stdout, "");
        ran.failed(6, &[&format!("\"{unknown}\""), "leasehold quota list"]);
    }
}

#[tokio::test]
async fn set_says_what_is_in_force_and_which_gates_use_it() {
    let installation = Installation::new().await;
    for (args, said) in [
        (&["k", "--concurrency", "3"][..], ["k: 3 at once\n", "mode = \"concurrency\""]),
        (&["k", "--rate", "100"], ["k: 100 in 1m\n", "window = \"1m\""]),
        (&["k", "--rate", "7", "--window", "1h30m"], ["k: 7 in 1h 30m\n", "limits = \"database\""]),
        (
            &["p:userid:*", "--concurrency", "0"],
            ["p:userid:*: 0 at once", "the default for keys that begin with p:userid:"],
        ),
        (&["k", "--budget", "0.25"], ["k: budget 0.25\n", "budget gates with key = \"k\""]),
        (
            &["k", "--leased-rate", "0.5", "--ttl", "60s"],
            ["k: 0.5 a second until ", "leased-rate gates with key = \"k\""],
        ),
        (&["k", "--remove", "concurrency"], ["k: no limit of slots of its own\n", "or else their own limit"]),
        (&["k", "--remove", "rate"], ["k: no limit in 1m of its own\n", "window = \"1m\""]),
        (&["p:userid:*", "--remove", "concurrency"], ["no default of slots", "use their own limit"]),
        (&["k", "--remove", "budget"], ["k: budget 1, as none is set\n", "budget gates"]),
        (&["k", "--remove", "leased-rate"], ["k: no leased rate, so nothing passes\n", "leased-rate gates"]),
    ] {
        let text = set(&installation, args).await;
        assert!(said.iter().all(|said| text.contains(said)), "{args:?}: {text}");
    }
    let left = installation.run(&["quota", "list", "--json"]).await.good().lines();
    assert_eq!(left.len(), 1, "only the limit of the other window is left: {left:?}");
    assert_eq!((&left[0]["window_seconds"], &left[0]["set_limit"]), (&json!(5400.0), &json!(7)));
    let ran = installation.run(&["quota", "set", "p:userid*", "--concurrency", "1"]).await.good();
    assert!(ran.stderr.contains("only one that ends in :* is a default"), "{}", ran.stderr);
}

/// By the command line before a database is looked for, by the database where only it knows.
#[tokio::test]
async fn bad_input_is_refused_by_name() {
    for (args, named) in [
        (&["k"][..], "--concurrency <N>"),
        (&["--rate", "5"], "<KEY>"),
        (&["k", "--concurrency", "-1"], "--concurrency"),
        (&["k", "--concurrency", "1.5"], "--concurrency"),
        (&["k", "--concurrency", "1000000000001"], "--concurrency"),
        (&["k", "--rate", "many"], "--rate"),
        (&["k", "--rate", "5", "--window", "0s"], "--window"),
        (&["k", "--rate", "5", "--window", "-1s"], "--window"),
        (&["k", "--rate", "5", "--window", "32d"], "--window"),
        (&["k", "--rate", "5", "--window", "60"], "--window"),
        (&["k", "--window", "1m"], "--rate <N>"),
        (&["k", "--concurrency", "5", "--window", "1m"], "--window"),
        (&["k", "--remove", "budget", "--window", "1m"], "--window"),
        (&["k", "--budget", "NaN"], "--budget"),
        (&["k", "--budget", "1.01"], "--budget"),
        (&["k", "--budget", "-0.1"], "--budget"),
        (&["k", "--leased-rate", "5"], "--ttl"),
        (&["k", "--leased-rate", "-1", "--ttl", "1m"], "--leased-rate"),
        (&["k", "--leased-rate", "inf", "--ttl", "1m"], "--leased-rate"),
        (&["k", "--leased-rate", "5", "--ttl", "0s"], "--ttl"),
        (&["k", "--budget", "1", "--ttl", "1m"], "--ttl"),
        (&["k", "--concurrency", "1", "--rate", "1"], "--rate"),
        (&["k", "--rate", "1", "--remove", "rate"], "--remove"),
        (&["k", "--remove", "everything"], "--remove"),
    ] {
        let ran = run(&mut leasehold(&[&["quota", "set"], args].concat()), b"").await;
        assert_eq!(ran.stdout, "", "{args:?}");
        ran.failed(2, &[named]);
    }
    let installation = Installation::new().await;
    for key in ["", "a\tb", &"x".repeat(1025)] {
        let ran = installation.run(&["quota", "set", key, "--concurrency", "1"]).await;
        ran.failed(6, &["key must have 1 to 1024 bytes and no control characters"]);
    }
}

/// A limit in the database is changed under a process that serves; status and metrics say who is held back.
#[tokio::test]
async fn limit_set_in_the_database_counts_without_a_restart() {
    let installation = Installation::new().await;
    let backend = backend().await;
    backend.respond_with(|_| Answer::Hang);
    let gate = "gate = { type = \"quota\", mode = \"concurrency\", limit = 1, limits = \"database\" }\n";
    let serve =
        Serve::start(&installation, &format!("{}{gate}", configuration(&backend, "drain_timeout = \"0s\"")))
            .await;
    for _ in 0..8 {
        installation.run(&["enqueue", "q", "x", "--metadata", "userid=alice"]).await.good();
    }
    let until_calls = async |count: usize| {
        until("so many calls are under way", PATIENCE, async || backend.in_flight() == count).await;
    };
    until_calls(1).await;
    set(&installation, &["quota:userid:*", "--concurrency", "3"]).await;
    until_calls(3).await;
    set(&installation, &["quota:userid:alice", "--concurrency", "5"]).await;
    until_calls(5).await;
    assert_eq!(backend.peak_in_flight(), 5);

    until("it is refused", PATIENCE, async || {
        let status = &installation.run(&["status", "--json"]).await.good().lines()[0];
        let key = &status["saturated"][0];
        key["key"] == "quota:userid:alice"
            && key["used"] == 5
            && key["limit"] == 5
            && status["saturated_keys"] == 1
    })
    .await;
    let text = installation.run(&["status"]).await.good().stdout;
    assert!(text.contains("Saturated quota keys") && text.contains("5 of 5 slots"), "{text}");
    let shown = installation.run(&["quota", "show", "quota:userid:alice", "--json"]).await.good().lines();
    assert!(
        shown[0]["limits"][0]["holders"][0]["holder"].as_str().unwrap().starts_with(&serve.owner),
        "{shown:?}"
    );
    until("it is counted", PATIENCE, async || {
        serve.get("/metrics").await.1.lines().any(|line| line == "leasehold_quota_saturated_keys 1")
    })
    .await;
    serve.stop().await;
    until("its slots are free", PATIENCE, async || {
        installation.value::<i64>("SELECT count(*) FROM quota_slots WHERE slots > 0", &[]).await == 0
    })
    .await;
}

/// The commands of docs/quotas.md, as they stand there, and those within its text.
#[tokio::test]
async fn the_commands_of_the_document_work() {
    let installation = in_use().await;
    let document = read("docs/quotas.md");
    let inline =
        document.split('`').filter(|text| text.starts_with("leasehold quota set ") && text.contains("--"));
    let blocks = code_blocks(&document, "sh");
    let commands: Vec<String> =
        blocks.iter().flat_map(|block| block.lines()).chain(inline).map(str::to_owned).collect();
    assert_eq!(commands.len(), 7, "{commands:?}");
    for command in commands {
        let words = command.split('#').next().unwrap_or_default().split_whitespace().skip(1);
        let args: Vec<&str> = words.map(|word| word.trim_matches('\'')).collect();
        installation.run(&args).await.good();
    }
}

/// The gates that a configuration may name, from what the program says of one that it does not know.
async fn gate_names(directory: &Directory, configuration: &str) -> Vec<String> {
    let path =
        directory.write("unknown.toml", &format!("{configuration}gate = {{ type = \"turnstile\" }}\n"));
    let ran = run(&mut leasehold(&["serve", "--check", "--config", &path]), b"")
        .await
        .failed(3, &["expected one of"]);
    let (_, names) = ran.stderr.split_once("expected one of").unwrap();
    names.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Each example of docs/quotas.md is a setting of a queue.
#[tokio::test]
async fn every_gate_has_an_example_that_is_good() {
    let directory = Directory::new();
    let base =
        configuration(&backend().await, "").replace("[http]", "[database]\nurl = \"postgres://x\"\n[http]");
    let document = read("docs/quotas.md");
    let examples = code_blocks(&document, "toml");
    for example in &examples {
        let path = directory.write("leasehold.toml", &(base.clone() + example));
        let ran = run(&mut leasehold(&["serve", "--check", "--config", &path]), b"").await;
        assert_eq!(ran.code, 0, "{example}\n{}", ran.stderr);
    }
    for name in gate_names(&directory, &base).await {
        let named = format!("type = \"{name}\"");
        assert!(examples.iter().any(|example| example.contains(&named)), "no example of {name}");
    }
}
