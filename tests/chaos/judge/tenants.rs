//! Invariant 4: calls of a tenant at once, as far as the leases on their slots are kept, and in a second.

use std::collections::BTreeMap;

use crate::{
    backend::Call,
    evidence::Evidence,
    world::{TENANT_RATE, TENANT_SLOTS},
};

/// A call that was given up has ended some time before the backend sees it.
const NOTICE: f64 = 0.5;
/// A trailing time in which admissions are counted as calls, and by how much calls may be later than their admission.
const SPAN: f64 = 4.0;
const LATENESS: f64 = 1.0;

pub(super) fn violations(evidence: &Evidence) -> Vec<String> {
    let lapses = lapses(evidence);
    let mut tenants: BTreeMap<&str, Vec<&Call>> = BTreeMap::new();
    for call in &evidence.calls {
        let submission = evidence.submissions.get(&call.id).map(|(submission, _)| submission);
        if let Some(tenant) = submission.and_then(|submission| submission.tenant.as_deref()) {
            tenants.entry(tenant).or_default().push(call);
        }
    }
    let mut found = Vec::new();
    for (tenant, calls) in tenants {
        for call in &calls {
            let held = |other: &&&Call| other.start <= call.start && call.start < end_of(other);
            let counts = |other: &&&Call| !has_lapsed(evidence, &lapses, other, call.start);
            let at_once: Vec<_> = calls.iter().filter(held).filter(counts).collect();
            if at_once.len() > TENANT_SLOTS {
                found.push(format!("{} calls of {tenant} at once: {at_once:#?}", at_once.len()));
            }
        }
        let quiet: Vec<f64> = calls
            .iter()
            .filter(|call| !evidence.is_disturbed(&call.process, call.start))
            .map(|call| call.start)
            .collect();
        let most = TENANT_RATE * 5;
        for times in quiet.windows(most + 1) {
            if times[most] - times[0] < SPAN - LATENESS {
                found.push(format!("{} calls of {tenant} in {:.3} s", most + 1, times[most] - times[0]));
            }
        }
    }
    found
}

fn end_of(call: &Call) -> f64 {
    if call.is_answered { call.end } else { call.end - NOTICE }
}

/// When leases on slots lapsed, by the process that had them: others counted them no more from then on.
fn lapses(evidence: &Evidence) -> BTreeMap<&str, Vec<f64>> {
    let mut lapses: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for note in &evidence.holders {
        if note.lapsed || (note.gone && note.at > note.expires) {
            let has_it = |owner: &String| note.name.starts_with(&format!("{owner}/"));
            let life = evidence.lives.iter().find(|life| life.owner.as_ref().is_some_and(has_it));
            if let Some(life) = life {
                lapses.entry(&life.process).or_default().push(note.at);
            }
        }
    }
    lapses
}

/// Whether the slot of a call was counted no more at a time.
fn has_lapsed(evidence: &Evidence, lapses: &BTreeMap<&str, Vec<f64>>, call: &Call, at: f64) -> bool {
    let lapsed = lapses.get(&*call.process).map_or(&[][..], |lapses| lapses);
    lapsed.iter().any(|lapse| {
        // Begun with a slot that had been granted before, by one who could not know.
        *lapse <= at && call.start <= evidence.knows_of_lapse(&call.process, *lapse)
    })
}
