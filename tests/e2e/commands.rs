//! Every command of the README and of `--help`, as it is typed.

use leasehold_testkit::{stand_in::Answer, wait::until};
use serde_json::{Value, json};

use crate::{
    PATIENCE, code_blocks,
    installation::{Installation, backend},
    process::{Running, leasehold},
    read,
    serve::{Serve, configuration},
};

#[tokio::test]
async fn migrate_makes_the_schema_once() {
    let installation = Installation::empty().await;
    let ran = installation.run(&["migrate"]).await.good();
    assert!(ran.stderr.contains("was made"), "{}", ran.stderr);
    assert_eq!(ran.stdout, "");
    let ran = installation.run(&["migrate", "--grants"]).await.good();
    assert!(ran.stderr.contains("already"), "{}", ran.stderr);
    installation.run(&["status"]).await.good();
}

/// Hazards, "ten processes migrate a fresh database at once": one schema, no error.
#[tokio::test]
async fn processes_that_migrate_at_once_all_succeed() {
    let installation = Installation::empty().await;
    let ran = tokio::join!(
        installation.run(&["migrate"]),
        installation.run(&["migrate"]),
        installation.run(&["migrate"]),
        installation.run(&["migrate"])
    );
    for ran in <[_; 4]>::from(ran) {
        ran.good();
    }
    let versions: i64 = installation.value("SELECT count(*) FROM schema_history", &[]).await;
    assert_eq!(versions, i64::from(leasehold_store::SCHEMA_VERSION));
}

#[tokio::test]
async fn a_request_enqueued_from_the_command_line_comes_back_from_pop() {
    let installation = Installation::new().await;
    let backend = backend().await;
    let serve = Serve::start(&installation, &configuration(&backend, "")).await;
    let payload = "{\"model\":\"m\",\"messages\":[]}";
    let by_argument = installation
        .run(&["enqueue", "q", payload, "--route", "replies", "--deadline", "5m", "--header", "x-own=1"])
        .await
        .good();
    let by_stdin =
        installation.run_with(&["enqueue", "q", "-", "--route", "replies"], b"from \0 stdin").await.good();
    installation.until_results(2).await;
    let popped = installation.run(&["pop", "replies"]).await.good().lines();
    let of = |enqueued: &Value| -> Value {
        popped.iter().find(|result| result["id"] == enqueued["id"]).cloned().expect("it has its result")
    };
    let (by_argument, by_stdin) = (of(&by_argument.lines()[0]), of(&by_stdin.lines()[0]));
    assert_eq!((&by_argument["body"], &by_argument["status"]), (&json!(payload), &json!(200)));
    assert_eq!((&by_argument["code"], &by_argument["queue"]), (&Value::Null, &json!("q")));
    // Text that Postgres cannot hold is text all the same.
    assert_eq!(by_stdin["body"], json!("from \0 stdin"));
    assert_eq!(installation.run(&["pop", "replies"]).await.good().stdout, "", "they are gone");
    let sent = backend.calls();
    assert!(sent.iter().any(|call| call.headers.get("x-own").is_some_and(|value| value == "1")));
    serve.stop().await;
}

#[tokio::test]
async fn a_repeat_of_an_enqueue_that_was_named_is_the_same_submission() {
    let installation = Installation::new().await;
    let named = ["enqueue", "q", "x", "--id", "order-17", "--token", "first"];
    let first = installation.run(&named).await.good().stdout;
    assert_eq!(installation.run(&named).await.good().stdout, first);
    let other = ["enqueue", "q", "y", "--id", "order-17", "--token", "first"];
    installation.run(&other).await.failed(6, &["order-17"]);
    assert_eq!(installation.value::<i64>("SELECT count(*) FROM requests", &[]).await, 1);
}

