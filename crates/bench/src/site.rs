//! A Postgres of the benchmark's own, with durable commits.

use anyhow::Context;
use leasehold_testkit::cluster::{Cluster, ClusterOptions, find_bin_dir};

/// Starts it, with settings of its own beside those of every workload.
pub(crate) async fn start(settings: &[(&str, &str)]) -> anyhow::Result<Cluster> {
    let ours = [
        ("max_wal_size", "4GB"),
        ("min_wal_size", "4GB"),
        ("shared_buffers", "512MB"),
        ("max_connections", "300"),
    ];
    let all = ours.iter().chain(settings);
    let options = ClusterOptions {
        data_dir: leasehold_testkit::database::temporary_directory(),
        bin_dir: find_bin_dir().context("no Postgres binaries were found")?,
        port: None,
        settings: all.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        durable: true,
        remove_on_exit: true,
    };
    Ok(Cluster::start(options).await?)
}

/// Has the server write as much log as it keeps: files that are written again cost a fraction of new ones, and a server
/// that has run for a while has no others.
pub(crate) async fn age(client: &tokio_postgres::Client) -> anyhow::Result<()> {
    for _ in 0..256 {
        client
            .batch_execute("SELECT pg_logical_emit_message(false, 'bench', 'x'); SELECT pg_switch_wal()")
            .await?;
    }
    Ok(client.batch_execute("CHECKPOINT").await?)
}

/// The settings that count the time of statements, if that is wanted.
pub(crate) fn statements(wanted: bool) -> &'static [(&'static str, &'static str)] {
    match wanted {
        true => &[("shared_preload_libraries", "pg_stat_statements"), ("pg_stat_statements.track", "all")],
        false => &[],
    }
}

/// What the database counted so far: transactions committed, and updates of requests.
pub(crate) async fn counted(client: &tokio_postgres::Client) -> anyhow::Result<(i64, i64)> {
    let sql = "SELECT xact_commit, (SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'requests')
        FROM pg_stat_database WHERE datname = current_database()";
    let row = client.query_one(sql, &[]).await?;
    Ok((row.get(0), row.get::<_, Option<i64>>(1).unwrap_or(0)))
}

/// A connection beside the stores.
pub(crate) async fn connect(url: &str) -> anyhow::Result<tokio_postgres::Client> {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// A transaction that reads by a snapshot of now until it is dropped.
pub(crate) async fn hold_snapshot(url: &str) -> anyhow::Result<tokio_postgres::Client> {
    let client = connect(url).await?;
    // The snapshot is taken by the first query.
    client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1").await?;
    Ok(client)
}

/// How many bytes of log were written so far.
pub(crate) async fn wal_position(client: &tokio_postgres::Client) -> anyhow::Result<i64> {
    let sql = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint";
    Ok(client.query_one(sql, &[]).await?.get(0))
}
