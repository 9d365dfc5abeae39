//! Exit codes, and how an error becomes one and is shown.

use std::process::ExitCode;

use leasehold_dispatch::StartError;
use leasehold_store::Error as StoreError;

/// It went well.
pub(crate) const OK: u8 = 0;
/// It did not, for a reason that has no code of its own.
pub(crate) const FAILURE: u8 = 1;
/// The configuration was refused. (2 is clap's, for a command line that is not understood.)
pub(crate) const CONFIGURATION: u8 = 3;
/// The database cannot be reached, or does not answer.
pub(crate) const DATABASE_UNAVAILABLE: u8 = 4;
/// The schema is missing, another's, older, newer, or closed to the role.
pub(crate) const SCHEMA_MISMATCH: u8 = 5;
/// The database refused what was asked: an argument, a conflict, a privilege; or knows nothing of that name.
pub(crate) const REFUSED: u8 = 6;
/// A signal stopped it before everything was done; stderr says how far it came.
pub(crate) const INTERRUPTED: u8 = 7;
/// A second signal stopped it at once: leases lapse, and what was in flight is dispatched again.
pub(crate) const KILLED: u8 = 8;

/// For `--help`.
pub(crate) const HELP: &str = "\
Exit codes:
  0  done
  1  failed
  2  the command line is not understood
  3  the configuration is refused
  4  the database cannot be reached, or does not answer
  5  the schema is missing, older, newer, another program's, or closed to the role
  6  the database refuses: an argument, a conflict, a privilege, a name it does not know
  7  stopped by a signal before everything was done
  8  stopped at once by a second signal";

/// A configuration that is refused, with what to do about it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Refused(pub(crate) String);

/// A name that the database does not know.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct NotFound(pub(crate) String);

/// Prints the whole chain of an error, and says with which code to end.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    eprintln!("error: {}", chain(error));
    if let Some(advice) = advice(error) {
        eprintln!("{advice}");
    }
    ExitCode::from(code_of(error))
}

/// Every layer of an error; a layer that only repeats the one above is left out.
pub(crate) fn chain(error: &anyhow::Error) -> String {
    let mut shown = String::new();
    let mut last = String::new();
    for layer in error.chain() {
        let text = layer.to_string();
        if last.ends_with(&text) && !last.is_empty() {
            continue;
        }
        if !last.is_empty() {
            shown.push_str(": caused by ");
        }
        shown.push_str(&text);
        last = text;
    }
    shown
}

fn code_of(error: &anyhow::Error) -> u8 {
    // As a context it is no layer of the chain that could be told by its type.
    if error.downcast_ref::<Refused>().is_some() {
        return CONFIGURATION;
    }
    if error.downcast_ref::<NotFound>().is_some() {
        return REFUSED;
    }
    error.chain().find_map(code_of_layer).unwrap_or(FAILURE)
}

fn code_of_layer(layer: &(dyn std::error::Error + 'static)) -> Option<u8> {
    if let Some(StartError::Config(_) | StartError::Backend { .. }) = layer.downcast_ref() {
        return Some(CONFIGURATION);
    }
    Some(match layer.downcast_ref::<StoreError>()? {
        StoreError::InvalidDsn(_) => CONFIGURATION,
        StoreError::ForeignSchema { .. } | StoreError::SchemaVersion { .. } => SCHEMA_MISMATCH,
        StoreError::Unavailable { .. } | StoreError::Timeout { .. } => DATABASE_UNAVAILABLE,
        StoreError::InvalidArgument(_)
        | StoreError::QueueNotFound(_)
        | StoreError::Conflict(_)
        | StoreError::PayloadTooLarge(_)
        | StoreError::DedupConflict(_)
        | StoreError::NameConflict(_)
        | StoreError::GroupRequired(_)
        | StoreError::InvalidFilter(_)
        | StoreError::NotFound(_)
        | StoreError::LockLost(_)
        | StoreError::Denied { .. }
        | StoreError::Refused { .. } => REFUSED,
        _ => FAILURE,
    })
}

/// What a pooler in transaction mode makes of a session: it refuses or forgets what was set at its start, and
/// statements prepared on one server connection are looked for on another.
const POOLER_SIGNS: [(&str, &str); 4] = [
    ("unsupported startup parameter", ""),
    ("prepared statement", "does not exist"),
    ("prepared statement", "already exists"),
    ("protocol-level prepared plans", ""),
];

fn advice(error: &anyhow::Error) -> Option<&'static str> {
    let is_sign = |text: &String| POOLER_SIGNS.iter().any(|(a, b)| text.contains(a) && text.contains(b));
    let found = error.chain().map(ToString::to_string).any(|text| is_sign(&text));
    found.then_some(
        "This looks like a connection pooler in transaction mode (PgBouncer, say). Leasehold needs sessions of \
         its own: give it the address of Postgres itself, or of a pool in session mode.",
    )
}

#[cfg(test)]
mod tests {
    use anyhow::{Context, anyhow};

    use super::*;

    #[test]
    fn the_chain_is_shown_whole_and_nothing_twice() {
        let error = anyhow!("inner").context("outer: inner").context("asked");
        assert_eq!(chain(&error), "asked: caused by outer: inner");
        assert_eq!(chain(&anyhow!("alone")), "alone");
    }

    #[test]
    fn the_innermost_reason_we_know_decides_the_code() {
        let version = StoreError::SchemaVersion {
            schema: "leasehold".into(),
            found: 3,
            needed: 5,
            advice: "run `leasehold migrate`",
        };
        let wrapped = Err::<(), _>(StartError::Store(version)).context("serve").unwrap_err();
        assert_eq!(code_of(&wrapped), SCHEMA_MISMATCH);
        assert!(chain(&wrapped).contains("version 3") && chain(&wrapped).contains("version 5"));
        assert_eq!(code_of(&anyhow::Error::new(Refused("no".into()))), CONFIGURATION);
        let as_context = anyhow!("inner").context(Refused("no".into())).context("outer");
        assert_eq!(code_of(&as_context), CONFIGURATION);
        assert_eq!(code_of(&anyhow::Error::new(NotFound("who?".into()))), REFUSED);
        assert_eq!(code_of(&anyhow!("anything")), FAILURE);
    }

    #[test]
    fn a_transaction_pooler_is_recognised() {
        let refused = anyhow!("FATAL: unsupported startup parameter: options").context("connecting");
        assert!(advice(&refused).unwrap().contains("session mode"));
        assert!(advice(&anyhow!("ERROR: prepared statement \"s0\" does not exist")).is_some());
        assert!(advice(&anyhow!("connection refused")).is_none());
    }
}
