//! Where the database's time goes, by statement.

use crate::site::connect;

/// Starts counting.
pub(crate) async fn watch(url: &str) -> anyhow::Result<()> {
    connect(url)
        .await?
        .batch_execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements; SELECT pg_stat_statements_reset()")
        .await?;
    Ok(())
}

/// How many statements clients sent to this database since.
pub(crate) async fn sent(url: &str) -> anyhow::Result<i64> {
    let sql = "SELECT sum(calls)::bigint FROM pg_stat_statements JOIN pg_database ON pg_database.oid = dbid
        WHERE toplevel AND datname = current_database()";
    Ok(connect(url).await?.query_one(sql, &[]).await?.get::<_, Option<i64>>(0).unwrap_or(0))
}

/// Prints the statements that took most, for each of `requests`; in all, if there were none.
pub(crate) async fn show(url: &str, requests: u64) -> anyhow::Result<()> {
    let rows = connect(url)
        .await?
        .query(
            "SELECT calls, total_exec_time, rows, shared_blks_hit, toplevel, \
             left(regexp_replace(query, '\\s+', ' ', 'g'), 70) \
             FROM pg_stat_statements WHERE total_exec_time > 1 ORDER BY total_exec_time DESC LIMIT 14",
            &[],
        )
        .await?;
    println!("   calls  µs/request  rows/call  blocks/row  statement");
    for row in rows {
        let (calls, milliseconds, affected, blocks): (i64, f64, i64, i64) =
            (row.get(0), row.get(1), row.get(2), row.get(3));
        #[expect(clippy::cast_precision_loss, reason = "for people")]
        let (micros, each, blocks) = (
            milliseconds * 1000.0 / requests.max(1) as f64,
            affected as f64 / calls as f64,
            blocks as f64 / affected.max(1) as f64,
        );
        let (toplevel, query): (bool, String) = (row.get(4), row.get(5));
        let mark = if toplevel { "" } else { "(inner) " };
        println!("{calls:8}  {micros:10.1}  {each:9.1}  {blocks:10.1}  {mark}{query}");
    }
    Ok(())
}
