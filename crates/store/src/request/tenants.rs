//! Requests of tenants: polled in turns, so that the backlog of one stands in no other's way.

use super::{Dispatched, flight::read_dispatched};
use crate::{Error, Store, statement, store::column};

/// Tenants that one poll visits at most.
pub const TENANT_VISITS: i32 = 256;

/// Tenants that a poll for the ended alone visits at most. It comes once a second, and takes one descent for each, so
/// that tens of thousands of tenants are gone round within a few seconds.
const ENDED_VISITS: i32 = 4096;

/// How to poll a queue whose requests are told apart by tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantPoll {
    /// Begin with the tenant after this one; none: with the first.
    pub after: Option<String>,
    /// Of each of these no more than so many; where that is 0, only requests past their deadline, or cancelled.
    pub caps: Vec<(String, i32)>,
    /// So many of each tenant before the next one's turn, from 1.
    pub quantum: i32,
    /// Of every tenant only requests past their deadline, or cancelled.
    pub ended_only: bool,
    /// Steps over rows that another transaction holds, at the cost of a lock for each.
    pub past_locked: bool,
}

/// What such a poll found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TenantBatch {
    /// Earliest deadline first, whatever the tenant.
    pub requests: Vec<Dispatched>,
    /// Where the next poll goes on; none: at the beginning.
    pub after: Option<String>,
    /// Tenants that had something.
    pub tenants: i32,
}

impl Store {
    /// As [`Store::dispatch`], for requests of tenants. Visits up to [`TENANT_VISITS`] of them, each at the cost of
    /// a descent or two, whatever their backlog.
    ///
    /// # Errors
    /// As [`Store::dispatch`].
    pub async fn dispatch_tenants(
        &self,
        queue: i32,
        owner: &str,
        limit: i32,
        generation: i64,
        poll: &TenantPoll,
    ) -> Result<TenantBatch, Error> {
        if limit <= 0 {
            return Ok(TenantBatch { after: poll.after.clone(), ..TenantBatch::default() });
        }
        let (capped, caps): (Vec<&str>, Vec<i32>) =
            poll.caps.iter().map(|(t, cap)| (t.as_str(), *cap)).unzip();
        let params: crate::store::Params<'_> = &[
            &queue,
            &owner,
            &limit,
            &generation,
            &poll.after,
            &capped,
            &caps,
            &poll.quantum.max(1),
            &if poll.ended_only { ENDED_VISITS } else { TENANT_VISITS },
            &poll.ended_only,
            &poll.past_locked,
        ];
        let rows = self.query(&statement::REQUEST_DISPATCH_TENANTS, params).await?;
        let mut batch = TenantBatch::default();
        for row in &rows {
            if column::<Option<i64>>(row, "seq")?.is_some() {
                let tenant = column(row, "tenant")?;
                batch.requests.push(Dispatched { tenant, ..read_dispatched(row)? });
            } else {
                (batch.after, batch.tenants) = (column(row, "tenant")?, column(row, "deliveries")?);
            }
        }
        batch.requests.sort_by_key(|r| (r.deadline.is_none(), r.deadline, r.seq));
        Ok(batch)
    }

    /// Sets the metadata keys that tell a queue's tenants apart, where none are set yet. Returns those in force,
    /// and whether they are new: requests that are already there then want [`Store::label_tenants`].
    ///
    /// # Errors
    /// [`Error::InvalidArgument`], naming it.
    pub async fn ensure_tenant_attributes(
        &self,
        queue: i32,
        attributes: &[String],
    ) -> Result<(Vec<String>, bool), Error> {
        let row = self.query_one(&statement::QUEUE_ENSURE_TENANT_ATTRIBUTES, &[&queue, &attributes]).await?;
        Ok((column::<Option<Vec<String>>>(&row, 0)?.unwrap_or_default(), column(&row, 1)?))
    }

    /// Labels up to `limit` pending requests of a partition that came before the queue told tenants apart. Says
    /// how many.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn label_tenants(&self, queue: i32, partition: i16, limit: i32) -> Result<i32, Error> {
        let row = self.query_one(&statement::REQUEST_LABEL_TENANTS, &[&queue, &partition, &limit]).await?;
        column(&row, 0)
    }
}
