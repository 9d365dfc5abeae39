//! Results: recorded by the ack that removes the request, popped by route.

use std::{borrow::Cow, collections::HashSet, time::Duration};

use bytes::Bytes;
use jiff::Timestamp;
use tokio_postgres::Row;
use uuid::Uuid;

use crate::{
    Error, Stamp, Store,
    request::{Keys, keys, sorted},
    statement,
    store::column,
};

/// The outcome of one dispatch, given to ack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Which dispatch.
    pub stamp: Stamp,
    /// HTTP status; none when no answer came.
    pub status: Option<u16>,
    /// None: success. Otherwise an error code such as `DEADLINE_EXCEEDED`.
    pub code: Option<String>,
    /// What went wrong, for people.
    pub message: Option<String>,
    /// Of the body.
    pub content_type: Option<String>,
    /// Verbatim. None: no body; empty is an empty body.
    pub body: Option<Bytes>,
}

/// One row of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResultRow {
    /// Order of completion on the route.
    pub seq: i64,
    /// The request's id.
    pub id: String,
    /// The request's generation.
    pub token: String,
    /// The queue's name.
    pub queue: String,
    /// HTTP status; none when no answer came.
    pub status: Option<i32>,
    /// None: success.
    pub code: Option<String>,
    /// What went wrong, for people.
    pub message: Option<String>,
    /// Of the body.
    pub content_type: Option<String>,
    /// Verbatim. None: no body.
    pub body: Option<Bytes>,
    /// The attempt that was acked.
    pub attempt: i64,
    /// How often the request was handed out.
    pub deliveries: i32,
    /// When the request was accepted.
    pub enqueued_at: Timestamp,
    /// When that attempt was dispatched.
    pub dispatched_at: Option<Timestamp>,
    /// When it was acked.
    pub finished_at: Timestamp,
    /// None: never.
    pub expires_at: Option<Timestamp>,
    /// Of an at-least-once poller.
    pub lease: Option<Uuid>,
    /// Until when the lease hides it.
    pub leased_until: Option<Timestamp>,
}

