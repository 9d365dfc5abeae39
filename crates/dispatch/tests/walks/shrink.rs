//! A walk that fails is shortened, for as long as something fails.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;

use crate::{draw::Route, site::Site, step::Step, tally::Tally, walk::Walk};

/// What a walk came to.
pub(crate) struct Walked {
    /// The steps that found something to do.
    pub(crate) steps: Vec<Step>,
    pub(crate) tally: Tally,
    /// What is not allowed, if that was seen.
    pub(crate) violation: Option<String>,
}

async fn take(walk: &mut Walk<'_>, route: &mut Route, taken: &mut Vec<Step>) -> Result<(), String> {
    loop {
        let choice = route.next();
        if choice.is_empty() {
            return walk.finish().await;
        }
        for step in choice {
            taken.push(step);
            if walk.step(step).await? {
                break;
            }
            taken.pop();
        }
    }
}

/// Goes the route in a fresh queue, to the end. What the site has on its way after a failure is forgotten.
pub(crate) async fn walk(site: &mut Site, mut route: Route) -> Walked {
    let queue = site.queue().await;
    let mut steps = Vec::new();
    let mut walk = Walk::start(site, queue).await;
    let walked = AssertUnwindSafe(take(&mut walk, &mut route, &mut steps)).catch_unwind().await;
    let violation = match walked {
        Ok(walked) => walked.err(),
        Err(panic) => Some(panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "a panic".into())),
    };
    walk.clear().await;
    let tally = std::mem::take(&mut walk.tally);
    drop(walk);
    if violation.is_some() {
        site.set_up().await;
    }
    site.sweep().await;
    Walked { steps, tally, violation }
}

/// As few of the steps as fail, chunks left out first, then single ones; and what is found then.
pub(crate) async fn shrink(site: &mut Site, mut steps: Vec<Step>, mut found: String) -> (Vec<Step>, String) {
    let mut chunk = steps.len().div_ceil(2);
    while chunk > 0 && !steps.is_empty() {
        let (mut from, mut shorter) = (0, false);
        while from < steps.len() {
            let to = (from + chunk).min(steps.len());
            let fewer: Vec<Step> = [&steps[..from], &steps[to..]].concat();
            let walked = walk(site, Route::given(fewer)).await;
            match walked.violation {
                Some(violation) => (steps, found, shorter) = (walked.steps, violation, true),
                None => from = to,
            }
        }
        if !(chunk == 1 && shorter) {
            chunk /= 2;
        }
    }
    (steps, found)
}

/// As Rust, to be pasted into `pinned.rs`.
pub(crate) fn as_code(steps: &[Step]) -> String {
    let line = |step: &Step| {
        let text = format!("{step:?}");
        let text = text.replace("how: Well", "how: How::Well");
        let text = ["LoseReply(", "FailBefore(", "HoldRequest(", "HoldReply("]
            .iter()
            .fold(text, |text, how| text.replace(how, &format!("How::{how}Kind::")));
        let text = text.replace("whose: ", "whose: Whose::");
        format!("    Step::{text},\n")
    };
    steps.iter().map(line).collect()
}
