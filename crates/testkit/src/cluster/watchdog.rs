//! The process that runs Postgres's programs for a cluster and stops Postgres when we are gone.
//!
//! Its standard input is a pipe that only we hold open; the system closes it when this process ends,
//! even by SIGKILL. It is in a process group of its own, so that Ctrl-C in a terminal reaches neither
//! it nor Postgres, which `pg_ctl` puts in a session of its own.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use super::account::{Account, command};
use super::data_dir::DataDir;
use super::{ClusterError, ClusterOptions};

const SCRIPT: &str = include_str!("watchdog.sh");

/// A handle on the watchdog; dropping it lets the watchdog stop Postgres and end.
#[derive(Debug)]
pub(super) struct Watchdog {
    /// `None` only while dropping.
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    child: Option<Child>,
    directory: DataDir,
}

impl Watchdog {
    /// Starts the watchdog, and Postgres not yet.
    pub(super) fn spawn(
        directory: DataDir,
        account: Option<&Account>,
        options: &ClusterOptions,
    ) -> Result<Self, ClusterError> {
        let mut child = command("sh", account)
            .args(["-c", SCRIPT, "leasehold-watchdog"])
            .args([options.bin_dir.as_path(), directory.path.as_path()])
            .arg(server_options(options))
            .arg(if options.durable { "" } else { "--no-sync" })
            .arg(if options.remove_on_exit { "remove" } else { "keep" })
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(ClusterError::io("run", "sh"))?;
        let orders = child.stdin.take();
        let answers = child.stdout.take().expect("standard output is piped");
        Ok(Self { orders, answers: BufReader::new(answers), child: Some(child), directory })
    }

    pub(super) fn data_dir(&self) -> &Path {
        &self.directory.path
    }

    /// Makes a cluster in the directory, which holds none.
    pub(super) fn init(&mut self) -> Result<(), ClusterError> {
        let log_start = self.directory.log_bytes();
        if !self.order("init")? {
            let log = self.directory.log_since(log_start);
            return Err(ClusterError::Init { data_dir: self.data_dir().to_owned(), log });
        }
        self.directory.adopt_stage()
    }

    /// Starts Postgres and waits until it takes connections.
    pub(super) fn start(&mut self, port: u16) -> Result<(), ClusterError> {
        let log_start = self.directory.log_bytes();
        if self.order(&format!("start {port}"))? {
            return Ok(());
        }
        let log = self.directory.log_since(log_start);
        Err(ClusterError::Start { data_dir: self.data_dir().to_owned(), port, log })
    }

    /// Stops Postgres in one of `pg_ctl`'s modes, if it runs, and waits until it has ended.
    pub(super) fn stop(&mut self, mode: &str) -> Result<(), ClusterError> {
        let log_start = self.directory.log_bytes();
        if self.order(&format!("stop {mode}"))? {
            return Ok(());
        }
        let log = self.directory.log_since(log_start);
        Err(ClusterError::Stop { data_dir: self.data_dir().to_owned(), log })
    }

    /// Gives one order and waits for its exit status; true for success.
    fn order(&mut self, order: &str) -> Result<bool, ClusterError> {
        let mut answer = String::new();
        let mut exchange = || {
            let orders = self.orders.as_mut().expect("open until dropped");
            writeln!(orders, "{order}")?;
            self.answers.read_line(&mut answer)
        };
        match exchange() {
            Ok(0) => Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof)),
            other => other,
        }
        .map_err(ClusterError::io("reach the watchdog of", &self.directory.path))?;
        Ok(answer.trim() == "0")
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(mut child) = self.child.take() {
            // Only so that no zombie stays behind; nobody waits for it.
            std::thread::spawn(move || child.wait());
        }
    }
}

/// Postgres's command line as one string for a shell, without the port. Ours come last: the last wins.
fn server_options(options: &ClusterOptions) -> String {
    let mut settings = vec![("unix_socket_directories", "")];
    if !options.durable {
        settings.push(("fsync", "off"));
    }
    settings.extend(options.settings.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    settings.push(("listen_addresses", "127.0.0.1"));
    let quoted = settings.iter().map(|(name, value)| {
        let setting = format!("{name}={value}").replace('\'', r"'\''");
        format!("-c '{setting}'")
    });
    quoted.collect::<Vec<_>>().join(" ")
}