impl Store {
    /// Removes requests and records their results, in one statement. One answer per completion, in their
    /// order: false when the dispatch is not the live one any more, or its key came twice (the live attempt
    /// counts once). What did not succeed is a dead letter, too, where its queue keeps those. An error applies
    /// nothing, unless its outcome is unknown.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn ack(&self, owner: &str, completions: &[Completion]) -> Result<Vec<bool>, Error> {
        if completions.is_empty() {
            return Ok(Vec::new());
        }
        let unique = sorted(completions, |c| &c.stamp);
        let Keys { ids, tokens, attempts } = keys(unique.iter().map(|c| &c.stamp));
        let statuses: Vec<Option<i32>> = unique.iter().map(|c| c.status.map(i32::from)).collect();
        let codes: Vec<Option<&str>> = unique.iter().map(|c| c.code.as_deref()).collect();
        let messages: Vec<Option<Cow<'_, str>>> =
            unique.iter().map(|c| storable(c.message.as_deref())).collect();
        let types: Vec<Option<Cow<'_, str>>> =
            unique.iter().map(|c| storable(c.content_type.as_deref())).collect();
        let bodies: Vec<Option<&[u8]>> = unique.iter().map(|c| c.body.as_deref()).collect();
        let texts: Vec<bool> = unique.iter().map(|c| c.body.as_deref().is_some_and(is_text)).collect();
        let params: crate::store::Params<'_> =
            &[&owner, &ids, &tokens, &attempts, &statuses, &codes, &messages, &types, &bodies, &texts];
        let row = self.query_one(&statement::RESULT_ACK, params).await?;
        let places = column::<Option<Vec<i32>>>(&row, 0)?.unwrap_or_default();
        let acked =
            places.into_iter().filter_map(|place| unique.get(usize::try_from(place).ok()?.checked_sub(1)?));
        let mut acked: HashSet<&Stamp> = acked.map(|completion| &completion.stamp).collect();
        Ok(completions.iter().map(|c| acked.remove(&c.stamp)).collect())
    }

    /// At most once: removes and returns up to `limit` results of the route, lowest seq first. Expired ones are
    /// never returned, and those that another poller holds are skipped. `limit` from 1.
    ///
    /// The removal is committed without waiting for the disk: a crash of the server may bring back results
    /// popped in its last moments.
    ///
    /// # Errors
    /// When the database refuses. Results whose reply is lost are gone: use [`Store::lease_results`] where that
    /// matters.
    pub async fn pop_results(&self, route: &str, limit: i32) -> Result<Vec<ResultRow>, Error> {
        read_results(&self.query(&statement::RESULT_POP, &[&route, &limit]).await?)
    }

    /// At least once: hides up to `limit` results for `lease_time` (1 ms to 12 h) and returns them. What is not
    /// acked by then comes again.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn lease_results(
        &self,
        route: &str,
        limit: i32,
        lease_time: Duration,
    ) -> Result<Vec<ResultRow>, Error> {
        let rows = self.query(&statement::RESULT_LEASE, &[&route, &limit, &lease_time.as_secs_f64()]).await?;
        read_results(&rows)
    }

    /// Removes leased results; returns the seqs removed. One that is missing had lapsed, or was acked before.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn ack_results(&self, route: &str, lease: Uuid, seqs: &[i64]) -> Result<Vec<i64>, Error> {
        let rows = self.query(&statement::RESULT_ACK_LEASED, &[&route, &lease, &seqs]).await?;
        rows.iter().map(|row| column(row, 0)).collect()
    }

    /// Gives leased results back at once; returns their seqs.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn release_results(&self, route: &str, lease: Uuid, seqs: &[i64]) -> Result<Vec<i64>, Error> {
        let rows = self.query(&statement::RESULT_RELEASE_LEASED, &[&route, &lease, &seqs]).await?;
        rows.iter().map(|row| column(row, 0)).collect()
    }

    /// The channel to subscribe to ([`crate::Listener`]) for results on `route`, rung for the next minute; ask
    /// again before that. Look after subscribing: what came before does not ring.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn listen_results(&self, route: &str) -> Result<String, Error> {
        self.query_one(&statement::RESULT_LISTEN, &[&route]).await.and_then(|row| column(&row, 0))
    }

    /// Results waiting on a route, leased ones included, expired ones not.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn result_depth(&self, route: &str) -> Result<i64, Error> {
        self.query_one(&statement::RESULT_DEPTH, &[&route]).await.and_then(|row| column(&row, 0))
    }

    /// Forgets what is known of where routes begin, where it is of no use any more; says how much. What is missing
    /// makes pops slower for a moment, and nothing else.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn prune_marks(&self) -> Result<i64, Error> {
        self.query_one(&statement::RESULT_PRUNE_MARKS, &[]).await.and_then(|row| column(&row, 0))
    }
}

/// Postgres text holds no NUL; what is for people may lose it.
fn storable(text: Option<&str>) -> Option<Cow<'_, str>> {
    text.map(|t| if t.contains('\0') { Cow::Owned(t.replace('\0', "\u{fffd}")) } else { Cow::Borrowed(t) })
}

/// Whether Postgres could hold the bytes as text.
fn is_text(body: &[u8]) -> bool {
    !body.contains(&0) && std::str::from_utf8(body).is_ok()
}

fn read_results(rows: &[Row]) -> Result<Vec<ResultRow>, Error> {
    rows.iter()
        .map(|row| {
            Ok(ResultRow {
                seq: column(row, "seq")?,
                id: column(row, "id")?,
                token: column(row, "token")?,
                queue: column::<Option<String>>(row, "queue")?.unwrap_or_default(),
                status: column(row, "status")?,
                code: column(row, "code")?,
                message: column(row, "message")?,
                content_type: column(row, "content_type")?,
                body: column::<Option<&[u8]>>(row, "body")?.map(Bytes::copy_from_slice),
                attempt: column(row, "attempt")?,
                deliveries: column(row, "deliveries")?,
                enqueued_at: column(row, "enqueued_at")?,
                dispatched_at: column(row, "dispatched_at")?,
                finished_at: column(row, "finished_at")?,
                expires_at: column(row, "expires_at")?,
                lease: column(row, "lease")?,
                leased_until: column(row, "leased_until")?,
            })
        })
        .collect()
}
