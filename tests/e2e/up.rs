//! `leasehold up`: the whole system in one process, and what is left when it ends or is killed.

use std::{collections::BTreeSet, path::Path};

use leasehold_testkit::{cluster::find_bin_dir, database::temporary_directory, wait::until};
use tokio::process::Command;
use tokio_postgres::{Client, NoTls};

use crate::{
    PATIENCE,
    process::{Running, leasehold},
    reading::get,
};

/// `up` on a directory, once it is ready.
struct Up {
    process: Running,
    sql: Client,
}

impl Up {
    async fn start(data_dir: &Path) -> Self {
        let args = ["up", "--listen", "127.0.0.1:0", "--data-dir", data_dir.to_str().unwrap()];
        let mut process = Running::start(&mut leasehold(&args));
        let lines = process
            .wait_for("it is ready", |process| {
                let lines = process.stdout.lines();
                lines.iter().any(|line| line.starts_with("Ctrl-C")).then_some(lines)
            })
            .await;
        let url = lines[0].strip_prefix("DATABASE_URL=").expect("the first line is for programs");
        assert_eq!(lines[1], "READY");
        let (sql, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
        tokio::spawn(connection);
        Self { process, sql }
    }

    /// The statements that it prints, to be pasted.
    fn printed_statements(&self) -> Vec<String> {
        let text = self.process.stdout.lines().join("\n");
        let paragraphs =
            text.split("\n\n").map(str::trim).filter(|paragraph| paragraph.starts_with("SELECT"));
        paragraphs.map(|paragraph| paragraph.trim_end_matches(';').to_owned()).collect()
    }

    async fn until_finished(&self) {
        until("every request is finished", PATIENCE, async || {
            let row =
                self.sql.query_one("SELECT NOT EXISTS (SELECT FROM leasehold.requests)", &[]).await.unwrap();
            row.get(0)
        })
        .await;
    }
}

/// Runs a call of curl that `up` prints.
async fn call(arguments: &str) -> String {
    let script = format!("curl --silent --show-error --fail-with-body --noproxy '*' {arguments}");
    let output = Command::new("sh").args(["-euc", &script]).output().await.unwrap();
    assert!(output.status.success(), "{script}\n{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Waits until Postgres has ended, and says in which state it left the directory.
async fn state_left(data_dir: &Path) -> String {
    until("Postgres has ended", PATIENCE, async || !data_dir.join("postmaster.pid").exists()).await;
    // Its programs may be links to where the others are.
    let postgres = find_bin_dir().unwrap().join("postgres").canonicalize().unwrap();
    let control = postgres.with_file_name("pg_controldata");
    let output =
        std::process::Command::new(control).arg("-D").arg(data_dir).env("LC_ALL", "C").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let state = text.lines().find_map(|line| line.strip_prefix("Database cluster state:"));
    state.unwrap_or_else(|| panic!("{text}")).trim().to_owned()
}

/// Invariants 1 and 5, with the statements that `up` itself prints.
#[tokio::test]
async fn ten_thousand_requests_in_one_statement_have_ten_thousand_results() {
    let data_dir = temporary_directory();
    let mut up = Up::start(&data_dir).await;
    let statements = up.printed_statements();
    let [enqueue, pop] = &statements[..] else { panic!("{statements:?}") };
    let enqueued: i64 = up.sql.query_one(enqueue, &[]).await.unwrap().get(0);
    assert_eq!(enqueued, 10_000);
    up.until_finished().await;
    let rows = up.sql.query(pop, &[]).await.unwrap();
    assert_eq!(rows.len(), 10_000);
    let ids: BTreeSet<String> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(ids.len(), 10_000, "each once");
    let questions: BTreeSet<String> = rows
        .iter()
        .map(|row| {
            assert_eq!(row.get::<_, i32>(1), 200);
            let body: serde_json::Value = serde_json::from_str(row.get(2)).unwrap();
            body["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
        })
        .collect();
    assert_eq!(questions, (1..=10_000).map(|n| format!("question {n}")).collect());
    assert!(up.sql.query(pop, &[]).await.unwrap().is_empty());

    let page = up.process.stdout.lines().join("\n");
    let calls: Vec<&str> =
        page.split("\n  curl ").skip(1).map(|rest| rest.split("\n\n").next().unwrap()).collect();
    let [enqueue, pop, metrics] = calls[..] else { panic!("{calls:?}") };
    assert!(call(enqueue).await.contains("\"requests\""));
    assert!(call(pop).await.contains("\\\"content\\\":\\\"hello\\\""));
    assert_eq!(get(metrics.split_whitespace().next().unwrap()).await.0, 200);
    up.process.signal("INT").await;
    up.process.ended_with(0).await;
    assert_eq!(state_left(&data_dir).await, "shut down");
    std::fs::remove_dir_all(&data_dir).unwrap();
}

/// Each result belongs to its request; what a killed `up` leaves is stopped cleanly, and found again.
#[tokio::test]
async fn a_killed_up_stops_its_postgres_and_the_next_one_finds_the_data() {
    let data_dir = temporary_directory();
    let mut up = Up::start(&data_dir).await;
    let enqueue = "SELECT count(*) FROM leasehold.enqueue_many('demo',
        (SELECT array_agg(jsonb_build_object('messages', jsonb_build_array(jsonb_build_object('role', 'user',
            'content', 'I am q-' || n))) ORDER BY n) FROM generate_series(1, 500) n),
        ids => (SELECT array_agg('q-' || n ORDER BY n) FROM generate_series(1, 500) n))";
    assert_eq!(up.sql.query_one(enqueue, &[]).await.unwrap().get::<_, i64>(0), 500);
    up.until_finished().await;
    let kept = "SELECT leasehold.enqueue('demo', '{}', id => 'kept', not_before => now() + interval '1 day')";
    up.sql.batch_execute(kept).await.unwrap();
    up.process.kill().await;
    assert_eq!(state_left(&data_dir).await, "shut down", "not even a recovery is needed");

    let mut up = Up::start(&data_dir).await;
    let pop = "SELECT id, body_text FROM leasehold.pop_results('default', 1000)";
    let rows = up.sql.query(pop, &[]).await.unwrap();
    assert_eq!(rows.len(), 500);
    for row in &rows {
        let body: serde_json::Value = serde_json::from_str(row.get(1)).unwrap();
        let answer = body["choices"][0]["message"]["content"].as_str().unwrap();
        assert_eq!(answer, format!("I am {}", row.get::<_, &str>(0)));
    }
    let state = "SELECT state FROM leasehold.request_status('kept')";
    assert_eq!(up.sql.query_one(state, &[]).await.unwrap().get::<_, &str>(0), "parked");
    up.process.signal("TERM").await;
    up.process.ended_with(0).await;
    assert_eq!(state_left(&data_dir).await, "shut down");
    std::fs::remove_dir_all(&data_dir).unwrap();
}

/// A stop before it is ready is orderly, too, and says so by its exit code.
#[tokio::test]
async fn an_up_interrupted_while_it_starts_leaves_nothing_running() {
    let data_dir = temporary_directory();
    let args = ["up", "--listen", "127.0.0.1:0", "--data-dir", data_dir.to_str().unwrap()];
    let mut process = Running::start(&mut leasehold(&args));
    process
        .wait_for("it begins", |process| {
            process.stderr.lines().iter().any(|line| line.contains("starting Postgres")).then_some(())
        })
        .await;
    process.signal("TERM").await;
    process.ended_with(7).await;
    assert!(process.stdout.lines().is_empty());
    until("nothing that works on the directory is left", PATIENCE, async || {
        let found = std::process::Command::new("pgrep").arg("-f").arg(&data_dir).output().unwrap();
        // 1: no process matches.
        found.status.code() == Some(1)
    })
    .await;
    assert!(!data_dir.join("postmaster.pid").exists());
    std::fs::remove_dir_all(&data_dir).unwrap();
}
