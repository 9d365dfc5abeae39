//! Requests in flight: handed out, handed back, tried again.

use std::{fmt::Display, time::Duration};

use bytes::Bytes;
use serde_json::Value;
use tokio_postgres::{
    Row,
    row::RowIndex,
    types::{FromSql, ToSql, Type, accepts},
};

use super::{
    Deferral, Dispatched, Envelope, Flight, Place, Promotion, Reset, Retry, Stamp, Stamped,
    arrivals::Deadline,
};
use crate::{
    Error, Store,
    statement::{self, Statement},
    store::column,
};

impl Store {
    /// Stamps up to `limit` pending requests of the partitions that `owner` holds and is not draining, earliest
    /// deadline first, then in submission order, and returns them in that order. Requests past their deadline
    /// are handed out too, so that they get their outcome. `generation` must be that of the owner's last
    /// heartbeat. `limit` 0 asks nothing.
    ///
    /// # Errors
    /// When the database refuses. The stamps may have been made all the same: see
    /// [`Error::outcome_unknown`]; read them back with [`Store::in_flight`].
    pub async fn dispatch(
        &self,
        queue: i32,
        owner: &str,
        limit: i32,
        generation: i64,
    ) -> Result<Vec<Dispatched>, Error> {
        self.dispatch_by(&statement::REQUEST_DISPATCH, queue, owner, limit, generation).await
    }

    /// As [`Store::dispatch`], stepping over rows that another transaction holds instead of waiting for it.
    /// Costs a lock for each row: for use after a wait.
    ///
    /// # Errors
    /// As [`Store::dispatch`].
    pub async fn dispatch_past_locked(
        &self,
        queue: i32,
        owner: &str,
        limit: i32,
        generation: i64,
    ) -> Result<Vec<Dispatched>, Error> {
        self.dispatch_by(&statement::REQUEST_DISPATCH_PAST_LOCKED, queue, owner, limit, generation).await
    }

    /// As [`Store::dispatch`], for those alone whose outcome is certain: past their deadline, or cancelled before
    /// they were dispatched. Steps over rows that another transaction holds.
    ///
    /// # Errors
    /// As [`Store::dispatch`].
    pub async fn dispatch_ended(
        &self,
        queue: i32,
        owner: &str,
        limit: i32,
        generation: i64,
    ) -> Result<Vec<Dispatched>, Error> {
        self.dispatch_by(&statement::REQUEST_DISPATCH_ENDED, queue, owner, limit, generation).await
    }

    async fn dispatch_by(
        &self,
        statement: &'static Statement,
        queue: i32,
        owner: &str,
        limit: i32,
        generation: i64,
    ) -> Result<Vec<Dispatched>, Error> {
        if limit <= 0 {
            return Ok(Vec::new());
        }
        let rows = self.query(statement, &[&queue, &owner, &limit, &generation]).await?;
        earliest_first(&rows)
    }

