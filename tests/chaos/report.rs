//! The table: what struck, how often, who was in play, and what became of them.

use std::{collections::BTreeSet, fmt::Write as _};

use crate::{
    evidence::Evidence,
    judge::{doubled, late, lost},
    schedule::{Fault, Strike},
};

/// Of the whole run.
pub(crate) struct Totals {
    pub(crate) seed: u64,
    pub(crate) seconds: f64,
    pub(crate) repeats: i64,
    /// Processes that found no database at their start, and ended.
    pub(crate) ended: usize,
}

pub(crate) fn table(evidence: &Evidence, totals: &Totals) -> String {
    let (lost, doubled) = (lost(evidence), doubled(evidence));
    let mut table = format!(
        "{:<26} {:>7} {:>9} {:>9} {:>6} {:>8}\n",
        "fault", "strikes", "in play", "most", "lost", "doubled"
    );
    for fault in Fault::all() {
        let strikes: Vec<&Strike> = evidence.strikes.iter().filter(|strike| strike.fault == fault).collect();
        let in_play: Vec<BTreeSet<&str>> = strikes.iter().map(|strike| in_play(evidence, strike)).collect();
        let all: BTreeSet<&str> = in_play.iter().flatten().copied().collect();
        let of = |ids: &BTreeSet<String>| ids.iter().filter(|id| all.contains(&***id)).count();
        let _ = writeln!(
            table,
            "{:<26} {:>7} {:>9} {:>9} {:>6} {:>8}",
            fault.name(),
            strikes.len(),
            in_play.iter().map(BTreeSet::len).sum::<usize>(),
            in_play.iter().map(BTreeSet::len).max().unwrap_or_default(),
            of(&lost),
            of(&doubled)
        );
    }
    let committed = evidence.committed().count();
    let called: BTreeSet<&str> = evidence.calls.iter().map(|call| &*call.id).collect();
    let results = evidence.results.values().flatten();
    let succeeded = results.clone().filter(|result| result.code.is_none()).count();
    let killed = evidence.strikes.iter().filter(|strike| strike.fault == Fault::Kill).count();
    let _ = write!(
        table,
        "seed {}, {:.0} s: {committed} requests committed, {} not; {} transactions repeated; {} calls, {} of them \
         repeats, {} of these after the outcome; {} messages handled; {killed} kills, {} processes, {} of them could not start; {} results, {succeeded} \
         successes, {} dead letters; lost {}, doubled {}",
        totals.seed,
        totals.seconds,
        evidence.submissions.len() - committed,
        totals.repeats,
        evidence.calls.len(),
        evidence.calls.len() - called.len(),
        late(evidence).len(),
        evidence.handled.len(),
        evidence.lives.len(),
        totals.ended,
        results.count(),
        evidence.dead.values().sum::<i64>(),
        lost.len(),
        doubled.len()
    );
    table
}

/// Accepted before the fault was over, and not finished when it struck; what is lost counts for ever.
fn in_play<'a>(evidence: &'a Evidence, strike: &Strike) -> BTreeSet<&'a str> {
    let committed = evidence.committed();
    let in_play = committed.filter(|submission| match evidence.results.get(&submission.id) {
        None => true,
        Some(results) => {
            results.iter().any(|result| result.enqueued <= strike.to && result.at >= strike.from)
        }
    });
    in_play.map(|submission| &*submission.id).collect()
}
