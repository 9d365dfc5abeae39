//! Processes of `leasehold serve`, which call a backend over HTTP: `leasehold stand-in`, or one of the caller's.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, Command},
    time::timeout,
};

use super::{
    Running, Work, clients,
    leasehold::{self, QUEUE},
};
use crate::meter::Meter;

/// The program, and how each of its processes is to serve.
#[derive(Clone)]
pub(crate) struct Program {
    path: PathBuf,
    /// Calls at once.
    concurrency: usize,
    /// Requests held ready for a worker; 0: as many as the concurrency.
    prefetch: usize,
}

/// A process of it.
pub(crate) struct Process {
    child: Child,
    pub(crate) id: u32,
}

/// Builds the program as this one was built, unless that has been done.
pub(crate) async fn build() -> anyhow::Result<Program> {
    let directory =
        std::env::current_exe()?.parent().map(Path::to_owned).context("it lies in a directory")?;
    let profile = match directory.file_name().and_then(|name| name.to_str()) {
        Some("debug") => "dev",
        Some(profile) => profile,
        None => bail!("{} is no directory of cargo's", directory.display()),
    };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--quiet", "--package", "leasehold-server", "--profile", profile])
        .args(["--target-dir".as_ref(), directory.parent().unwrap_or(&directory)])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .await
        .context("cargo cannot be run")?;
    ensure!(built.success(), "leasehold cannot be built");
    Ok(Program { path: directory.join("leasehold"), concurrency: 256, prefetch: 0 })
}

impl Program {
    /// The same with so many calls at once, and next to no requests held ready beside them.
    pub(crate) fn with_calls(&self, concurrency: usize) -> Self {
        Self { concurrency, prefetch: 1, ..self.clone() }
    }

    /// Starts `leasehold serve` for the queue `bench`.
    pub(crate) async fn serve(&self, url: &str, backend: &str) -> anyhow::Result<Process> {
        let config = format!(
            "[database]\nurl = \"{url}\"\n[http]\nlisten = \"\"\n[log]\nfilter = \"error\"\n\
             [[pools]]\nname = \"p\"\nconcurrency = {}\nprefetch = {}\n\
             backend = {{ url = \"{backend}/echo\", proxy_from_env = false }}\n\
             [[queues]]\nname = \"{QUEUE}\"\npool = \"p\"\n",
            self.concurrency, self.prefetch
        );
        let mut command = Command::new(&self.path);
        command.args(["serve", "--config", "/dev/stdin"]).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut process = self.process(&mut command)?;
        let mut input = process.child.stdin.take().context("its input is written")?;
        input.write_all(config.as_bytes()).await?;
        Ok(process)
    }

    /// Starts `leasehold stand-in`, and returns its URL.
    async fn stand_in(&self) -> anyhow::Result<(Process, String)> {
        let mut command = Command::new(&self.path);
        command.args(["stand-in", "--listen", "127.0.0.1:0"]).stdout(Stdio::piped());
        let mut process = self.process(&mut command)?;
        let output = process.child.stdout.take().context("its output is read")?;
        let url = timeout(Duration::from_secs(10), BufReader::new(output).lines().next_line()).await??;
        Ok((process, url.context("the stand-in says where it is")?))
    }

    fn process(&self, command: &mut Command) -> anyhow::Result<Process> {
        let child = command.kill_on_drop(true).spawn();
        let child = child.with_context(|| format!("{} cannot be run", self.path.display()))?;
        let id = child.id().context("it has just been started")?;
        Ok(Process { child, id })
    }
}

impl Process {
    pub(crate) async fn kill(mut self) -> anyhow::Result<()> {
        Ok(self.child.kill().await?)
    }
}

/// As many processes as workers.
pub(super) async fn start(
    program: &Program,
    url: &str,
    work: &Work,
    meter: &Arc<Meter>,
) -> anyhow::Result<Running> {
    let (stand_in, backend) = program.stand_in().await?;
    let mut serving = Vec::new();
    for _ in 0..work.workers {
        serving.push(program.serve(url, &backend).await?);
    }
    leasehold::settled(url, work.workers).await?;
    let others = Work { workers: 0, ..work.clone() };
    let mut running = clients::start::<leasehold::Client>(url, &others, meter).await?;
    running.processes.extend(serving.iter().map(|process| process.id));
    running.children.extend(serving.into_iter().chain([stand_in]).map(|process| process.child));
    Ok(running)
}
