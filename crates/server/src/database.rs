//! Which database and schema to use, and opening it.

use std::fmt;

use anyhow::Context;
use leasehold_store::{Error as StoreError, Store, StoreOptions};

use crate::exit::{self, Refused};

/// The environment variable that names the database where nothing else does.
pub(crate) const URL_VARIABLE: &str = "DATABASE_URL";
/// The installation's schema unless something else is said.
pub(crate) const DEFAULT_SCHEMA: &str = "leasehold";

/// A connection string. `Debug` shows none of it: it may hold a password.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct DatabaseUrl(pub(crate) String);

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("redacted")
    }
}

impl From<String> for DatabaseUrl {
    fn from(url: String) -> Self {
        Self(url)
    }
}

/// Where an installation is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The database.
    pub(crate) url: DatabaseUrl,
    /// The schema in it.
    pub(crate) schema: String,
}

impl Place {
    /// The URL given, or else the environment's; an empty one counts as none.
    ///
    /// # Errors
    /// [`Refused`] when neither names a database.
    pub(crate) fn find(given: Option<&DatabaseUrl>, schema: Option<&str>) -> Result<Self, Refused> {
        let url = given
            .cloned()
            .or_else(|| std::env::var(URL_VARIABLE).ok().map(DatabaseUrl))
            .filter(|url| !url.0.is_empty())
            .ok_or_else(|| {
                Refused(format!(
                    "no database is named: give --database-url or set {URL_VARIABLE} (postgres://…); \
                     `leasehold up` starts a system with a Postgres of its own"
                ))
            })?;
        Ok(Self { url, schema: schema.unwrap_or(DEFAULT_SCHEMA).to_owned() })
    }

    /// A pool of at most `pool_size` connections; nothing is connected yet.
    ///
    /// # Errors
    /// When the URL or the schema's name cannot be used.
    pub(crate) fn open(&self, pool_size: usize, tracing: bool) -> anyhow::Result<Store> {
        let options =
            StoreOptions { schema: self.schema.clone(), pool_size, tracing, ..StoreOptions::default() };
        Ok(Store::open(&self.url.0, &options)?)
    }

    /// As [`Place::open`], for a command that runs once; the schema must fit.
    ///
    /// # Errors
    /// When the database cannot be reached, or its schema is not this program's.
    pub(crate) async fn connect(&self) -> anyhow::Result<Store> {
        let store = self.open(4, false)?;
        let place = || format!("the database {} cannot be used", store.place());
        store.check_schema().await.with_context(place)?;
        Ok(store)
    }
}

/// Who follows waits for a database that is away, or gives a statement up for now, and says so in the log; what was taken
/// in between comes again.
///
/// # Errors
/// Any other error than that.
pub(crate) fn survive(error: anyhow::Error) -> anyhow::Result<()> {
    if !error.chain().any(|layer| layer.downcast_ref().is_some_and(StoreError::may_pass)) {
        return Err(error);
    }
    tracing::warn!("{}", exit::chain(&error));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_no_url() {
        let place = Place::find(Some(&DatabaseUrl("postgres://me:hunter2@host/db".into())), None).unwrap();
        assert!(!format!("{place:?}").contains("hunter2"));
        assert_eq!(place.schema, "leasehold");
    }
}
