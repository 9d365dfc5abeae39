//! Quotas: holders and their slots, admissions by key and window, rates and budgets set from outside. All by the
//! database's clock.
//!
//! None of the statements that take or give may be repeated when its outcome is unknown: see
//! [`Error::outcome_unknown`]. Give the holder up instead, and delete it when its grants are done.

mod control;

use std::time::Duration;

use jiff::Timestamp;

use crate::{Error, Store, statement, store::column};

pub use control::{LeasedRate, QuotaControl};

/// What to limit, and by what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota<'a> {
    /// Who shares the limit, 1 to 1,024 bytes.
    pub key: &'a str,
    /// The limit, unless the database has one for `limit_keys`.
    pub max: i64,
    /// The first of these that has a limit in the database decides. Empty: `max` does.
    pub limit_keys: &'a [&'a str],
}

/// What to give back of a key's slots, and then to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotExchange<'a> {
    /// The key.
    pub key: &'a str,
    /// The limit, unless there is one in the database that counts.
    pub max: i64,
    /// A limit in the database counts: the key's own, else this one's. None: it does not.
    pub default_key: Option<&'a str>,
    /// Of the holder's own, down to none; from 0.
    pub give_back: i32,
    /// From 1.
    pub n: i32,
}

/// What [`Store::admit_quota`] granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// So many of the parts, from the first.
    pub parts: usize,
    /// When, by the database's clock: what [`Store::settle_quota`] wants.
    pub at: Timestamp,
    /// How long until the next part would fit; none when all were granted, or it never will.
    pub retry_after: Option<Duration>,
    /// The limit that applies: a part beyond it never fits.
    pub max: i64,
}

/// A key in use, or with a limit set in the database.
#[derive(Clone, Debug, PartialEq)]
pub struct QuotaUse {
    /// The key.
    pub key: String,
    /// The window of a rate limit; none: slots.
    pub window: Option<Duration>,
    /// Slots of live holders, or admissions in the trailing window.
    pub used: i64,
    /// The limit last applied; none: nobody has asked yet.
    pub max: Option<i64>,
    /// The limit set in the database; none: none.
    pub set_max: Option<i64>,
    /// When somebody was last refused, to the second.
    pub refused_at: Option<Timestamp>,
    /// How long ago that was.
    pub refused_ago: Option<Duration>,
}

/// A live holder's slots of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaSlots {
    /// The holder's name.
    pub holder: String,
    /// From 1.
    pub slots: i32,
    /// Since when it has held any.
    pub since: Timestamp,
    /// When its lease ends unless it is renewed.
    pub expires_at: Timestamp,
}

/// Admissions that a window of a key still counts.
#[derive(Clone, Debug, PartialEq)]
pub struct QuotaAdmissions {
    /// The window.
    pub window: Duration,
    /// When the last of them was made.
    pub admitted_at: Timestamp,
    /// How many, from 1.
    pub count: i64,
}

impl Store {
    /// Registers a holder for `ttl`.
    ///
    /// # Errors
    /// [`Error::Conflict`] when the name was used before.
    pub async fn register_quota_holder(&self, holder: &str, ttl: Duration) -> Result<(), Error> {
        self.query(&statement::QUOTA_REGISTER, &[&holder, &ttl.as_secs_f64()]).await.map(|_| ())
    }

    /// Renews a holder for `ttl` from now. False when it has lapsed: it is never live again.
    ///
    /// # Errors
    /// When the database refuses. Safe to repeat.
    pub async fn renew_quota_holder(&self, holder: &str, ttl: Duration) -> Result<bool, Error> {
        let row = self.query_one(&statement::QUOTA_RENEW, &[&holder, &ttl.as_secs_f64()]).await?;
        column(&row, 0)
    }

    /// Deletes a holder and frees its slots. False when there is none of that name.
    ///
    /// # Errors
    /// When the database refuses. Safe to repeat.
    pub async fn delete_quota_holder(&self, holder: &str) -> Result<bool, Error> {
        self.query_one(&statement::QUOTA_DELETE, &[&holder]).await.and_then(|row| column(&row, 0))
    }

    /// Takes up to `n` slots for a live holder: min(n, limit - slots of live holders). `n` 0 asks nothing.
    ///
    /// # Errors
    /// [`Error::HolderLapsed`] when the holder is not live; nothing was taken then. After another error slots may
    /// have been taken: do not repeat it.
    pub async fn acquire_quota_slots(&self, holder: &str, quota: &Quota<'_>, n: i32) -> Result<i32, Error> {
        self.exchange_quota_slots(holder, quota, 0, n).await
    }

