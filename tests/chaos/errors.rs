//! Which errors those outside met. Faults explain some; any other is the product's.

use std::{collections::BTreeMap, sync::Mutex};

use tokio_postgres::Error;

/// Of an error without a code: the connection broke.
const BROKEN: &str = "broken";

/// What faults explain: terminated, crashed, starting, out of time or connections, rolled back; and a connection.
const EXPLAINED: [&str; 8] = ["57P01", "57P02", "57P03", "57014", "53300", "40001", "40P01", BROKEN];
/// A lock that lapsed while its holder was cut off.
const LOCK_LOST: &str = "LH006";

/// How often each came.
#[derive(Default)]
pub(crate) struct Errors(Mutex<BTreeMap<String, usize>>);

impl Errors {
    /// Of a producer, or a poller.
    pub(crate) fn note(&self, error: &Error) {
        self.count(error, &EXPLAINED);
    }

    /// Of a receiver, which holds locks.
    pub(crate) fn note_of_receiver(&self, error: &Error) {
        self.count(error, &[&EXPLAINED[..], &[LOCK_LOST]].concat());
    }

    fn count(&self, error: &Error, explained: &[&str]) {
        let code = error.code().map_or(BROKEN, |code| code.code());
        assert!(explained.contains(&code), "no fault explains {error:?}");
        *self.0.lock().unwrap().entry(code.to_owned()).or_default() += 1;
    }

    pub(crate) fn all(&self) -> BTreeMap<String, usize> {
        self.0.lock().unwrap().clone()
    }
}
