//! Migrations: who may run them, when, and on what.

use deadpool_postgres::Object;
use refinery::{Migration, Runner};
use tokio_postgres::{Client, error::SqlState};

use crate::{
    Error, Store,
    statement::{self, Statement},
    store::column,
};

mod embedded {
    refinery::embed_migrations!("../../migrations");
}

/// The version of the schema that this program works with.
pub const SCHEMA_VERSION: i32 = 23;

const HISTORY: &str = "schema_history";
const OPERATION: &str = "migrate";

/// What a migration did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigrationReport {
    /// The version found; 0 when there was nothing.
    pub from: i32,
    /// The version now.
    pub to: i32,
    /// Statements that somebody with more rights has to run: roles and grants. Empty when all is there.
    pub outstanding: Vec<String>,
}

struct State {
    has_history: bool,
    has_objects: bool,
}

impl Store {
    /// Brings the schema to [`SCHEMA_VERSION`], making it when it does not exist. Any number of processes may do
    /// so at once: one works, the others wait for it. A schema that is current is only looked at.
    ///
    /// Cancelling it leaves each migration either done or not done.
    ///
    /// # Errors
    /// [`Error::ForeignSchema`], [`Error::SchemaVersion`] for a newer one; nothing is changed then.
    pub async fn migrate(&self) -> Result<MigrationReport, Error> {
        // A connection of its own, closed afterwards: the lock goes with it, whatever happens.
        let mut client = Object::take(self.client(OPERATION).await?);
        let from = self.version_to_migrate(&client).await?;
        if from == SCHEMA_VERSION {
            return self.current(&client).await;
        }
        let schema = &self.shared.schema;
        run(&client, &statement::MIGRATION_LOCK, &[schema]).await?;
        let from = self.version_to_migrate(&client).await?;
        if from == SCHEMA_VERSION {
            return self.current(&client).await;
        }
        run(&client, &statement::MIGRATION_CREATE_SCHEMA, &[]).await?;
        runner().run_async(&mut *client).await.map_err(|e| Error::Migration(Box::new(e)))?;
        let rows = run(&client, &statement::MIGRATION_APPLY_GRANTS, &[]).await?;
        let outstanding = rows.iter().map(|row| column(row, 0)).collect::<Result<_, _>>()?;
        Ok(MigrationReport { from, to: SCHEMA_VERSION, outstanding })
    }

    /// Fails unless the schema is exactly the one this program works with.
    ///
    /// # Errors
    /// [`Error::SchemaVersion`], naming both versions; [`Error::ForeignSchema`].
    pub async fn check_schema(&self) -> Result<(), Error> {
        let rows = match self.query(&statement::SESSION_SCHEMA_VERSION, &[]).await {
            Err(Error::Database { source, .. }) if source.code() == Some(&SqlState::UNDEFINED_TABLE) => {
                // Not there, or closed to this role.
                let client = self.client(OPERATION).await?;
                self.look(&client).await?;
                Vec::new()
            }
            result => result?,
        };
        let found = self.check_history(&rows)?;
        if found == SCHEMA_VERSION { Ok(()) } else { Err(self.version_mismatch(found)) }
    }

    /// Nothing to do, but perhaps roles are still missing. Who may not ask is told of none.
    async fn current(&self, client: &Client) -> Result<MigrationReport, Error> {
        let mut outstanding = outstanding_grants(client).await?;
        if !outstanding.is_empty() {
            // Another process may have just migrated and be about to grant: it holds the lock until it has.
            run(client, &statement::MIGRATION_LOCK, &[&self.shared.schema]).await?;
            outstanding = outstanding_grants(client).await?;
        }
        Ok(MigrationReport { from: SCHEMA_VERSION, to: SCHEMA_VERSION, outstanding })
    }

    async fn version_to_migrate(&self, client: &Client) -> Result<i32, Error> {
        let state = self.look(client).await?;
        if !state.has_history {
            if state.has_objects {
                return Err(self.foreign("it holds objects that are not Leasehold's".into()));
            }
            return Ok(0);
        }
        let found = self.check_history(&run(client, &statement::SESSION_SCHEMA_VERSION, &[]).await?)?;
        if found > SCHEMA_VERSION { Err(self.version_mismatch(found)) } else { Ok(found) }
    }

    async fn look(&self, client: &Client) -> Result<State, Error> {
        let rows = run(client, &statement::MIGRATION_STATE, &[&self.shared.schema]).await?;
        let row = rows.first().ok_or_else(|| self.foreign("it cannot be looked at".into()))?;
        let (encoding, server): (String, i32) = (column(row, "encoding")?, column(row, "server_version")?);
        if column(row, "is_closed")? {
            return Err(self.foreign("this role may not use it; grant it leasehold_producer, leasehold_poller, leasehold_receiver, \
                 leasehold_dispatcher, leasehold_quota or leasehold_admin; who migrates must own it".into()));
        }
        if encoding != "UTF8" {
            return Err(self.foreign(format!("the database's encoding is {encoding}; Leasehold needs UTF8")));
        }
        if server < 140_000 {
            return Err(self.foreign(format!(
                "the server is Postgres {}; Leasehold needs 14 or newer",
                server / 10_000
            )));
        }
        Ok(State { has_history: column(row, "has_history")?, has_objects: column(row, "has_objects")? })
    }

    /// The version in the history, whose names must be ours as far as we know them.
    fn check_history(&self, rows: &[tokio_postgres::Row]) -> Result<i32, Error> {
        let ours = runner();
        let mut version = 0;
        for row in rows {
            let (number, name): (i32, String) = (column(row, 0)?, column(row, 1)?);
            let known = ours.get_migrations().iter().find(|m| m.version() == number);
            if known.is_some_and(|m: &Migration| m.name() != name) {
                return Err(
                    self.foreign(format!("migration {number} is \"{name}\", which is not Leasehold's"))
                );
            }
            version = version.max(number);
        }
        Ok(version)
    }

    fn foreign(&self, problem: String) -> Error {
        Error::ForeignSchema { schema: self.shared.schema.clone(), problem }
    }

    fn version_mismatch(&self, found: i32) -> Error {
        let advice = match found {
            n if n > SCHEMA_VERSION => "use a newer program",
            _ => "run `leasehold migrate`",
        };
        Error::SchemaVersion { schema: self.shared.schema.clone(), found, needed: SCHEMA_VERSION, advice }
    }
}

fn runner() -> Runner {
    let mut runner = embedded::migrations::runner();
    runner.set_migration_table_name(HISTORY);
    runner
}

async fn outstanding_grants(client: &Client) -> Result<Vec<String>, Error> {
    match run(client, &statement::MIGRATION_OUTSTANDING_GRANTS, &[]).await {
        Ok(rows) => rows.iter().map(|row| column(row, 0)).collect(),
        Err(Error::Denied { .. }) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

async fn run(
    client: &Client,
    statement: &'static Statement,
    params: crate::store::Params<'_>,
) -> Result<Vec<tokio_postgres::Row>, Error> {
    client.query(statement.sql, params).await.map_err(|e| Error::from_postgres(OPERATION, e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_version_is_the_last_migration() {
        let last = runner().get_migrations().iter().map(Migration::version).max();
        assert_eq!(last, Some(SCHEMA_VERSION));
    }
}