    /// Gives back some of the holder's own slots, and then takes up to `n`, in one statement. `n` 0 asks nothing.
    ///
    /// # Errors
    /// As [`Store::acquire_quota_slots`]; nothing was given back either when the holder is not live.
    pub async fn exchange_quota_slots(
        &self,
        holder: &str,
        quota: &Quota<'_>,
        give_back: i32,
        n: i32,
    ) -> Result<i32, Error> {
        if n == 0 {
            return Ok(0);
        }
        let params: crate::store::Params<'_> =
            &[&holder, &quota.key, &n, &quota.max, &quota.limit_keys, &give_back];
        self.query_one(&statement::QUOTA_ACQUIRE, params).await.and_then(|row| column(&row, 0))
    }

    /// As [`Store::exchange_quota_slots`] for many keys, each given once: what was granted of each. None: another
    /// transaction holds the key, which is not waited for, and nothing was done about it. Nothing asked: no statement.
    ///
    /// # Errors
    /// As [`Store::exchange_quota_slots`].
    pub async fn exchange_slots_of_many(
        &self,
        holder: &str,
        exchanges: &[SlotExchange<'_>],
    ) -> Result<Vec<Option<i32>>, Error> {
        if exchanges.is_empty() {
            return Ok(Vec::new());
        }
        let keys: Vec<&str> = exchanges.iter().map(|e| e.key).collect();
        let ns: Vec<i32> = exchanges.iter().map(|e| e.n).collect();
        let maxes: Vec<i64> = exchanges.iter().map(|e| e.max).collect();
        let default_keys: Vec<Option<&str>> = exchanges.iter().map(|e| e.default_key).collect();
        let give_backs: Vec<i32> = exchanges.iter().map(|e| e.give_back).collect();
        let params: crate::store::Params<'_> = &[&holder, &keys, &ns, &maxes, &default_keys, &give_backs];
        self.query_one(&statement::QUOTA_ACQUIRE_MANY, params).await.and_then(|row| column(&row, 0))
    }

    /// Gives back `counts[i]` of the holder's own slots of `keys[i]`, down to none.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when there are not as many of the one as of the other. Do not repeat another:
    /// slots taken in between would be given back.
    pub async fn release_quota_slots<K: AsRef<str>>(
        &self,
        holder: &str,
        keys: &[K],
        counts: &[i32],
    ) -> Result<(), Error> {
        let keys: Vec<&str> = keys.iter().map(AsRef::as_ref).collect();
        self.query(&statement::QUOTA_RELEASE, &[&holder, &keys, &counts]).await.map(|_| ())
    }

    /// Admits `parts` in order, each whole or not at all, up to the first that would exceed the limit within the
    /// trailing `window` (to the millisecond). Different windows on one key know nothing of each other. No parts
    /// ask nothing.
    ///
    /// # Errors
    /// When the database refuses; the parts may have been admitted.
    pub async fn admit_quota(
        &self,
        quota: &Quota<'_>,
        parts: &[i64],
        window: Duration,
    ) -> Result<Admitted, Error> {
        let params: crate::store::Params<'_> =
            &[&quota.key, &parts, &quota.max, &window.as_secs_f64(), &quota.limit_keys];
        let row = self.query_one(&statement::QUOTA_ADMIT, params).await?;
        Ok(Admitted {
            parts: usize::try_from(column::<i32>(&row, 0)?).unwrap_or(0),
            at: column(&row, 1)?,
            retry_after: column::<Option<f64>>(&row, 2)?.map(seconds),
            max: column(&row, 3)?,
        })
    }

    /// Corrects admissions, each made at a time by so many: what is given back (below 0) counts no more, if it still
    /// did; what is added counts from now, whatever the limit.
    ///
    /// # Errors
    /// When the database refuses; the changes may have been made.
    pub async fn settle_quota(
        &self,
        key: &str,
        window: Duration,
        changes: &[(Timestamp, i64)],
    ) -> Result<(), Error> {
        let (times, changes): (Vec<Timestamp>, Vec<i64>) = changes.iter().copied().unzip();
        let params: crate::store::Params<'_> = &[&key, &window.as_secs_f64(), &times, &changes];
        self.query(&statement::QUOTA_SETTLE, params).await.map(|_| ())
    }

    /// Takes up to `n` (from 1) from the token bucket of a key whose rate is set from outside; it holds at most
    /// max(1, rate × `burst`). Nothing when the rate has expired or was never set. Also returns how long until
    /// there is one more, where that is known.
    ///
    /// # Errors
    /// When the database refuses; tokens may have been taken.
    pub async fn take_quota_rate(
        &self,
        key: &str,
        n: i32,
        burst: Duration,
    ) -> Result<(i32, Option<Duration>), Error> {
        let row = self.query_one(&statement::QUOTA_TAKE, &[&key, &n, &burst.as_secs_f64()]).await?;
        Ok((column(&row, 0)?, column::<Option<f64>>(&row, 1)?.map(seconds)))
    }

    /// The budget of a key, 0 to 1; 1 when none is set.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn quota_budget(&self, key: &str) -> Result<f64, Error> {
        self.query_one(&statement::QUOTA_BUDGET, &[&key]).await.and_then(|row| column(&row, 0))
    }