    /// The stamps of rows whose epoch is the current one of the owner's partitions. A large backlog is read in several
    /// statements; what they say holds together.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn in_flight(&self, queue: i32, owner: &str) -> Result<Flight, Error> {
        let (mut all, mut after) = self.in_flight_after(queue, owner, &Place::beginnings()).await?;
        while !after.is_empty() {
            let (page, rest) = self.in_flight_after(queue, owner, &after).await?;
            all.add(page);
            after = rest;
        }
        Ok(all)
    }

    /// One statement of [`Store::in_flight`], as [`Store::reset_stale_after`] is one of [`Store::reset_stale`].
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn in_flight_after(
        &self,
        queue: i32,
        owner: &str,
        after: &[(i16, Place)],
    ) -> Result<(Flight, Vec<(i16, Place)>), Error> {
        let page = Page::after(after);
        let rows = self.query(&statement::REQUEST_IN_FLIGHT, &page.params(&queue, &owner)).await?;
        let (mut flight, mut rest) = (Flight { stamped: Vec::new(), xmin: 0, xmax: 0 }, Vec::new());
        for row in &rows {
            (flight.xmin, flight.xmax) = (read_xid(row, 5)?, read_xid(row, 6)?);
            if let Some(id) = column(row, 0)? {
                let stamp = Stamp { id, token: column(row, 1)?, attempt: column(row, 2)? };
                let stamped = Stamped { stamp, partition: column(row, 3)?, epoch: column(row, 4)? };
                flight.stamped.push(stamped);
            } else if let Some(partition) = column(row, 3)? {
                let Deadline(deadline) = column(row, 7)?;
                rest.push((partition, Place { deadline, seq: column(row, 8)? }));
            }
        }
        Ok((flight, rest))
    }

    /// Makes requests pending again that an older epoch of the owner's partitions stamped. None: all of its
    /// partitions; empty: nothing. Rows that another transaction holds are skipped. As [`Store::in_flight`], in several
    /// statements.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn reset_stale(
        &self,
        queue: i32,
        owner: &str,
        partitions: Option<&[i16]>,
    ) -> Result<Reset, Error> {
        let beginnings = match partitions {
            Some(partitions) => partitions.iter().map(|partition| (*partition, Place::FIRST)).collect(),
            None => Place::beginnings(),
        };
        let (mut all, mut after) = self.reset_stale_after(queue, owner, &beginnings).await?;
        while !after.is_empty() {
            let (page, rest) = self.reset_stale_after(queue, owner, &after).await?;
            all.add(page);
            after = rest;
        }
        Ok(all)
    }

    /// One statement of [`Store::reset_stale`], which looks at some thousand requests after the place given for each partition
    /// ([`Place::FIRST`]: from the beginning). Returns where to go on; empty: it was the last.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn reset_stale_after(
        &self,
        queue: i32,
        owner: &str,
        after: &[(i16, Place)],
    ) -> Result<(Reset, Vec<(i16, Place)>), Error> {
        let page = Page::after(after);
        let row = self.query_one(&statement::REQUEST_RESET_STALE, &page.params(&queue, &owner)).await?;
        let reset = Reset {
            reset: column(&row, 0)?,
            found: column(&row, 1)?,
            xmin: read_xid(&row, 2)?,
            xmax: read_xid(&row, 3)?,
        };
        let Some(partitions) = column::<Option<Vec<i16>>>(&row, 4)? else { return Ok((reset, Vec::new())) };
        let (deadlines, seqs): (Vec<Deadline>, Vec<i64>) = (column(&row, 5)?, column(&row, 6)?);
        let places = deadlines.into_iter().zip(seqs).map(|(Deadline(deadline), seq)| Place { deadline, seq });
        Ok((reset, partitions.into_iter().zip(places).collect()))
    }

    /// Hands requests back to pending, at their old place in the order; those still in flight with that attempt
    /// in a partition the caller owns. `refund` gives the delivery back (it did not really happen). Returns the
    /// stamps that matched; duplicates collapse, fenced ones are ignored.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn undispatch(&self, owner: &str, stamps: &[Stamp], refund: bool) -> Result<Vec<Stamp>, Error> {
        if stamps.is_empty() {
            return Ok(Vec::new());
        }
        let Keys { ids, tokens, attempts } = keys(sorted(stamps, |s| s));
        let refund = i32::from(refund);
        let rows =
            self.query(&statement::REQUEST_UNDISPATCH, &[&owner, &ids, &tokens, &attempts, &refund]).await?;
        read_stamps(&rows)
    }

    /// Parks requests without counting the delivery. Fence and answer as in [`Store::undispatch`].
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn defer_dispatches(&self, owner: &str, deferrals: &[Deferral]) -> Result<Vec<Stamp>, Error> {
        if deferrals.is_empty() {
            return Ok(Vec::new());
        }
        let deferrals = sorted(deferrals, |d| &d.stamp);
        let Keys { ids, tokens, attempts } = keys(deferrals.iter().map(|d| &d.stamp));
        let delays: Vec<f64> = deferrals.iter().map(|d| seconds(d.delay)).collect();
        let rows =
            self.query(&statement::REQUEST_DEFER, &[&owner, &ids, &tokens, &attempts, &delays]).await?;
        read_stamps(&rows)
    }

    /// Parks failed requests until their next try: the envelope is replaced, the payload kept, the delivery
    /// stays counted. Fence and answer as in [`Store::undispatch`].
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn retry(&self, owner: &str, retries: &[Retry]) -> Result<Vec<Stamp>, Error> {
        if retries.is_empty() {
            return Ok(Vec::new());
        }
        let retries = sorted(retries, |r| &r.stamp);
        let Keys { ids, tokens, attempts } = keys(retries.iter().map(|r| &r.stamp));
        let delays: Vec<f64> = retries.iter().map(|r| seconds(r.delay)).collect();
        let headers: Vec<Option<&Value>> = retries.iter().map(|r| r.envelope.headers.as_ref()).collect();
        let metadata: Vec<Option<&Value>> = retries.iter().map(|r| r.envelope.metadata.as_ref()).collect();
        let rows = self
            .query(
                &statement::REQUEST_RETRY,
                &[&owner, &ids, &tokens, &attempts, &delays, &headers, &metadata],
            )
            .await?;
        read_stamps(&rows)
    }

    /// Makes up to `limit` parked requests pending whose time has come, and says when the next one's comes.
    /// Any process may do this for any queue.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn promote_due(&self, queue: i32, limit: i32) -> Result<Promotion, Error> {
        let row = self.query_one(&statement::REQUEST_PROMOTE_DUE, &[&queue, &limit]).await?;
        let next: Option<f64> = column(&row, 1)?;
        let next = next.map(|s| Duration::try_from_secs_f64(s).unwrap_or(Duration::MAX));
        Ok(Promotion { promoted: column(&row, 0)?, next })
    }
}

