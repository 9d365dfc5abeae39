//! What `serve` refuses, with which exit code, and that everything that ships is accepted.

use leasehold_testkit::database::TestDatabase;

use crate::{
    code_blocks,
    directory::Directory,
    installation::Installation,
    process::leasehold,
    ran::{Ran, run},
    read, repository,
};

const GOOD: &str = "[database]\nurl = \"env:DATABASE_URL\"\n[http]\nlisten = \"\"\n[[pools]]\nname = \"p\"\n\
    backend = { url = \"http://localhost:1/\" }\n[[queues]]\nname = \"q\"\npool = \"p\"\n";

async fn check(path: &str) -> Ran {
    run(&mut leasehold(&["serve", "--check", "--config", path]), b"").await
}

#[tokio::test]
async fn the_sample_and_the_readmes_configuration_are_good() {
    let directory = Directory::new();
    // The second is a setting of the first's queue, which comes last in it.
    let blocks = code_blocks(&read("README.md"), "toml");
    assert_eq!(blocks.len(), 2);
    let of_readme = directory.write("leasehold.toml", &blocks.concat());
    let sample = repository().join("crates/server/leasehold.sample.toml");
    for path in [of_readme.as_str(), sample.to_str().unwrap()] {
        let ran = check(path).await.good();
        assert_eq!(ran.stdout, format!("{path}: good: 1 queue, 1 pool\n"));
    }
}

/// Case 79 as an operator meets it: named, with its line, and exit code 3.
#[tokio::test]
async fn a_configuration_with_something_unknown_is_refused_by_name() {
    let directory = Directory::new();
    let cases = [
        (GOOD.replace("name = \"q\"", "name = \"q\"\npriority = 1"), "unknown field `priority`"),
        (GOOD.replace("pool = \"p\"", "pool = \"elsewhere\""), "there is no pool \"elsewhere\""),
        (GOOD.replace("pool = \"p\"", "pool = \"p\"\ngate = { type = \"turnstile\" }"), "turnstile"),
        (format!("{GOOD}[[queues]]\nname = \"q\"\npool = \"p\"\n"), "queue \"q\" is configured twice"),
        (GOOD.replace("http://localhost:1/", "localhost"), "pool \"p\""),
        (format!("{GOOD}[dispatcher]\nlease_ttl = \"15\"\n"), "lease_ttl"),
        (GOOD.replace("env:DATABASE_URL", "mysql://x"), "[database]"),
        (GOOD.replace("env:DATABASE_URL\"", "postgres://h/d\"\nschema = \"No Name\""), "[database]"),
        (format!("{GOOD}[log]\nfilter = \"foo=bar=baz\"\n"), "log filter \"foo=bar=baz\""),
        (format!("{GOOD}[traces]\nendpoint = \"collector:4318\"\n"), "[traces] endpoint"),
    ];
    for (content, named) in cases {
        let path = directory.write("leasehold.toml", &content);
        let named = if named == "lease_ttl" { "line 12" } else { named };
        check(&path).await.failed(3, &[named, "leasehold.toml"]);
        // The same without --check, before it looks for a database.
        let mut serve = leasehold(&["serve", "--config", &path]);
        run(serve.env("DATABASE_URL", "postgres://127.0.0.1:1/x"), b"").await.failed(3, &[named]);
    }
    check("/does/not/exist.toml").await.failed(3, &["/does/not/exist.toml"]);
}

#[tokio::test]
async fn a_process_that_nobody_gave_a_database_says_how_to() {
    let directory = Directory::new();
    let path = directory.write("leasehold.toml", GOOD);
    let ran = run(&mut leasehold(&["serve", "--config", &path]), b"").await;
    ran.failed(3, &["DATABASE_URL"]);
    run(&mut leasehold(&["status"]), b"").await.failed(3, &["--database-url", "DATABASE_URL"]);
}

#[tokio::test]
async fn a_database_that_cannot_be_reached_has_an_exit_code_and_no_password_in_its_error() {
    let directory = Directory::new();
    let path = directory.write("leasehold.toml", GOOD);
    // Nobody listens on port 1.
    let url = "postgres://me:hunter2@127.0.0.1:1/leasehold";
    for args in [
        &["serve", "--config", &path][..],
        &["migrate"],
        &["enqueue", "q", "x"],
        &["pop", "replies"],
        &["cancel", "x"],
        &["status", "--json"],
    ] {
        let ran = run(leasehold(args).env("DATABASE_URL", url), b"").await.failed(4, &["error: "]);
        assert!(!ran.stderr.contains("hunter2"), "{}", ran.stderr);
        assert_eq!(ran.stdout, "");
    }
    let bad = run(&mut leasehold(&["status", "--database-url", "mysql://me:hunter2@host/db"]), b"").await;
    assert!(!bad.failed(3, &[]).stderr.contains("hunter2"));
}

/// The server is there, and knows neither the database nor the user.
#[tokio::test]
async fn a_server_that_refuses_the_connection_says_why_and_where() {
    let installation = Installation::new().await;
    for (from, to) in [("//leasehold@", "//nobody@"), ("/test_", "/no_test_")] {
        let url = installation.url().replace(from, to);
        let ran = run(leasehold(&["status"]).env("DATABASE_URL", &url), b"").await;
        let place = url.split_once('@').unwrap().1.split('?').next().unwrap().to_owned();
        ran.failed(6, &["the server refuses the connection", "does not exist", &place]);
    }
}

/// Hazards, "old binary on a newer schema": refused, naming both versions.
#[tokio::test]
async fn a_schema_that_is_newer_or_missing_or_anothers_is_refused() {
    let installation = Installation::new().await;
    let path = installation.directory.write("leasehold.toml", GOOD);
    let newer = "INSERT INTO schema_history SELECT 99, 'from the future', applied_on, checksum FROM schema_history LIMIT 1";
    assert_eq!(installation.sql.execute(newer, &[]).await.unwrap(), 1);
    for args in [&["serve", "--config", &path][..], &["migrate"], &["enqueue", "q", "x"], &["status"]] {
        let ran = installation.run(args).await;
        ran.failed(5, &["version 99", &format!("version {}", leasehold_store::SCHEMA_VERSION)]);
    }

    let empty = Installation::empty().await;
    empty.run(&["enqueue", "q", "x"]).await.failed(5, &["leasehold migrate"]);
    empty.run(&["serve", "--config", &path]).await.failed(5, &["leasehold migrate"]);

    let foreign = TestDatabase::empty().await;
    let sql = foreign.connect().await;
    sql.batch_execute("CREATE SCHEMA leasehold; CREATE TABLE leasehold.orders (n int)").await.unwrap();
    run(leasehold(&["migrate"]).env("DATABASE_URL", foreign.url()), b"").await.failed(5, &["leasehold"]);
}

#[tokio::test]
async fn a_command_line_that_is_not_understood_has_its_own_exit_code() {
    for args in [&["serv"][..], &["serve"], &["enqueue", "q"], &["pop"], &["status", "--yaml"]] {
        run(&mut leasehold(args), b"").await.failed(2, &["Usage"]);
    }
    run(&mut leasehold(&["enqueue", "q"]), b"").await.failed(2, &["<PAYLOAD|--file <FILE>>"]);
    run(&mut leasehold(&["send", "q", "x", "--file", "-"]), b"")
        .await
        .failed(2, &["[BODY]", "--file <FILE>"]);
}
