//! What is pending, as an owner of partitions remembers it: read in the order of arrival, dispatched by name.

use bytes::{BufMut, BytesMut};
use tokio_postgres::{
    Row,
    types::{FromSql, IsNull, ToSql, Type, accepts, to_sql_checked},
};

use super::{
    Dispatched,
    flight::{earliest_first, read_xid},
};
use crate::{Error, PARTITIONS, Store, statement, store::column};

/// A request that is pending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// 0 to 63.
    pub partition: i16,
    /// Where it stands in the order of dispatch: its deadline, then its submission.
    pub place: Place,
    /// Rises with every request of the installation that becomes pending, and each time it does. 0: it did before there
    /// were arrivals.
    pub arrival: i64,
}

/// A place in the order of dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Microseconds of the database's calendar; the largest number is never, the smallest is cancelled.
    pub deadline: i64,
    /// Submission order.
    pub seq: i64,
}

impl Place {
    /// Before every request.
    pub const FIRST: Self = Self { deadline: i64::MIN, seq: -1 };

    /// The first of each partition of a queue.
    pub fn beginnings() -> Vec<(i16, Self)> {
        (0..PARTITIONS).map(|partition| (partition, Self::FIRST)).collect()
    }
}

/// What has arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrivals {
    /// In each partition in the order of arrival.
    pub requests: Vec<Arrival>,
    /// Every transaction below this had ended by then.
    pub xmin: u64,
    /// None: it was not asked for.
    pub mark: Option<Mark>,
    /// Owners may rely on what they remember: nobody else takes requests from the queue.
    pub exclusive: bool,
}

/// Every transaction that has drawn an arrival up to `last` has an id below `xid`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// An arrival; 0: before all.
    pub last: i64,
    /// A transaction.
    pub xid: u64,
}

/// Requests dispatched by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DispatchedArrivals {
    /// Earliest deadline first.
    pub requests: Vec<Dispatched>,
    /// The dispatch's transaction; none when there are no requests.
    pub xid: Option<u64>,
}

impl Store {
    /// What became pending in each of these partitions after the arrival beside it, up to `limit` of each. Changes
    /// nothing.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn arrivals(
        &self,
        queue: i32,
        after: &[(i16, i64)],
        limit: i32,
        mark: bool,
    ) -> Result<Arrivals, Error> {
        let (partitions, arrivals): (Vec<i16>, Vec<i64>) = after.iter().copied().unzip();
        let row = self
            .query_one(&statement::REQUEST_ARRIVALS, &[&queue, &partitions, &arrivals, &limit, &mark])
            .await?;
        let mark = match column(&row, "last")? {
            Some(last) => Some(Mark { last, xid: read_xid(&row, "xid")? }),
            None => None,
        };
        Ok(Arrivals {
            requests: read_arrivals(&row)?,
            xmin: read_xid(&row, "xmin")?,
            mark,
            // The queue was deleted, if there is none.
            exclusive: column::<Option<bool>>(&row, "exclusive")?.unwrap_or(false),
        })
    }

    /// The first `limit` that are pending in each of these partitions, earliest deadline first. Changes nothing.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn pending(&self, queue: i32, partitions: &[i16], limit: i32) -> Result<Vec<Arrival>, Error> {
        read_arrivals(&self.query_one(&statement::REQUEST_PENDING, &[&queue, &partitions, &limit]).await?)
    }

    /// As [`Store::dispatch`], for requests that are named by partition and arrival. Those that are not pending any more are
    /// left out, and those that have become pending anew.
    ///
    /// # Errors
    /// As [`Store::dispatch`].
    pub async fn dispatch_arrived(
        &self,
        queue: i32,
        owner: &str,
        generation: i64,
        requests: &[(i16, i64)],
    ) -> Result<DispatchedArrivals, Error> {
        let (partitions, arrivals): (Vec<i16>, Vec<i64>) = requests.iter().copied().unzip();
        let params: crate::store::Params<'_> = &[&queue, &owner, &generation, &partitions, &arrivals];
        let rows = self.query(&statement::REQUEST_DISPATCH_ARRIVED, params).await?;
        let xid = rows.first().map(|row| column::<i64>(row, "xid")).transpose()?;
        Ok(DispatchedArrivals { requests: earliest_first(&rows)?, xid: xid.map(i64::cast_unsigned) })
    }
}

fn read_arrivals(row: &Row) -> Result<Vec<Arrival>, Error> {
    let Some(partitions) = column::<Option<Vec<i16>>>(row, "partition_ids")? else { return Ok(Vec::new()) };
    let deadlines: Vec<Deadline> = column(row, "deadlines")?;
    let (seqs, arrivals): (Vec<i64>, Vec<i64>) = (column(row, "seqs")?, column(row, "arrivals")?);
    let rows = partitions.into_iter().zip(deadlines).zip(seqs).zip(arrivals);
    Ok(rows
        .map(|(((partition, Deadline(deadline)), seq), arrival)| Arrival {
            partition,
            place: Place { deadline, seq },
            arrival,
        })
        .collect())
}

/// A timestamp as it is sent: infinite ones are the largest and the smallest number.
#[derive(Debug)]
pub(super) struct Deadline(pub(super) i64);

impl<'a> FromSql<'a> for Deadline {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Self(i64::from_be_bytes(raw.try_into()?)))
    }

    accepts!(TIMESTAMPTZ);
}

impl ToSql for Deadline {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        out.put_i64(self.0);
        Ok(IsNull::No)
    }

    accepts!(TIMESTAMPTZ);
    to_sql_checked!();
}
