//! What walks did: counted, so that they cannot quietly come to nothing.

use std::{collections::BTreeMap, fmt};

use crate::step::{How, Kind, Step};

#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) walks: u64,
    /// Steps of a kind: how many, and how many of them found something to do.
    pub(crate) steps: BTreeMap<&'static str, (u64, u64)>,
    /// What happened to statements of a kind.
    pub(crate) faults: BTreeMap<(&'static str, Kind), u64>,
    /// Everything else.
    pub(crate) counts: BTreeMap<&'static str, u64>,
}

impl Tally {
    pub(crate) fn count(&mut self, what: &'static str, by: usize) {
        *self.counts.entry(what).or_default() += by as u64;
    }

    pub(crate) fn step(&mut self, step: Step, took_effect: bool) {
        let count = self.steps.entry(name(step)).or_default();
        count.0 += 1;
        count.1 += u64::from(took_effect);
    }

    pub(crate) fn fault(&mut self, how: How) {
        let fault = match how {
            How::Well => return,
            How::LoseReply(kind) => ("reply lost", kind),
            How::FailBefore(kind) => ("failed before", kind),
            How::HoldRequest(kind) => ("request held", kind),
            How::HoldReply(kind) => ("reply held", kind),
        };
        *self.faults.entry(fault).or_default() += 1;
    }

    pub(crate) fn faults(&self, what: &str) -> u64 {
        self.faults.iter().filter(|((fault, _), _)| *fault == what).map(|(_, count)| count).sum()
    }

    pub(crate) fn fault_of(&self, what: &'static str, kind: Kind) -> u64 {
        self.faults.get(&(what, kind)).copied().unwrap_or(0)
    }

    pub(crate) fn of(&self, what: &str) -> u64 {
        self.counts.get(what).copied().unwrap_or(0)
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.walks += other.walks;
        for (step, (all, effective)) in &other.steps {
            let count = self.steps.entry(step).or_default();
            (count.0, count.1) = (count.0 + all, count.1 + effective);
        }
        for (fault, count) in &other.faults {
            *self.faults.entry(*fault).or_default() += count;
        }
        for (what, count) in &other.counts {
            *self.counts.entry(what).or_default() += count;
        }
    }

    /// Kinds of steps that never found anything to do.
    pub(crate) fn idle_steps(&self) -> Vec<&'static str> {
        self.steps.iter().filter(|(_, (_, effective))| *effective == 0).map(|(step, _)| *step).collect()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps: u64 = self.steps.values().map(|(all, _)| all).sum();
        let effective: u64 = self.steps.values().map(|(_, effective)| effective).sum();
        writeln!(f, "{} walks, {steps} steps, {effective} of them with effect:", self.walks)?;
        for (step, (all, effective)) in &self.steps {
            writeln!(f, "  {step:14} {effective:7} of {all}")?;
        }
        for what in ["reply lost", "failed before", "request held", "reply held"] {
            write!(f, "{what}: {}", self.faults(what))?;
            for ((fault, kind), count) in &self.faults {
                if *fault == what {
                    write!(f, "  {kind:?} {count}")?;
                }
            }
            writeln!(f)?;
        }
        let counts: Vec<_> = self.counts.iter().map(|(what, count)| format!("{what} {count}")).collect();
        write!(f, "{}", counts.join(", "))
    }
}

fn name(step: Step) -> &'static str {
    match step {
        Step::Enqueue { .. } => "enqueue",
        Step::Cancel { .. } => "cancel",
        Step::Join { .. } => "join",
        Step::Poll { ended: false, .. } => "poll",
        Step::Poll { ended: true, .. } => "poll ended",
        Step::Ack { .. } => "ack",
        Step::Retry { .. } => "retry",
        Step::Defer { .. } => "defer",
        Step::HandBack { .. } => "hand back",
        Step::Abandon { .. } => "abandon",
        Step::Rebalance { .. } => "rebalance",
        Step::Stop { .. } => "stop",
        Step::Close { .. } => "close",
        Step::Crash { .. } => "crash",
        Step::Sever { .. } => "sever",
        Step::Lapse { .. } => "lapse",
        Step::Forget => "forget",
        Step::Oust { .. } => "oust",
        Step::MakeDue => "make due",
        Step::PassDeadline { .. } => "pass deadline",
        Step::LockRequest { .. } => "lock request",
        Step::LockPartition { .. } => "lock partition",
        Step::Unlock => "unlock",
        Step::Release { .. } => "release",
        Step::GiveUp { .. } => "give up",
    }
}
