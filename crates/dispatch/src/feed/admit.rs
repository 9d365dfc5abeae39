//! What the gate of a queue says of what a poll brought, and what becomes of it.

use std::{collections::HashMap, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};
use tokio::{task::JoinError, time::sleep};
use tokio_util::sync::CancellationToken;

use super::{Feeder, tenants::Fared};
use crate::{
    backend::ErrorCode,
    consumer::Polled,
    gate::{Decision, Failed, Gate, Patience, Turned},
    job::{Job, Verdict, decode, dropped, failed},
    pool::Pool,
};

/// A gate that takes longer is not waited for.
const DECIDE: Duration = Duration::from_millis(100);
/// A tenant whose gate failed is tried again after so long.
const GATE_FAILED: Duration = Duration::from_millis(250);

impl Feeder {
    /// Ends what has its outcome already, asks the gate about the rest all at once, and hands what passes to the
    /// pool. Says what the gate turned away.
    pub(super) async fn sort_out(&mut self, polled: Vec<Polled>) -> HandedBack {
        let queue = &self.served.name;
        metrics::counter!("leasehold_dispatches_total", "queue" => queue.clone())
            .increment(polled.len() as u64);
        metrics::gauge!("leasehold_in_flight", "queue" => queue.clone())
            .set(self.served.consumer.in_flight() as f64);
        let mut jobs = Vec::with_capacity(polled.len());
        for polled in polled {
            let decoded = decode(&polled.request.envelope);
            let (headers, metadata) = decoded.clone().unwrap_or_default();
            let job = Job::new(&self.served, polled, headers, metadata);
            match outcome_before_call(&job, decoded.err()) {
                Some(verdict) => job.settle(verdict),
                None => jobs.push(job),
            }
        }
        let decided = self.decide(jobs).await;
        self.follow_all(decided)
    }

    /// Asks the gate about all at once. Those it takes its time with are set aside: a key that somebody has locked
    /// holds up its own requests alone.
    async fn decide(&mut self, jobs: Vec<Job>) -> Vec<(Job, Decision)> {
        let mut tenants: Vec<_> = jobs.iter().map(|job| Some(job.polled.request.tenant.clone())).collect();
        let mut deciding: FuturesUnordered<_> =
            jobs.into_iter().enumerate().map(|(n, job)| decide(n, job).boxed()).collect();
        let mut decided = Vec::with_capacity(deciding.len());
        let patience = sleep(DECIDE);
        tokio::pin!(patience);
        loop {
            tokio::select! {
                biased;
                next = deciding.next() => match next {
                    Some(next) => decided.push(next),
                    None => break,
                },
                () = &mut patience => break,
            }
        }
        for n in decided.iter().map(|(n, ..)| *n) {
            tenants[n] = None;
        }
        tenants.iter().flatten().for_each(|tenant| self.tenants.waits(tenant));
        for slow in deciding {
            self.aside.spawn(async move {
                let (_, job, decision) = slow.await;
                Aside::Decided(Box::new((job, decision)))
            });
        }
        // In the order of the poll.
        decided.sort_unstable_by_key(|(n, ..)| *n);
        decided.into_iter().map(|(_, job, decision)| (job, decision)).collect()
    }

    fn follow_all(&mut self, decided: Vec<(Job, Decision)>) -> HandedBack {
        let mut fared: HashMap<String, Fared> = HashMap::new();
        let mut back = HandedBack::default();
        for (job, decision) in decided {
            let tenant = job.polled.request.tenant.clone();
            if self.follow(job, decision, fared.entry(tenant.clone()).or_default()) {
                match tenant.is_empty() {
                    true => back.without_tenant += 1,
                    false => back.of_tenants += 1,
                }
            }
        }
        fared.remove("");
        self.tenants.learn(fared);
        back
    }

    /// Does what the gate decided. True when the request was handed back.
    fn follow(&mut self, mut job: Job, decision: Decision, fared: &mut Fared) -> bool {
        decision.count(&*self.served.gate);
        match decision {
            Decision::Continue(pass) => {
                fared.passed += 1;
                job.passed(pass);
                self.pool.push(job);
                false
            }
            Decision::Drop(drop) => {
                let stamp = job.stamp();
                job.settle(dropped(stamp, drop));
                false
            }
            Decision::Wait(turned) => {
                fared.turned = Some(turned.clone());
                let tenant = job.polled.request.tenant.clone();
                // One of a tenant waits for all, and together they leave room for those who need not: the others
                // are left where they are, as if refused.
                let enough = self.tenants.is_waiting(&tenant) || self.aside.len() >= self.pool.prefetch() / 2;
                if enough && !tenant.is_empty() {
                    hand_back(job);
                    return true;
                }
                self.tenants.waits(&tenant);
                let wait = wait_at_gate(Arc::clone(&self.pool), job, turned, self.stop.clone());
                self.aside.spawn(async move {
                    wait.await;
                    Aside::Waited(tenant)
                });
                false
            }
            Decision::Refuse(turned) => {
                fared.turned = Some(turned);
                hand_back(job);
                true
            }
            Decision::Fail(failed) => {
                tracing::warn!(
                    queue = self.served.name,
                    gate = failed.by,
                    message = failed.message,
                    "a gate failed"
                );
                fared.turned = Some(Turned { after: Some(GATE_FAILED), ..Turned::by(failed.by) });
                hand_back(job);
                true
            }
        }
    }

