//! Runs the checker, and says what came out.

use std::{
    fmt::Debug,
    hash::Hash,
    time::{Duration, Instant},
};

use stateright::{Checker, Expectation, HasDiscoveries, Model, Property};

/// A model that the checker can walk through.
pub trait Protocol:
    Model<
        State: Clone + Debug + Hash + PartialEq + Send + Sync,
        Action: Clone + Debug + PartialEq + Send + Sync,
    > + Send
    + Sync
    + 'static
{
}

impl<M> Protocol for M where
    M: Model<
            State: Clone + Debug + Hash + PartialEq + Send + Sync,
            Action: Clone + Debug + PartialEq + Send + Sync,
        > + Send
        + Sync
        + 'static
{
}

/// What a walk through all states found.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// States reached, each as often as there are ways to it from a neighbour.
    pub generated: usize,
    /// States.
    pub unique: usize,
    /// Steps of the longest of the shortest ways.
    pub depth: usize,
    /// How long it took.
    pub elapsed: Duration,
    /// Properties that hold, in the model's order; where some do not, only what is known to be possible.
    pub held: Vec<&'static str>,
    /// Properties that do not, each with the steps to a counterexample; none for what should be possible and is not. The
    /// walk ends at the first counterexample, so there may be more.
    pub failed: Vec<(&'static str, Vec<String>)>,
}

/// Walks through all states of a model, or to the first in which a property fails.
pub fn check<M: Protocol>(model: M) -> Verdict {
    judge(model, HasDiscoveries::AnyFailures)
}

/// Walks until `property` fails: the steps to a counterexample. None: it holds.
pub fn refute<M: Protocol>(model: M, property: &'static str) -> Option<Vec<String>> {
    let verdict = judge(model, HasDiscoveries::AnyOf([property].into()));
    verdict.failed.into_iter().find(|(name, _)| *name == property).map(|(_, steps)| steps)
}

fn judge<M: Protocol>(model: M, until: HasDiscoveries) -> Verdict {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let began = Instant::now();
    let checker = model.checker().threads(threads).finish_when(until).spawn_bfs().join();
    let (mut held, mut failed) = (Vec::new(), Vec::new());
    let mut discoveries = checker.discoveries();
    let properties = checker.model().properties();
    let is_possibility = |property: &Property<M>| property.expectation == Expectation::Sometimes;
    let whole = properties.iter().all(|p| is_possibility(p) || !discoveries.contains_key(p.name));
    for property in &properties {
        match (is_possibility(property), discoveries.remove(property.name)) {
            (true, Some(_)) => held.push(property.name),
            (false, Some(path)) => {
                let steps = path.into_actions().iter().map(|action| format!("{action:?}")).collect();
                failed.push((property.name, steps));
            }
            (true, None) if whole => failed.push((property.name, Vec::new())),
            (false, None) if whole => held.push(property.name),
            // Not known: the walk has ended early.
            (_, None) => {}
        }
    }
    Verdict {
        generated: checker.state_count(),
        unique: checker.unique_state_count(),
        depth: checker.max_depth(),
        elapsed: began.elapsed(),
        held,
        failed,
    }
}
