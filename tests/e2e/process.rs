//! Running the program: to its end, or until a signal.

use std::{
    process::{ExitStatus, Output, Stdio},
    sync::{Arc, Mutex},
};

use leasehold_testkit::wait::until;
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncWriteExt, BufReader},
    process::{Child, Command},
    time::timeout,
};

use crate::PATIENCE;

/// The program, with nothing in its environment that would change what it does.
pub(crate) fn leasehold(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    for (name, _) in std::env::vars() {
        let ours = name.starts_with("LEASEHOLD_") && name != "LEASEHOLD_PG_BIN";
        let proxy = name.to_ascii_lowercase().ends_with("_proxy");
        if ours || proxy || name == "DATABASE_URL" || name.starts_with("OTEL_") {
            command.env_remove(name);
        }
    }
    command.args(args).kill_on_drop(true);
    command
}

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

/// What a process has printed so far, line by line.
#[derive(Clone, Default)]
pub(crate) struct Printed(Arc<Mutex<Vec<String>>>);

impl Printed {
    fn follow(output: impl AsyncRead + Send + Unpin + 'static) -> Self {
        let printed = Self::default();
        let lines = Arc::clone(&printed.0);
        tokio::spawn(async move {
            let mut reader = BufReader::new(output).lines();
            while let Ok(Some(line)) = reader.next_line().await {
                lines.lock().unwrap().push(line);
            }
        });
        printed
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

/// A process under way. Dropped, it is killed.
pub(crate) struct Running {
    child: Child,
    pub(crate) stdout: Printed,
    pub(crate) stderr: Printed,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdout = Printed::follow(child.stdout.take().unwrap());
        let stderr = Printed::follow(child.stderr.take().unwrap());
        Self { child, stdout, stderr }
    }

    /// Waits for what a look at the process gives.
    pub(crate) async fn wait_for<T>(&mut self, what: &str, look: impl Fn(&Self) -> Option<T>) -> T {
        let mut found = None;
        until(what, PATIENCE, async || {
            found = look(self);
            if found.is_none() {
                let ended = self.child.try_wait().unwrap();
                assert!(ended.is_none(), "it ended ({ended:?}) before {what}: {:#?}", self.stderr.lines());
            }
            found.is_some()
        })
        .await;
        found.unwrap()
    }

    /// Sends a signal, by its short name.
    pub(crate) async fn signal(&self, name: &str) {
        let pid = self.child.id().expect("it runs").to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status().await.unwrap();
        assert!(sent.success(), "SIG{name}");
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Kills it as nothing can be caught, and waits until it is gone.
    pub(crate) async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }

    pub(crate) async fn ended(&mut self) -> ExitStatus {
        timeout(PATIENCE, self.child.wait()).await.expect("it ends in time").unwrap()
    }

    /// It ended by itself, with this exit code.
    pub(crate) async fn ended_with(&mut self, code: i32) {
        let status = self.ended().await;
        assert_eq!(status.code(), Some(code), "{:#?}", self.stderr.lines());
    }
}