    pub(super) fn look_aside(&mut self) {
        while let Some(ended) = self.aside.try_join_next() {
            self.come_back(ended);
        }
    }

    pub(super) fn come_back(&mut self, ended: Result<Aside, JoinError>) {
        match ended {
            Ok(Aside::Waited(tenant)) => self.tenants.waited(&tenant),
            Ok(Aside::Decided(decided)) => {
                self.tenants.waited(&decided.0.polled.request.tenant);
                self.follow_all(vec![*decided]);
            }
            Err(error) => {
                tracing::error!(error = &error as &dyn std::error::Error, "what was set aside is lost")
            }
        }
    }
}

/// How many of a poll the gate turned away.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HandedBack {
    /// The next poll would bring them again.
    pub(super) without_tenant: usize,
    /// The next poll leaves them alone.
    pub(super) of_tenants: usize,
}

/// What comes of a job that was set aside.
pub(super) enum Aside {
    /// It waited, and has gone its way; its tenant.
    Waited(String),
    /// The gate has decided.
    Decided(Box<(Job, Decision)>),
}

async fn decide(n: usize, job: Job) -> (usize, Job, Decision) {
    let decision = ask(&*job.served.gate, &job).await;
    (n, job, decision)
}

/// A gate that panics has failed: its request must not be left behind.
async fn ask(gate: &dyn Gate, job: &Job) -> Decision {
    let decided = AssertUnwindSafe(gate.decide(job.asked())).catch_unwind().await;
    decided.unwrap_or_else(|_| Decision::Fail(Failed { by: gate.name(), message: "it panicked".into() }))
}

/// Asks the gate until it decides. What waits is handed back when the feeder stops.
async fn wait_at_gate(pool: Arc<Pool>, mut job: Job, mut turned: Turned, stop: CancellationToken) {
    pool.watch(&mut job);
    let gate = Arc::clone(&job.served.gate);
    let lost = job.polled.lost.clone();
    let mut patience = Patience::default();
    loop {
        tokio::select! {
            () = patience.pause(&turned, &pool) => {}
            () = lost.cancelled() => return,
            () = stop.cancelled() => return hand_back(job),
        }
        if let Some(verdict) = job.outcome_while_waiting() {
            return job.settle(verdict);
        }
        let decision = ask(&*gate, &job).await;
        decision.count(&*gate);
        match decision {
            Decision::Wait(again) => turned = again,
            Decision::Continue(pass) => {
                job.passed(pass);
                return pool.push(job);
            }
            Decision::Drop(drop) => {
                let stamp = job.stamp();
                return job.settle(dropped(stamp, drop));
            }
            Decision::Refuse(_) => return hand_back(job),
            Decision::Fail(failed) => {
                tracing::warn!(gate = failed.by, message = failed.message, "a gate failed");
                return hand_back(job);
            }
        }
    }
}

/// It keeps its place, and the delivery does not count.
fn hand_back(job: Job) {
    let stamp = job.stamp();
    job.settle(Verdict::Back(stamp));
}

/// In the order of the contract: undecodable, deadline passed, cancelled, handed out too often.
fn outcome_before_call(job: &Job, undecodable: Option<String>) -> Option<Verdict> {
    let request = &job.polled.request;
    let (code, message) = if let Some(message) = undecodable {
        (ErrorCode::InvalidRequest, message)
    } else if request.expired {
        (ErrorCode::DeadlineExceeded, "the deadline passed before the dispatch".to_owned())
    } else if request.cancelled {
        (ErrorCode::Cancelled, "the request was cancelled".to_owned())
    } else if request.deliveries > job.served.max_deliveries() {
        let times = request.deliveries - 1;
        (ErrorCode::MaxDeliveriesExceeded, format!("handed out {times} times without an outcome"))
    } else {
        return None;
    };
    Some(Verdict::Done(failed(job.stamp(), code, message)))
}
