//! `leasehold migrate`: makes the schema, or brings it up to date.

use anyhow::Context;
use leasehold_store::MigrationReport;

use crate::{cli::Global, exit};

/// Make the schema, or bring it up to date
///
/// Any number of processes may do so at once: one works, the others wait for it. A schema that is current is only
/// looked at. The roles leasehold_producer, leasehold_receiver, leasehold_poller, leasehold_dispatcher,
/// leasehold_quota and leasehold_admin are made where this role may do that.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  leasehold migrate --grants > grants.sql    # then, as a role that may: psql -f grants.sql")]
pub(crate) struct Args {
    /// Print, as SQL, what this role may not do itself: roles and grants
    #[arg(long)]
    grants: bool,
}

pub(crate) async fn run(global: &Global, args: &Args) -> anyhow::Result<u8> {
    let place = global.place()?;
    let store = place.open(2, false)?;
    let report = store.migrate().await.context("the schema cannot be migrated")?;
    eprintln!("{}", describe(&place.schema, &report));
    if args.grants {
        for statement in &report.outstanding {
            println!("{statement};");
        }
    } else if !report.outstanding.is_empty() {
        eprintln!(
            "{} statements for roles and grants are outstanding; they are only known to the run that migrates, \
             so here they are:",
            report.outstanding.len()
        );
        for statement in &report.outstanding {
            eprintln!("{statement};");
        }
    }
    Ok(exit::OK)
}

/// What was done, in one line.
pub(crate) fn describe(schema: &str, report: &MigrationReport) -> String {
    match (report.from, report.to) {
        (from, to) if from == to => format!("schema \"{schema}\" is at version {to} already"),
        (0, to) => format!("schema \"{schema}\" was made, at version {to}"),
        (from, to) => format!("schema \"{schema}\" went from version {from} to {to}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_a_migration_can_go_is_described() {
        let report = |from| MigrationReport { from, to: 5, outstanding: Vec::new() };
        assert_eq!(describe("x", &report(0)), "schema \"x\" was made, at version 5");
        assert_eq!(describe("x", &report(3)), "schema \"x\" went from version 3 to 5");
        assert_eq!(describe("x", &report(5)), "schema \"x\" is at version 5 already");
    }
}
