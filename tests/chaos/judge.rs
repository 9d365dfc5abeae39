//! What must be true in the end, whatever struck. Each finding is a violation, in words.

mod calls;
mod groups;
mod outcomes;
mod tenants;
#[cfg(test)]
mod tests;

use crate::evidence::Evidence;

pub(crate) use calls::late;
pub(crate) use outcomes::{doubled, lost};

pub(crate) fn violations(evidence: &Evidence) -> Vec<String> {
    [
        outcomes::violations(evidence),
        calls::violations(evidence),
        groups::violations(evidence),
        tenants::violations(evidence),
    ]
    .concat()
}