#[tokio::test]
async fn a_file_is_enqueued_in_its_order_up_to_the_line_that_is_wrong() {
    let installation = Installation::new().await;
    let good: String =
        (0..1500).map(|n| format!("{{\"payload\": {{\"n\": {n}}}, \"id\": \"n-{n}\"}}\n")).collect();
    let path = installation.directory.write("good.jsonl", &good);
    let ran = installation.run(&["enqueue", "q", "--file", &path, "--route", "replies"]).await.good();
    let ids: Vec<String> = ran.lines().iter().map(|line| line["id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(ids, (0..1500).map(|n| format!("n-{n}")).collect::<Vec<_>>());
    let seqs: Vec<i64> = ran.lines().iter().map(|line| line["seq"].as_i64().unwrap()).collect();
    assert!(seqs.is_sorted());
    let stored = "SELECT convert_from(payload, 'UTF8') FROM requests WHERE id = 'n-7' AND route = 'replies'";
    assert_eq!(installation.value::<String>(stored, &[]).await, "{\"n\": 7}");

    let bad = "{\"payload\": 1, \"id\": \"a\"}\n\n{\"payload\": 2, \"prioritty\": 3}\n{\"payload\": 3, \"id\": \"c\"}\n";
    let path = installation.directory.write("bad.jsonl", bad);
    let ran = installation.run(&["enqueue", "q", "--file", &path]).await;
    let ran = ran.failed(1, &["bad.jsonl: line 3", "prioritty", "everything up to line 1 was enqueued"]);
    assert_eq!(ran.lines().len(), 1, "only the first");
    assert_eq!(installation.value::<i64>("SELECT count(*) FROM requests WHERE id = 'c'", &[]).await, 0);

    // By stdin, as --help shows it; what the database refuses is named, too.
    let line = b"{\"payload\":{\"model\":\"m\"},\"id\":\"q-1\",\"deadline\":\"2h\"}\n";
    let ran = installation.run_with(&["enqueue", "q", "--file", "-"], line).await.good();
    assert_eq!(ran.lines()[0]["id"], json!("q-1"));
    let ran = installation.run_with(&["enqueue", "q", "--file", "-"], b"{\"payload\":1,\"id\":\"\"}\n").await;
    ran.failed(6, &["nothing was enqueued"]);
    installation.run(&["enqueue", "q", "--file", "/does/not/exist"]).await.failed(1, &["/does/not/exist"]);
}

#[tokio::test]
async fn pop_follows_a_route_until_it_is_interrupted() {
    let installation = Installation::new().await;
    let backend = backend().await;
    let serve = Serve::start(&installation, &configuration(&backend, "")).await;
    let mut follow =
        Running::start(leasehold(&["pop", "replies", "--follow"]).env("DATABASE_URL", installation.url()));
    for n in 1..=3 {
        installation
            .run(&["enqueue", "q", "x", "--id", &format!("n-{n}"), "--route", "replies"])
            .await
            .good();
        let lines = follow
            .wait_for("the result is printed", |process| {
                Some(process.stdout.lines()).filter(|lines| lines.len() == n)
            })
            .await;
        let last: Value = serde_json::from_str(lines.last().unwrap()).unwrap();
        assert_eq!(last["id"], json!(format!("n-{n}")));
    }
    follow.signal("INT").await;
    follow.ended_with(0).await;
    assert_eq!(installation.value::<i64>("SELECT result_depth('replies')", &[]).await, 0, "acked");

    let mut one = leasehold(&["pop", "replies", "--follow", "--max", "1"]);
    let mut one = Running::start(one.env("DATABASE_URL", installation.url()));
    installation.run(&["enqueue", "q", "x", "--route", "replies"]).await.good();
    one.ended_with(0).await;
    serve.stop().await;
}

#[tokio::test]
async fn cancel_ends_requests_pending_and_in_flight() {
    let installation = Installation::new().await;
    let backend = backend().await;
    backend.respond_with(|_| Answer::Hang);
    installation.run(&["enqueue", "q", "x", "--id", "pending", "--not-before", "1h"]).await.good();
    installation.run(&["enqueue", "q", "x", "--id", "in flight"]).await.good();
    let serve = Serve::start(&installation, &configuration(&backend, "")).await;
    until("it is called", PATIENCE, async || backend.in_flight() == 1).await;
    let ran = installation.run(&["cancel", "pending", "in flight", "unknown"]).await.good();
    assert_eq!(ran.stdout, "2\n");
    installation.until_results(2).await;
    let codes: Vec<Value> = installation
        .run(&["pop", "default"])
        .await
        .good()
        .lines()
        .iter()
        .map(|r| r["code"].clone())
        .collect();
    assert_eq!(codes, ["CANCELLED", "CANCELLED"]);
    until("the call is aborted", PATIENCE, async || backend.aborted() == 1).await;
    serve.stop().await;
}

#[tokio::test]
async fn status_tells_programs_and_people_what_there_is() {
    let installation = Installation::new().await;
    let backend = backend().await;
    installation.run(&["enqueue", "q", "x", "--not-before", "1h"]).await.good();
    installation.run(&["enqueue", "other", "x"]).await.good();
    let serve = Serve::start(&installation, &configuration(&backend, "")).await;
    installation.run(&["enqueue", "q", "x", "--route", "replies"]).await.good();
    installation.until_results(1).await;

    let status = &installation.run(&["status", "--json"]).await.good().lines()[0];
    let queues = status["queues"].as_array().unwrap();
    let queue = |name: &str| queues.iter().find(|queue| queue["queue"] == name).expect("it is shown");
    assert_eq!((&queue("q")["parked"], &queue("q")["pending"]), (&json!(1), &json!(0)));
    assert_eq!(queue("other")["pending"], json!(1));
    assert_eq!(queue("q")["dispatchers"][0]["owner"], json!(serve.owner));
    assert_eq!(queue("q")["partitions"].as_array().unwrap().len(), 64);
    assert!(queue("q")["partitions"].as_array().unwrap().iter().all(|p| p["owner"] == json!(serve.owner)));
    assert_eq!(status["routes"], json!([{ "route": "replies", "waiting": 1 }]));

    let text = installation.run(&["status"]).await.good().stdout;
    assert!(text.contains(&serve.owner) && text.contains("replies"), "{text}");
    let mut watch = leasehold(&["status", "--watch", "1"]);
    let mut watch = Running::start(watch.env("DATABASE_URL", installation.url()));
    watch
        .wait_for("it has looked twice", |process| {
            let shown = process.stdout.lines().iter().filter(|line| line.contains("replies")).count();
            (shown >= 2).then_some(())
        })
        .await;
    watch.signal("INT").await;
    watch.ended_with(0).await;
    serve.stop().await;
}

/// Several queues, from several files, in one process.
#[tokio::test]
async fn one_process_serves_two_installations() {
    let (first, second) = (Installation::new().await, Installation::new().await);
    let backend = backend().await;
    let at = |installation: &Installation| format!("[database]\nurl = \"{}\"\n", installation.url());
    let eu = format!("{}{}", at(&first), configuration(&backend, ""));
    let us = eu.replace(first.url(), second.url()).replace("[http]\nlisten = \"127.0.0.1:0\"\n", "");
    let (eu, us) = (first.directory.write("eu.toml", &eu), first.directory.write("us.toml", &us));
    let serve = Serve::start_with(&first, &["serve", "--config", &eu, "--config", &us]).await;
    let ids = ["one".to_owned()];
    for installation in [&first, &second] {
        installation.enqueue("q", &ids).await;
        installation.finish(&ids).await;
    }
    serve.stop().await;
}

/// The words of a command as a shell reads it, as far as single quotes go.
fn words(line: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for (n, part) in line.split('\'').enumerate() {
        match n % 2 {
            0 => words.extend(part.split_whitespace().map(str::to_owned)),
            _ => words.push(part.to_owned()),
        }
    }
    words
}

/// The README's shell commands that begin with the program's name, as they stand there, with its configuration.
#[tokio::test]
async fn the_commands_of_the_readme_work() {
    let installation = Installation::empty().await;
    let readme = read("README.md");
    let configuration =
        format!("{}\n[http]\nlisten = \"127.0.0.1:0\"\n", code_blocks(&readme, "toml").concat());
    installation.directory.write("leasehold.toml", &configuration);
    let blocks = code_blocks(&readme, "sh");
    let commands: Vec<Vec<String>> = blocks
        .iter()
        .flat_map(|block| block.lines())
        .filter_map(|line| line.strip_prefix("leasehold "))
        .map(|line| words(line.split('#').next().unwrap_or_default()))
        .collect();
    assert_eq!(commands.len(), 11, "{commands:?}");
    for args in commands {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let mut command = leasehold(&args);
        command.current_dir(installation.directory.path()).env("DATABASE_URL", installation.url());
        let mut process = Running::start(&mut command);
        if args[0] == "serve" {
            until("it leases the queue", PATIENCE, async || {
                let sql = "SELECT count(owner) = 64 FROM leasehold.partitions";
                installation.value(sql, &[]).await
            })
            .await;
            process.signal("TERM").await;
        }
        process.ended_with(0).await;
    }
    // The filter of the topic's subscription was given as one word.
    assert_eq!(installation.run(&["receive", "audit"]).await.good().lines().len(), 1);
    let commands =
        "up serve migrate enqueue pop cancel send receive peek dlq queue topic quota status stand-in";
    for args in commands.split(' ') {
        let help = installation.run(&[args, "--help"]).await.good().stdout;
        assert!(help.contains("Usage: leasehold"), "{help}");
    }
    let help = installation.run(&["--help"]).await.good().stdout;
    assert!(help.contains("Exit codes:") && help.contains("Units:"), "{help}");
}

/// A result is printed before it is removed: a reader that goes away loses nothing.
#[tokio::test]
async fn pop_into_a_reader_that_goes_away_loses_nothing() {
    let installation = Installation::new().await;
    let backend = backend().await;
    let serve = Serve::start(&installation, &configuration(&backend, "")).await;
    // More than a pipe holds.
    let payload = "x".repeat(100_000);
    for _ in 0..3 {
        installation.run_with(&["enqueue", "q", "-", "--route", "replies"], payload.as_bytes()).await.good();
    }
    installation.until_results(3).await;
    let mut pop = std::process::Command::new(env!("CARGO_BIN_EXE_leasehold"))
        .args(["pop", "replies", "--lease", "1h", "--database-url", installation.url()])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(pop.stdout.take());
    until("it has ended", PATIENCE, async || pop.try_wait().unwrap().is_some()).await;
    assert!(pop.wait().unwrap().success(), "a reader that goes away is no failure");
    let again = installation.run(&["pop", "replies"]).await.good().lines();
    assert_eq!(again.len(), 3, "given back at once");
    serve.stop().await;
}
