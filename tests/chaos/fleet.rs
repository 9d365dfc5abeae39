//! The processes that serve, each behind a proxy of its own, and their lives.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use leasehold_testkit::{cluster::Cluster, proxy::FaultProxy};

use crate::{
    clock::Clock,
    directory::Directory,
    member::Member,
    process::{Running, leasehold},
    reading::{get, logged},
    world::server_url,
};

/// A process's life: by this name the backend knows it, by that one the database.
#[derive(Clone, Debug)]
pub(crate) struct Life {
    pub(crate) server: usize,
    pub(crate) process: String,
    /// None: it ended before it had dispatched anything.
    pub(crate) owner: Option<String>,
}

/// A place for one process after the other.
pub(crate) struct Server {
    pub(crate) index: usize,
    pub(crate) proxy: Arc<FaultProxy>,
    member: Member,
    incarnations: Arc<AtomicUsize>,
    past: Vec<Life>,
    /// Processes that ended by themselves: at their start, for want of a database.
    pub(crate) ended: usize,
    clock: Clock,
}

impl Server {
    pub(crate) async fn start(
        index: usize,
        cluster: &Cluster,
        directory: &Directory,
        config: &str,
        clock: Clock,
    ) -> Self {
        let proxy = Arc::new(FaultProxy::start(cluster.address()).await);
        plant(&proxy);
        let url = proxy.url(&server_url(cluster));
        let incarnations = Arc::new(AtomicUsize::new(0));
        let (count, config, place) =
            (Arc::clone(&incarnations), config.to_owned(), directory.path().to_owned());
        let mut member = Member::start(move || {
            let mut command = leasehold(&["serve", "--config", &config]);
            let incarnation = count.fetch_add(1, Ordering::SeqCst) + 1;
            command.current_dir(&place).env("DATABASE_URL", &url).env("LEASEHOLD_LOG_FORMAT", "json");
            command.env("CHAOS_PROCESS", name_of(index, incarnation));
            command
        });
        member.running.wait_for("it dispatches", |process| logged(process, "owner")).await;
        Self { index, proxy, member, incarnations, past: Vec::new(), ended: 0, clock }
    }

    pub(crate) fn running(&mut self) -> &mut Running {
        &mut self.member.running
    }

    /// A new process in the place of one that has ended.
    pub(crate) fn start_again(&mut self) {
        self.past.push(self.life());
        self.member.start_again();
    }

    /// So that a process which an unreachable database ended at its start is there again.
    pub(crate) fn keep_up(&mut self) {
        if self.member.running.has_ended() {
            let last = self.member.running.stderr.lines().last().cloned().unwrap_or_default();
            eprintln!("{:8.3}: {} ended by itself: {last}", self.clock.now(), self.life().process);
            let has_served = self.life().owner.is_some();
            assert!(!has_served, "it had served: {:#?}", self.member.running.stderr.lines());
            self.ended += 1;
            self.start_again();
        }
    }

    /// Asks it to stop; it does, and all went well.
    pub(crate) async fn stop(&mut self) {
        if self.member.running.has_ended() {
            return;
        }
        self.member.running.signal("TERM").await;
        let code = self.member.running.ended().await.code();
        let has_served = self.life().owner.is_some();
        assert!(!has_served || code == Some(0), "{code:?}: {:#?}", self.member.running.stderr.lines());
    }

    /// Of the process that is there.
    pub(crate) fn life(&self) -> Life {
        let incarnation = self.incarnations.load(Ordering::SeqCst);
        Life {
            server: self.index,
            process: name_of(self.index, incarnation),
            owner: logged(&self.member.running, "owner"),
        }
    }

    pub(crate) fn lives(&self) -> Vec<Life> {
        let mut lives = self.past.clone();
        lives.push(self.life());
        lives
    }

    /// Whether it says that it is well.
    pub(crate) async fn is_ready(&mut self) -> bool {
        self.keep_up();
        match self.http() {
            Some(http) => get(&format!("{http}/readyz")).await.0 == 200,
            None => false,
        }
    }

    fn http(&self) -> Option<String> {
        Some(format!("http://{}", logged(&self.member.running, "address")?))
    }

    /// What it says it has in flight, over all queues.
    pub(crate) async fn in_flight(&self) -> f64 {
        let http = self.http().expect("it listens");
        let (status, metrics) = get(&format!("{http}/metrics")).await;
        assert_eq!(status, 200, "{metrics}");
        let gauges = metrics.lines().filter(|line| line.starts_with("leasehold_in_flight{"));
        gauges.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    }

    /// Its memory in use, in bytes.
    pub(crate) fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.member.running.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it has memory");
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }
}

fn name_of(server: usize, incarnation: usize) -> String {
    format!("s{server}.{incarnation}")
}

/// A fault in the product's SQL, if one is asked for: `LEASEHOLD_CHAOS_PLANT=marker|part|other`, as
/// [`FaultProxy::rewrite`] takes it.
fn plant(proxy: &FaultProxy) {
    let Ok(plant) = std::env::var("LEASEHOLD_CHAOS_PLANT") else { return };
    let parts: Vec<&str> = plant.splitn(3, '|').collect();
    let [marker, part, other] = parts[..] else { panic!("marker|part|other, not {plant}") };
    proxy.rewrite(marker, part, other);
}
