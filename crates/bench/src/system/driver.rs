//! A system in another language: a program that does all the work, and says on its standard output what came through.
//!
//! Its only argument is a JSON object: `url`, `payload` (bytes), `batch`, `rows` (of one enqueue), `producers`, `workers`
//! and `backlog` (requests under way at which producers pause). It prints `ready` once it is at work, and then, some
//! times a second, lines of `done` followed by how many microseconds each request took. It ends when its standard input does.

use std::{path::PathBuf, process::Stdio, sync::Arc, time::Duration};

use anyhow::{Context, bail};
use serde_json::json;
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    task::JoinSet,
    time::timeout,
};

use super::{
    Offer, Running, Work,
    fetch::{self, Package},
};
use crate::meter::Meter;

/// For a driver to install its system, and to end.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Driver {
    program: PathBuf,
    script: PathBuf,
}

impl Driver {
    pub(super) async fn fetch(package: Package) -> anyhow::Result<Self> {
        let directory = fetch::fetch(package).await?;
        Ok(match package {
            Package::Npm(name) => {
                // Modules are looked for from the script's own place.
                let script = directory.join("driver.mjs");
                std::fs::copy(fetch::sources(name).join("driver.mjs"), &script)?;
                Self { program: directory.join("node_modules/node/bin/node"), script }
            }
            Package::Venv(name) | Package::Wheel { name, .. } => {
                Self { program: directory.join("bin/python"), script: fetch::sources(name).join("driver.py") }
            }
        })
    }

    pub(super) async fn start(&self, url: &str, work: &Work, meter: &Arc<Meter>) -> anyhow::Result<Running> {
        let Offer::UpTo(backlog) = work.offer else { bail!("its driver knows one way to offer work") };
        let arguments = json!({
            "url": url,
            "payload": work.payload,
            "batch": work.batch,
            "rows": work.rows,
            "producers": work.producers,
            "workers": work.workers,
            "backlog": backlog,
        });
        let mut child = Command::new(&self.program)
            .arg(&self.script)
            .arg(arguments.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("{} cannot be run", self.program.display()))?;
        let processes = child.id().into_iter().collect();
        let mut lines = BufReader::new(child.stdout.take().context("its output is read")?).lines();
        let first = timeout(PATIENCE, lines.next_line()).await.context("the driver is not ready")??;
        if first.as_deref() != Some("ready") {
            bail!("the driver said {first:?} instead of ready");
        }
        let mut tasks = JoinSet::new();
        tasks.spawn(listen(child, lines, Arc::clone(meter)));
        Ok(Running { tasks, processes, children: Vec::new() })
    }
}

async fn listen(
    mut child: Child,
    mut lines: Lines<BufReader<ChildStdout>>,
    meter: Arc<Meter>,
) -> anyhow::Result<()> {
    loop {
        let line = tokio::select! {
            line = lines.next_line() => line?,
            () = meter.stop.cancelled() => break,
        };
        let Some(line) = line else { bail!("the driver ended by itself: {}", child.wait().await?) };
        let Some(micros) = line.strip_prefix("done") else { bail!("the driver said {line:?}") };
        meter.took(micros.split_whitespace().map(str::parse).collect::<Result<_, _>>()?);
    }
    drop(child.stdin.take());
    // What it still says is not counted, and must not block it.
    let ended = timeout(PATIENCE, async {
        while lines.next_line().await?.is_some() {}
        child.wait().await
    });
    ended.await.context("the driver does not end")??;
    Ok(())
}