    /// Sets a limit of slots (`window` none) or of admissions in a window; `max` none takes it away.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`], naming it.
    pub async fn set_quota_limit(
        &self,
        key: &str,
        max: Option<i64>,
        window: Option<Duration>,
    ) -> Result<(), Error> {
        let window = window.map(|w| w.as_secs_f64());
        self.query(&statement::QUOTA_SET_LIMIT, &[&key, &max, &window]).await.map(|_| ())
    }

    /// Sets the budget of a key, 0 to 1; none takes it away, which is 1.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`], naming it.
    pub async fn set_quota_budget(&self, key: &str, budget: Option<f64>) -> Result<(), Error> {
        self.query(&statement::QUOTA_SET_BUDGET, &[&key, &budget]).await.map(|_| ())
    }

    /// Allows `rate` admissions a second on a key for `ttl` from now; 0 is a pause.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`], naming it.
    pub async fn set_quota_rate(&self, key: &str, rate: f64, ttl: Duration) -> Result<(), Error> {
        self.query(&statement::QUOTA_SET_RATE, &[&key, &rate, &ttl.as_secs_f64()]).await.map(|_| ())
    }

    /// Deletes up to `limit` holders that lapsed longer than `grace` ago, with their slots; says how many.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn reap_quota_holders(&self, grace: Duration, limit: i64) -> Result<i64, Error> {
        let limit = i32::try_from(limit).unwrap_or(i32::MAX);
        let row = self.query_one(&statement::QUOTA_REAP_HOLDERS, &[&grace.as_secs_f64(), &limit]).await?;
        column::<i32>(&row, 0).map(i64::from)
    }

    /// Removes up to `limit` of each kind that no longer counts: windows that are empty, slots that have held
    /// nothing for a minute, keys without slots, rates long expired. Says how many. Safe beside everything.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn reap_quota(&self, limit: i64) -> Result<i64, Error> {
        let limit = i32::try_from(limit).unwrap_or(i32::MAX);
        self.query_one(&statement::QUOTA_REAP, &[&limit])
            .await
            .and_then(|row| column::<i32>(&row, 0).map(i64::from))
    }

    /// What is in use or has a limit in the database, by key: the first `limit`.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn list_quotas(&self, prefix: &str, limit: i32) -> Result<Vec<QuotaUse>, Error> {
        let rows = self.query(&statement::QUOTA_LIST, &[&prefix, &limit]).await?;
        rows.iter()
            .map(|row| {
                Ok(QuotaUse {
                    key: column(row, "key")?,
                    window: column::<Option<f64>>(row, "window_seconds")?.map(seconds),
                    used: column(row, "used")?,
                    max: column(row, "max")?,
                    set_max: column(row, "set_max")?,
                    refused_at: column(row, "refused_at")?,
                    refused_ago: column::<Option<f64>>(row, "refused_seconds")?.map(seconds),
                })
            })
            .collect()
    }

    /// Who holds slots of a key, longest first.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn quota_holders_of(&self, key: &str) -> Result<Vec<QuotaSlots>, Error> {
        let rows = self.query(&statement::QUOTA_HOLDERS_OF, &[&key]).await?;
        rows.iter()
            .map(|row| {
                Ok(QuotaSlots {
                    holder: column(row, "holder")?,
                    slots: column(row, "slots")?,
                    since: column(row, "since")?,
                    expires_at: column(row, "expires_at")?,
                })
            })
            .collect()
    }

    /// What each window of a key still counts, oldest first.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn quota_admissions_of(&self, key: &str) -> Result<Vec<QuotaAdmissions>, Error> {
        let rows = self.query(&statement::QUOTA_ADMISSIONS_OF, &[&key]).await?;
        rows.iter()
            .map(|row| {
                Ok(QuotaAdmissions {
                    window: seconds(column(row, "window_seconds")?),
                    admitted_at: column(row, "admitted_at")?,
                    count: column(row, "count")?,
                })
            })
            .collect()
    }
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::ZERO)
}