/// Which part of each partition a statement reads.
struct Page {
    partitions: Vec<i16>,
    deadlines: Vec<Deadline>,
    seqs: Vec<i64>,
    rows: i32,
    is_first: bool,
}

impl Page {
    /// Of all partitions together.
    const ROWS: usize = 32_000;

    fn after(places: &[(i16, Place)]) -> Self {
        Self {
            partitions: places.iter().map(|(partition, _)| *partition).collect(),
            deadlines: places.iter().map(|(_, place)| Deadline(place.deadline)).collect(),
            seqs: places.iter().map(|(_, place)| place.seq).collect(),
            rows: i32::try_from(Self::ROWS / places.len().max(1)).unwrap_or(i32::MAX),
            is_first: places.iter().all(|(_, place)| *place == Place::FIRST),
        }
    }

    fn params<'a>(&'a self, queue: &'a i32, owner: &'a &'a str) -> [&'a (dyn ToSql + Sync); 7] {
        [queue, owner, &self.partitions, &self.deadlines, &self.seqs, &self.rows, &self.is_first]
    }
}

/// The columns that name a dispatch, as the statements take them.
pub(crate) struct Keys<'a> {
    pub(crate) ids: Vec<&'a str>,
    pub(crate) tokens: Vec<&'a str>,
    pub(crate) attempts: Vec<i64>,
}

pub(crate) fn keys<'a>(stamps: impl IntoIterator<Item = &'a Stamp>) -> Keys<'a> {
    let mut keys = Keys { ids: Vec::new(), tokens: Vec::new(), attempts: Vec::new() };
    for stamp in stamps {
        keys.ids.push(&stamp.id);
        keys.tokens.push(&stamp.token);
        keys.attempts.push(stamp.attempt);
    }
    keys
}

/// In key order, once each: rows are locked in that order everywhere, so that statements do not deadlock.
pub(crate) fn sorted<'a, T>(items: &'a [T], stamp: impl Fn(&'a T) -> &'a Stamp) -> Vec<&'a T> {
    let mut items: Vec<&T> = items.iter().collect();
    items.sort_by_key(|item| stamp(item));
    items.dedup_by_key(|item| stamp(item));
    items
}

pub(crate) fn read_stamps(rows: &[Row]) -> Result<Vec<Stamp>, Error> {
    rows.iter()
        .map(|row| Ok(Stamp { id: column(row, 0)?, token: column(row, 1)?, attempt: column(row, 2)? }))
        .collect()
}

/// A year is as good as any longer delay, and cannot overflow a timestamp.
fn seconds(delay: Duration) -> f64 {
    delay.as_secs_f64().min(366.0 * 86_400.0)
}

/// A 64-bit transaction id, which the driver has no type for.
pub(super) fn read_xid(row: &Row, index: impl RowIndex + Display) -> Result<u64, Error> {
    let text: &str = column(row, index)?;
    text.parse()
        .map_err(|_| Error::Unavailable { operation: "reading a row", source: "not a transaction id".into() })
}

pub(super) fn earliest_first(rows: &[Row]) -> Result<Vec<Dispatched>, Error> {
    let mut requests = rows.iter().map(read_dispatched).collect::<Result<Vec<_>, Error>>()?;
    requests.sort_by_key(|r| (r.deadline.is_none(), r.deadline, r.seq));
    Ok(requests)
}

pub(super) fn read_dispatched(row: &Row) -> Result<Dispatched, Error> {
    let payload: &[u8] = column(row, "payload")?;
    Ok(Dispatched {
        stamped: Stamped {
            stamp: Stamp {
                id: column(row, "id")?,
                token: column(row, "token")?,
                attempt: column(row, "attempt")?,
            },
            partition: column(row, "partition_id")?,
            epoch: column(row, "epoch")?,
        },
        seq: column(row, "seq")?,
        deliveries: column(row, "deliveries")?,
        cancelled: column(row, "cancelled")?,
        expired: column(row, "expired")?,
        deadline: column(row, "deadline")?,
        enqueued_at: column(row, "enqueued_at")?,
        dispatched_at: column(row, "dispatched_at")?,
        route: column(row, "route")?,
        envelope: Envelope {
            headers: column::<Option<Json>>(row, "headers")?.map(|json| json.0),
            metadata: column::<Option<Json>>(row, "metadata")?.map(|json| json.0),
        },
        payload: Bytes::copy_from_slice(payload),
        tenant: String::new(),
    })
}

/// What a jsonb column holds. What this program cannot hold (a number out of range, nesting too deep) is a
/// string of its text: one such row must not fail the poll that stamped it with others, time and again.
pub(crate) struct Json(pub(crate) Value);

impl<'a> FromSql<'a> for Json {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        let [1, text @ ..] = raw else { return Err("an unknown version of jsonb".into()) };
        let value = serde_json::from_slice(text);
        Ok(Self(value.unwrap_or_else(|_| Value::String(String::from_utf8_lossy(text).into_owned()))))
    }

    accepts!(JSONB);
}
