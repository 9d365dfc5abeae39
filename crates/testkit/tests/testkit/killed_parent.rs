//! Postgres does not outlive the process that started it, however that process ends.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use leasehold_testkit::cluster::{Cluster, ClusterOptions};
use leasehold_testkit::database::temporary_directory;
use leasehold_testkit::wait::until;

use crate::DEADLINE;
use crate::cluster::{bin_dir, discard, listens};

/// Another process with a cluster.
struct Holder {
    process: Child,
    port: u16,
}

impl Holder {
    fn start(data_dir: &Path, at_end: &str) -> Self {
        let mut process = Command::new(example())
            .arg(data_dir)
            .arg(at_end)
            .process_group(0)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the example runs");
        let mut line = String::new();
        let output = process.stdout.take().expect("standard output is piped");
        BufReader::new(output).read_line(&mut line).expect("the example prints a port");
        let port = line.trim().parse().expect("the example prints a port");
        Self { process, port }
    }

    /// Sends a signal to the whole process group, and waits until the process has ended.
    fn signal(&mut self, name: &str) {
        let group = format!("-{}", self.process.id());
        let sent = Command::new("kill").args(["-s", name, "--", &group]).status().expect("kill runs");
        assert!(sent.success());
        self.process.wait().expect("it was started here");
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // Already gone unless a test failed half-way.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Cargo builds examples beside the directory of the test binaries.
fn example() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    let path =
        test.ancestors().nth(2).expect("a test is in target/PROFILE/deps").join("examples/hold_cluster");
    assert!(path.exists(), "build it: cargo build -p leasehold-testkit --examples");
    path
}

fn state(data_dir: &Path) -> String {
    // On the path there may be links to some of the programs only.
    let initdb = bin_dir().join("initdb").canonicalize().expect("initdb is there");
    let output = Command::new(initdb.with_file_name("pg_controldata"))
        .env("LC_ALL", "C")
        .arg(data_dir)
        .output()
        .expect("pg_controldata runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix("Database cluster state:"));
    line.unwrap_or_default().trim().to_owned()
}

async fn postgres_stops_orderly_after(signal: &str) {
    let directory = temporary_directory();
    let mut holder = Holder::start(&directory, "keep");
    assert!(listens(holder.port));
    assert_eq!(state(&directory), "in production");
    holder.signal(signal);
    until("Postgres is shut down", DEADLINE, async || state(&directory) == "shut down").await;
    until("the port is closed", DEADLINE, async || !listens(holder.port)).await;
    std::fs::remove_dir_all(directory).expect("the directory can be removed");
}

#[tokio::test]
async fn postgres_stops_when_its_parent_is_killed() {
    postgres_stops_orderly_after("KILL").await;
}

#[tokio::test]
async fn postgres_stops_when_its_parent_is_terminated() {
    postgres_stops_orderly_after("TERM").await;
}

/// Ctrl-C is sent to the whole process group in a terminal's foreground.
#[tokio::test]
async fn terminals_interrupt_reaches_neither_postgres_nor_the_watchdog() {
    let directory = temporary_directory();
    let mut holder = Holder::start(&directory, "remove");
    let processes = Command::new("ps").args(["-A", "-ww", "-o", "pid=,pgid=,args="]).output().unwrap();
    let processes = String::from_utf8_lossy(&processes.stdout).into_owned();
    let holder_id = holder.process.id().to_string();
    let groups = processes.lines().filter(|line| line.contains(directory.to_str().unwrap())).map(|line| {
        let mut columns = line.split_whitespace();
        (columns.next().unwrap(), columns.next().unwrap())
    });
    let (own, others): (Vec<_>, Vec<_>) = groups.partition(|(_, group)| *group == holder_id);
    assert_eq!(own, [(holder_id.as_str(), holder_id.as_str())]);
    assert!(others.len() >= 2, "the watchdog and Postgres are among {processes}");
    holder.signal("KILL");
    until("the directory is gone", DEADLINE, async || !directory.exists()).await;
}

#[tokio::test]
async fn directory_is_free_at_once_after_its_owner_is_killed() {
    let directory = temporary_directory();
    let mut holder = Holder::start(&directory, "keep");
    holder.signal("KILL");
    let options = ClusterOptions { durable: false, ..ClusterOptions::new(&directory, bin_dir()) };
    let cluster = Cluster::start(options).await.unwrap();
    // The watchdog of the killed process leaves the new server alone.
    until("the old server is gone", DEADLINE, async || !listens(holder.port)).await;
    assert!(listens(cluster.port()));
    discard(cluster).await;
}

#[tokio::test]
async fn temporary_cluster_is_removed_when_its_parent_is_killed() {
    let directory = temporary_directory();
    let mut holder = Holder::start(&directory, "remove");
    holder.signal("KILL");
    until("the directory is gone", DEADLINE, async || !directory.exists()).await;
    until("the port is closed", DEADLINE, async || !listens(holder.port)).await;
}

#[tokio::test]
async fn parent_killed_during_a_start_leaves_no_server() {
    let directory = temporary_directory();
    let mut process =
        Command::new(example()).arg(&directory).arg("remove").stdout(Stdio::null()).spawn().unwrap();
    until("initdb has begun", DEADLINE, async || directory.join("server.log").exists()).await;
    process.kill().unwrap();
    process.wait().unwrap();
    until("the directory is gone", DEADLINE, async || !directory.exists()).await;
}
