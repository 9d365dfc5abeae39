//! The product as it is deployed: processes of `leasehold serve` that call a backend over HTTP, as fast as it goes. And
//! how much memory a process takes for calls that last.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use anyhow::ensure;
use clap::Args;
use leasehold_store::{NewRequest, Store, StoreOptions};
use leasehold_testkit::stand_in::{Answer, StandIn, StandInOptions};
use tokio::time::{Instant, sleep};

use crate::{
    comparison::{Comparison, Point, Usual},
    cpu, site,
    system::{self, Name, Offer, Program, Work},
};

/// The workload's sizes.
#[derive(Args, Clone)]
pub(crate) struct Service {
    #[command(flatten)]
    comparison: Comparison,
    /// Processes; each is measured in turn.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2])]
    processes: Vec<usize>,
    /// Calls under way in one process while its memory is looked at, one after the other; 0: it is not. Each call is a
    /// connection: more than as many files must be allowed to be open (`ulimit -n`).
    #[arg(long, value_delimiter = ',', default_values_t = [10_000])]
    in_flight: Vec<usize>,
}

impl Service {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let (calls, files) = (self.in_flight.iter().max().copied().unwrap_or(0), cpu::open_files_limit()?);
        ensure!(
            calls + 500 < files,
            "{calls} calls want more open files than {files}: see ulimit -n, or --in-flight"
        );
        let usual = Usual { systems: &[Name::Service], warm_up: 5, seconds: 15, ..Usual::WHOLE };
        let point = |processes: &usize| Point {
            label: format!("{processes} of serve"),
            work: Work { workers: *processes, offer: Offer::UpTo(4000), ..Work::default() },
        };
        let points: Vec<Point> = self.processes.iter().map(point).collect();
        self.comparison.run("as fast as it goes, over HTTP", &usual, &points).await?;
        let program = system::build_program().await?;
        let payload = self.comparison.payload.first().copied().unwrap_or(Work::default().payload);
        for in_flight in self.in_flight.iter().filter(|in_flight| **in_flight > 0) {
            memory(&program, *in_flight, payload).await?;
        }
        Ok(())
    }
}

/// What a process of `serve` takes while so many of its calls last.
async fn memory(program: &Program, in_flight: usize, payload: usize) -> anyhow::Result<()> {
    const PATIENCE: Duration = Duration::from_secs(120);
    let mut cluster = site::start(&[]).await?;
    cluster.create_database("memory").await?;
    let url = cluster.url("memory");
    let store = Store::open(&url, &StoreOptions::default())?;
    store.migrate().await?;
    let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let stand_in = StandIn::start(anywhere, StandInOptions::default()).await?;
    stand_in.respond_with(|_| Answer::Hang);
    let process = program.with_calls(in_flight).serve(&url, &stand_in.base_url()).await?;
    let until = async |calls: usize| {
        let started = Instant::now();
        while stand_in.in_flight() < calls {
            let found = stand_in.in_flight();
            ensure!(started.elapsed() < PATIENCE, "{found} of {calls} calls are under way");
            sleep(Duration::from_millis(50)).await;
        }
        // Whatever it does besides is done.
        sleep(Duration::from_secs(1)).await;
        cpu::resident_bytes(process.id)
    };
    let request = NewRequest::new("bench", vec![b'x'; payload]);
    store.enqueue(std::slice::from_ref(&request)).await?;
    let before = until(1).await?;
    for chunk in vec![request; in_flight - 1].chunks(1000) {
        store.enqueue(chunk).await?;
    }
    let after = until(in_flight).await?;
    process.kill().await?;
    stand_in.stop().await;
    store.close().await;
    cluster.stop().await?;
    let each = after.saturating_sub(before) as f64 / (in_flight.max(2) - 1) as f64;
    println!(
        "memory of serve: {:.1} MB with 1 call under way, {:.1} MB with {in_flight}: {:.1} MB for 10,000 of {payload} B",
        before as f64 / 1e6,
        after as f64 / 1e6,
        each * 10_000.0 / 1e6
    );
    Ok(())
}
