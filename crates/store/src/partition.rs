//! Partitions: who holds which share of a queue, by the database's clock.

use std::time::Duration;

use jiff::SignedDuration;

use crate::{Error, Store, statement, store::column};

/// Shares of every queue.
pub const PARTITIONS: i16 = 64;

/// The share that a key belongs to: FNV-1a (32 bit) of its bytes, mod 64.
pub fn partition_of(key: &str) -> i16 {
    let hash =
        key.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    (hash % 64) as i16
}

/// A partition held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// 0 to 63.
    pub partition: i16,
    /// Since it changed hands last.
    pub epoch: i64,
    /// Leased for acks, dispatching nothing new.
    pub draining: bool,
}

/// What a beat found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// Live members of the queue, the caller included when it is one.
    pub members: i64,
    /// Everything the caller holds, in order.
    pub leases: Vec<Lease>,
}

/// A partition that changed hands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acquired {
    /// 0 to 63.
    pub partition: i16,
    /// Its new epoch.
    pub epoch: i64,
}

/// A heartbeat is void so long after it was sent, by the database's clock. Together with the 45 minutes for which
/// `set_generation` trusts a lapsed row, less than the hour after which that is forgotten.
const VOID: SignedDuration = SignedDuration::from_mins(10);

impl Store {
    /// Makes the 64 rows of a queue, those that are missing.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn ensure_partitions(&self, queue: i32) -> Result<(), Error> {
        self.query(&statement::PARTITION_ENSURE, &[&queue]).await.map(|_| ())
    }

    /// Renews every partition still naming the owner (even a lapsed one, if nobody took it) for `ttl`, and its
    /// membership: counted for a share when `member`. Forgets members that lapsed an hour ago. `generation` is the one
    /// that the owner's polls carry; it never falls. A heartbeat that the database runs more than ten minutes after it was
    /// sent changes nothing.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn heartbeat(
        &self,
        queue: i32,
        owner: &str,
        ttl: Duration,
        member: bool,
        generation: i64,
    ) -> Result<Heartbeat, Error> {
        let now = match self.shared.clock.now() {
            Some(now) => now,
            None => self.now().await?,
        };
        let void_from = now + VOID;
        let params: crate::store::Params<'_> =
            &[&queue, &owner, &ttl.as_secs_f64(), &member, &generation, &void_from];
        let row = self.query_one(&statement::PARTITION_HEARTBEAT, params).await?;
        self.shared.clock.note(column(&row, 4)?);
        if !column::<bool>(&row, 5)? {
            // It was under way for as long, or the database's clock has jumped: the next one knows the time.
            return Err(Error::Timeout { operation: "partition/heartbeat", limit: VOID.unsigned_abs() });
        }
        let partitions: Option<Vec<i16>> = column(&row, 1)?;
        let epochs: Option<Vec<i64>> = column(&row, 2)?;
        let draining: Option<Vec<bool>> = column(&row, 3)?;
        let leases = std::iter::zip(partitions.unwrap_or_default(), epochs.unwrap_or_default())
            .zip(draining.unwrap_or_default())
            .map(|((partition, epoch), draining)| Lease { partition, epoch, draining })
            .collect();
        Ok(Heartbeat { members: column(&row, 0)?, leases })
    }

    /// Takes up to `limit` partitions that nobody holds or whose lease has lapsed, longest lapsed first; the
    /// epoch of each rises, and draining ends.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn acquire_partitions(
        &self,
        queue: i32,
        owner: &str,
        ttl: Duration,
        limit: i64,
    ) -> Result<Vec<Acquired>, Error> {
        if limit <= 0 {
            return Ok(Vec::new());
        }
        let rows =
            self.query(&statement::PARTITION_ACQUIRE, &[&queue, &owner, &ttl.as_secs_f64(), &limit]).await?;
        rows.iter().map(|row| Ok(Acquired { partition: column(row, 0)?, epoch: column(row, 1)? })).collect()
    }

    /// Sets or clears draining on partitions that the owner holds; returns those.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn set_draining(
        &self,
        queue: i32,
        owner: &str,
        partitions: &[i16],
        draining: bool,
    ) -> Result<Vec<i16>, Error> {
        if partitions.is_empty() {
            return Ok(Vec::new());
        }
        let rows =
            self.query(&statement::PARTITION_SET_DRAINING, &[&queue, &owner, &partitions, &draining]).await?;
        rows.iter().map(|row| column(row, 0)).collect()
    }

    /// Gives up partitions that the owner holds; their epochs stay. Returns those given up.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn release_partitions(
        &self,
        queue: i32,
        owner: &str,
        partitions: &[i16],
    ) -> Result<Vec<i16>, Error> {
        if partitions.is_empty() {
            return Ok(Vec::new());
        }
        let rows = self.query(&statement::PARTITION_RELEASE, &[&queue, &owner, &partitions]).await?;
        rows.iter().map(|row| column(row, 0)).collect()
    }

    /// Gives up everything the owner holds in the queue, and its membership.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn leave(&self, queue: i32, owner: &str) -> Result<(), Error> {
        self.query(&statement::PARTITION_LEAVE, &[&queue, &owner]).await.map(|_| ())
    }

    /// Makes polls of the owner's earlier generations stamp nothing from now on. Takes effect for statements that
    /// begin after it; those under way end before [`crate::Flight::xmin`] reaches the `xmax` of a later look.
    /// False, and no effect, when the owner has no membership (it lapsed, and a peer forgot it), or one that lapsed 45 minutes
    /// ago and will be forgotten soon.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn set_generation(&self, queue: i32, owner: &str, generation: i64) -> Result<bool, Error> {
        let rows = self.query(&statement::PARTITION_SET_GENERATION, &[&queue, &owner, &generation]).await?;
        Ok(!rows.is_empty())
    }

    /// Tells producers whether the owner wants to be rung. Takes effect for what begins after it; look once
    /// more after setting it.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn set_asleep(&self, queue: i32, owner: &str, asleep: bool) -> Result<(), Error> {
        self.query(&statement::PARTITION_SET_ASLEEP, &[&queue, &owner, &asleep]).await.map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fnv_1a_has_its_published_values() {
        // From the reference test vectors: "" -> 811c9dc5, "a" -> e40c292c, "foobar" -> bf9cf968.
        for (key, hash) in [("", 0x811c_9dc5_u32), ("a", 0xe40c_292c), ("foobar", 0xbf9c_f968)] {
            assert_eq!(u32::try_from(partition_of(key)).unwrap(), hash % 64, "{key:?}");
        }
    }

    #[test]
    fn ids_spread_evenly() {
        let mut shares = [0_u32; 64];
        for n in 0..64_000 {
            shares[partition_of(&format!("request-{n}")) as usize] += 1;
        }
        assert!(shares.iter().all(|n| (800..=1200).contains(n)), "{shares:?}");
    }
}
