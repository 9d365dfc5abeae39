//! Running the program to its end.

use std::process::{Output, Stdio};

use serde_json::Value;
use tokio::{io::AsyncWriteExt, process::Command, time::timeout};

use crate::PATIENCE;

/// How a program that ran to its end did.
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    /// It went well.
    pub(crate) fn good(self) -> Self {
        assert_eq!(self.code, 0, "{}", self.stderr);
        self
    }

    /// It ended with this exit code, and said this on stderr.
    pub(crate) fn failed(self, code: i32, said: &[&str]) -> Self {
        assert_eq!(self.code, code, "{}", self.stderr);
        for said in said {
            assert!(self.stderr.contains(said), "{:?} does not say {said:?}", self.stderr);
        }
        self
    }

    /// Its stdout as JSON lines.
    pub(crate) fn lines(&self) -> Vec<Value> {
        self.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// Runs it to its end, with `input` on its stdin.
pub(crate) async fn run(command: &mut Command, input: &[u8]) -> Ran {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // One that does not read its input may have ended by now.
    let _ = stdin.write_all(input).await;
    drop(stdin);
    let Output { status, stdout, stderr } =
        timeout(PATIENCE, child.wait_with_output()).await.expect("it ends in time").unwrap();
    Ran {
        code: status.code().expect("no signal ended it"),
        stdout: String::from_utf8(stdout).unwrap(),
        stderr: String::from_utf8(stderr).unwrap(),
    }
}
