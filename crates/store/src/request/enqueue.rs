//! Enqueue: any number of requests, all or nothing.

use deadpool_postgres::Object;
use serde_json::Value;
use tokio_postgres::Transaction;

use super::{Enqueued, NewRequest};
use crate::{
    Error, Store,
    error::is_transient,
    statement,
    store::{Params, TRIES, column},
};

/// A chunk ends at this many requests or bytes, whichever comes first: one message of the wire must hold it.
const CHUNK_REQUESTS: usize = 1000;
const CHUNK_BYTES: usize = 16 << 20;

impl Store {
    /// Enqueues all of `requests` or none, in their order, and returns where each is. Any number: they go in
    /// chunks, in one transaction. Nothing given: no statement.
    ///
    /// A request whose id and token are already there with the same content returns the original, so the call
    /// may be repeated after a lost reply when ids and tokens are the caller's.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`], [`Error::PayloadTooLarge`], and [`Error::Conflict`] with the id, when a
    /// submission is there with other content or given twice. Nothing is enqueued then.
    pub async fn enqueue(&self, requests: &[NewRequest]) -> Result<Vec<Enqueued>, Error> {
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        check(requests)?;
        let chunks = chunks(requests);
        if let [only] = chunks.as_slice() {
            let columns = Columns::of(&requests[only.clone()]);
            let statement =
                if only.len() == 1 { &statement::REQUEST_ENQUEUE_ONE } else { &statement::REQUEST_ENQUEUE };
            return read(&self.query(statement, &columns.params()).await?);
        }
        let mut tried = 1;
        loop {
            match self.enqueue_in_transaction(requests, &chunks).await {
                Err(Error::Database { source, .. }) if tried < TRIES && is_transient(&source) => tried += 1,
                result => return result,
            }
        }
    }

    async fn enqueue_in_transaction(
        &self,
        requests: &[NewRequest],
        chunks: &[std::ops::Range<usize>],
    ) -> Result<Vec<Enqueued>, Error> {
        let operation = statement::REQUEST_ENQUEUE.name;
        let failed = |e| Error::from_postgres(operation, e);
        let mut client: Object = self.client(operation).await?;
        let transaction: Transaction<'_> = (**client).transaction().await.map_err(failed)?;
        let prepared = transaction.prepare(statement::REQUEST_ENQUEUE.sql).await.map_err(failed)?;
        let mut enqueued = Vec::with_capacity(requests.len());
        for chunk in chunks {
            let columns = Columns::of(&requests[chunk.clone()]);
            let params: Params<'_> = &columns.params();
            enqueued.extend(read(&transaction.query(&prepared, params).await.map_err(failed)?)?);
        }
        transaction.commit().await.map_err(failed)?;
        Ok(enqueued)
    }
}

/// What the database cannot see: a payload that is not there, and the same submission in two chunks.
fn check(requests: &[NewRequest]) -> Result<(), Error> {
    let mut seen = std::collections::HashSet::with_capacity(requests.len());
    for (n, request) in requests.iter().enumerate() {
        if request.payload.is_none() {
            return Err(Error::InvalidArgument(format!(
                "payload of request {n} must be given; an empty one is allowed"
            )));
        }
        if let (Some(id), Some(token)) = (&request.id, &request.token)
            && !seen.insert((id.as_str(), token.as_str()))
        {
            return Err(Error::Conflict(format!("id {id} (token {token}) is given twice")));
        }
    }
    Ok(())
}

/// Runs of one queue, bounded in number and bytes.
fn chunks(requests: &[NewRequest]) -> Vec<std::ops::Range<usize>> {
    let mut chunks = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (n, request) in requests.iter().enumerate() {
        let size = request.payload.as_ref().map_or(0, bytes::Bytes::len);
        let full = n - start >= CHUNK_REQUESTS || bytes + size > CHUNK_BYTES;
        if n > start && (full || request.queue != requests[start].queue) {
            chunks.push(start..n);
            (start, bytes) = (n, 0);
        }
        bytes += size;
    }
    chunks.push(start..requests.len());
    chunks
}

fn read(rows: &[tokio_postgres::Row]) -> Result<Vec<Enqueued>, Error> {
    rows.iter()
        .map(|row| Ok(Enqueued { id: column(row, 0)?, token: column(row, 1)?, seq: column(row, 2)? }))
        .collect()
}

/// A chunk as the arrays that the statement takes. A column that no request uses is NULL.
struct Columns<'a> {
    queue: &'a str,
    payloads: Vec<&'a [u8]>,
    ids: Option<Vec<Option<&'a str>>>,
    tokens: Option<Vec<Option<&'a str>>>,
    deadlines: Option<Vec<Option<jiff::Timestamp>>>,
    routes: Option<Vec<Option<&'a str>>>,
    not_befores: Option<Vec<Option<jiff::Timestamp>>>,
    headers: Option<Vec<Option<Value>>>,
    metadata: Option<Vec<Option<Value>>>,
    group_ids: Option<Vec<Option<&'a str>>>,
}

impl<'a> Columns<'a> {
    fn of(requests: &'a [NewRequest]) -> Self {
        let json =
            |map: &serde_json::Map<String, Value>| (!map.is_empty()).then(|| Value::Object(map.clone()));
        Self {
            queue: requests.first().map_or("", |r| &r.queue),
            payloads: requests.iter().map(|r| r.payload.as_deref().unwrap_or_default()).collect(),
            ids: used(requests, |r| r.id.as_deref()),
            tokens: used(requests, |r| r.token.as_deref()),
            deadlines: used(requests, |r| r.deadline),
            routes: used(requests, |r| r.route.as_deref()),
            not_befores: used(requests, |r| r.not_before),
            headers: used(requests, |r| (!r.headers.is_empty()).then(|| serde_json::json!(r.headers))),
            metadata: used(requests, |r| json(&r.metadata)),
            group_ids: used(requests, |r| r.group_id.as_deref()),
        }
    }

    fn params(&self) -> [&(dyn tokio_postgres::types::ToSql + Sync); 10] {
        [
            &self.queue,
            &self.payloads,
            &self.ids,
            &self.tokens,
            &self.deadlines,
            &self.routes,
            &self.not_befores,
            &self.headers,
            &self.metadata,
            &self.group_ids,
        ]
    }
}

fn used<'a, T>(
    requests: &'a [NewRequest],
    column: impl Fn(&'a NewRequest) -> Option<T>,
) -> Option<Vec<Option<T>>> {
    let values: Vec<Option<T>> = requests.iter().map(column).collect();
    values.iter().any(Option::is_some).then_some(values)
}
