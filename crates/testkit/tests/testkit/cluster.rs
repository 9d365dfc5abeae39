//! A cluster starts as root, is used again, and refuses what it must not touch.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use leasehold_testkit::cluster::{Cluster, ClusterError, ClusterOptions, find_bin_dir};
use leasehold_testkit::database::temporary_directory;
use leasehold_testkit::wait::until;
use tokio_postgres::{Client, NoTls};

use crate::DEADLINE;

pub(crate) fn bin_dir() -> PathBuf {
    find_bin_dir().expect("Postgres is installed")
}

fn options(data_dir: &Path) -> ClusterOptions {
    ClusterOptions { durable: false, ..ClusterOptions::new(data_dir, bin_dir()) }
}

async fn connect(cluster: &Cluster, database: &str) -> Client {
    let (client, connection) =
        tokio_postgres::connect(&cluster.url(database), NoTls).await.expect("Postgres takes connections");
    tokio::spawn(connection);
    client
}

/// Stops first: a directory is not to be taken from under a server.
pub(crate) async fn discard(mut cluster: Cluster) {
    cluster.stop().await.expect("Postgres stops");
    std::fs::remove_dir_all(cluster.data_dir()).expect("the directory can be removed");
}

pub(crate) fn listens(port: u16) -> bool {
    std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
}

#[tokio::test]
async fn postgres_never_runs_as_root_and_has_no_other_door() {
    let directory = temporary_directory();
    let cluster = Cluster::start(options(&directory)).await.unwrap();
    assert_ne!(directory.join("postmaster.pid").metadata().unwrap().uid(), 0);
    assert_eq!(directory.metadata().unwrap().mode() & 0o777, 0o700);
    let client = connect(&cluster, "postgres").await;
    let row = client
        .query_one(
            "SELECT current_user::text, current_setting('listen_addresses'),
                    current_setting('unix_socket_directories'), current_setting('server_encoding')",
            &[],
        )
        .await
        .unwrap();
    let found: Vec<String> = (0..4).map(|column| row.get(column)).collect();
    assert_eq!(found, ["leasehold", "127.0.0.1", "", "UTF8"]);
    discard(cluster).await;
}

#[tokio::test]
async fn data_survives_stop_restart_crash_and_a_new_start() {
    let directory = temporary_directory();
    let mut cluster = Cluster::start(options(&directory)).await.unwrap();
    cluster.create_database("it's \"quoted\"").await.unwrap();
    cluster.create_database("kept").await.unwrap();
    let port = cluster.port();
    connect(&cluster, "kept").await.batch_execute("CREATE TABLE t AS SELECT 1 AS n").await.unwrap();

    cluster.stop().await.unwrap();
    assert!(!listens(port));
    cluster.stop().await.unwrap();
    cluster.restart().await.unwrap();
    assert_eq!(cluster.port(), port);
    connect(&cluster, "kept").await.batch_execute("INSERT INTO t VALUES (2)").await.unwrap();

    cluster.crash().await.unwrap();
    assert!(!listens(port));
    cluster.restart().await.unwrap();
    drop(cluster);

    // The server just dropped may still be on its way down.
    let cluster = Cluster::start(options(&directory)).await.unwrap();
    let rows = connect(&cluster, "kept").await.query("SELECT n FROM t ORDER BY n", &[]).await.unwrap();
    assert_eq!(rows.iter().map(|row| row.get::<_, i32>(0)).collect::<Vec<_>>(), [1, 2]);
    let exists = cluster.create_database("kept").await.unwrap_err();
    assert!(exists.to_string().contains("kept"), "{exists}");
    discard(cluster).await;
}

#[tokio::test]
async fn settings_reach_the_server_as_they_are() {
    let directory = temporary_directory();
    let mut options = options(&directory);
    options.remove_on_exit = true;
    options.settings = vec![("cluster_name".into(), "it's $HOME \"x\"".into())];
    let cluster = Cluster::start(options).await.unwrap();
    let client = connect(&cluster, "postgres").await;
    let name: String = client.query_one("SHOW cluster_name", &[]).await.unwrap().get(0);
    assert_eq!(name, "it's $HOME \"x\"");
    drop(cluster);
    until("the directory is removed", DEADLINE, async || !directory.exists()).await;
}

