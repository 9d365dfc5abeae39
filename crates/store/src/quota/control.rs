//! What is set from outside beside limits: budgets, and rates with an expiry.

use std::time::Duration;

use jiff::Timestamp;

use super::seconds;
use crate::{Error, Store, statement, store::column};

/// A key with a budget, a rate, or both.
#[derive(Clone, Debug, PartialEq)]
pub struct QuotaControl {
    /// The key.
    pub key: String,
    /// 0 to 1; none: none is set, which is 1.
    pub budget: Option<f64>,
    /// None: none is set, and nothing passes.
    pub rate: Option<LeasedRate>,
}

/// A rate set from outside. Once it has expired nothing passes; it is forgotten a day later.
#[derive(Clone, Debug, PartialEq)]
pub struct LeasedRate {
    /// Admissions a second; 0 is a pause.
    pub rate: f64,
    /// What the bucket holds now, before the burst of the gate that takes from it caps it.
    pub tokens: f64,
    /// When it ends.
    pub expires_at: Timestamp,
    /// What is left of it; none: it has expired.
    pub left: Option<Duration>,
}

impl Store {
    /// Takes the rate of a key away, and what its bucket holds. False when there is none.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`], naming it.
    pub async fn remove_quota_rate(&self, key: &str) -> Result<bool, Error> {
        self.query_one(&statement::QUOTA_REMOVE_RATE, &[&key]).await.and_then(|row| column(&row, 0))
    }

    /// Budgets and rates set from outside, by key: the first `limit`.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn quota_controls(&self, prefix: &str, limit: i32) -> Result<Vec<QuotaControl>, Error> {
        let rows = self.query(&statement::QUOTA_CONTROLS, &[&prefix, &limit]).await?;
        rows.iter()
            .map(|row| {
                let rate = match column::<Option<f64>>(row, "rate")? {
                    None => None,
                    Some(rate) => Some(LeasedRate {
                        rate,
                        tokens: column(row, "tokens")?,
                        expires_at: column(row, "expires_at")?,
                        left: Some(column(row, "expires_seconds")?).filter(|left| *left > 0.0).map(seconds),
                    }),
                };
                Ok(QuotaControl { key: column(row, "key")?, budget: column(row, "budget")?, rate })
            })
            .collect()
    }
}
