//! The program as a process under way: what it prints, and signals for it.

use std::{
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex},
};

use leasehold_testkit::wait::until;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, BufReader},
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

    pub(crate) fn pid(&self) -> u32 {
        self.child.id().expect("it runs")
    }

    /// Sends a signal, by its short name.
    pub(crate) async fn signal(&self, name: &str) {
        let pid = self.pid().to_string();
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