#[tokio::test]
async fn directory_in_use_is_refused_by_name() {
    let directory = temporary_directory();
    let cluster = Cluster::start(options(&directory)).await.unwrap();
    let error = Cluster::start(options(&directory)).await.unwrap_err();
    assert!(matches!(error, ClusterError::InUse { .. }), "{error}");
    assert!(error.to_string().contains(directory.to_str().unwrap()), "{error}");
    assert!(listens(cluster.port()));
    discard(cluster).await;
}

#[tokio::test]
async fn server_left_behind_is_stopped_first() {
    let directory = temporary_directory();
    let mut cluster = Cluster::start(options(&directory)).await.unwrap();
    let old_port = cluster.port();
    cluster.stop().await.unwrap();
    drop(cluster);
    let owner = directory.metadata().unwrap();
    let mut command = Command::new(bin_dir().join("pg_ctl"));
    if owner.uid() != std::fs::metadata("/proc/self").map_or(owner.uid(), |own| own.uid()) {
        command.uid(owner.uid()).gid(owner.gid());
    }
    let started = command
        .args(["start", "-w", "-s", "-l", "/dev/null", "-D"])
        .arg(&directory)
        .args(["-o", &format!("-p {old_port} -c unix_socket_directories='' -c listen_addresses=127.0.0.1")])
        .current_dir("/")
        .status()
        .unwrap();
    assert!(started.success() && listens(old_port));

    let cluster = Cluster::start(options(&directory)).await.unwrap();
    assert!(listens(cluster.port()));
    assert!(!listens(old_port));
    discard(cluster).await;
}

#[tokio::test]
async fn directory_of_something_else_is_left_alone() {
    let directory = temporary_directory();
    std::fs::write(directory.join("thesis.txt"), "years of work").unwrap();
    let error =
        Cluster::start(ClusterOptions { remove_on_exit: true, ..options(&directory) }).await.unwrap_err();
    assert!(matches!(error, ClusterError::NotACluster { .. }), "{error}");
    assert_eq!(std::fs::read_to_string(directory.join("thesis.txt")).unwrap(), "years of work");
    std::fs::remove_dir_all(directory).unwrap();
}

#[tokio::test]
async fn data_of_another_version_is_refused_with_both_versions() {
    let directory = temporary_directory();
    std::fs::write(directory.join("PG_VERSION"), "9\n").unwrap();
    let error = Cluster::start(options(&directory)).await.unwrap_err();
    let ClusterError::VersionMismatch { data_version, program_version, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(data_version, "9");
    assert!(program_version.parse::<u32>().unwrap() >= 14);
    std::fs::remove_dir_all(directory).unwrap();
}

#[tokio::test]
async fn failed_start_shows_what_the_server_said() {
    let directory = temporary_directory();
    let mut options = options(&directory);
    options.remove_on_exit = true;
    options.settings = vec![("shared_buffers".into(), "plenty".into())];
    let error = Cluster::start(options).await.unwrap_err();
    assert!(matches!(error, ClusterError::Start { .. }), "{error}");
    assert!(error.to_string().contains("plenty"), "{error}");
    until("the directory is removed", DEADLINE, async || !directory.exists()).await;
}

#[tokio::test]
async fn missing_program_is_named() {
    let directory = temporary_directory();
    let error = Cluster::start(ClusterOptions::new(directory.join("data"), &directory)).await.unwrap_err();
    assert!(error.to_string().contains("initdb"), "{error}");
    assert!(!directory.join("data").exists());
    std::fs::remove_dir_all(directory).unwrap();
}

#[tokio::test]
async fn directory_closed_to_postgres_is_named() {
    let directory = temporary_directory();
    if directory.metadata().unwrap().uid() != 0 {
        // Without root, Postgres runs as the one who made the directory.
        std::fs::remove_dir(directory).unwrap();
        return;
    }
    let closed = directory.join("closed");
    std::fs::create_dir(&closed).unwrap();
    std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o700)).unwrap();
    let error = Cluster::start(options(&closed.join("data"))).await.unwrap_err();
    let ClusterError::NoAccess { path, .. } = &error else { panic!("{error}") };
    assert_eq!(path, &closed);
    std::fs::remove_dir_all(directory).unwrap();
}
