//! The protocols of ARCHITECTURE.md as state machines that a model checker walks through in every order.
//!
//! A statement is several steps here: it is sent, it looks, it commits, its answer comes. Between any two of them
//! anything else may happen, and an answer may never come. What a model leaves out is said at its head. Properties
//! begin with the number of the invariant that they stand for.
//!
//! What the product decides in a process is its own code here, as far as it can be had without waiting: the lease
//! model's owners keep the product's ledger, and the quota model's holders its account. The rest, SQL above all, is written a
//! second time and small; each model says at its head what. A [`Fault`] breaks one rule, so that each property is known to be able to fail.

pub mod bounds;
pub mod fault;
pub mod lease;
pub mod plant;
pub mod quota;
pub mod verdict;
pub mod window;

pub use fault::Fault;
pub use plant::Plant;
pub use verdict::{Verdict, check, refute};

/// Nothing in a model is larger.
fn small<T: TryInto<u8>>(number: T) -> u8 {
    number.try_into().unwrap_or(u8::MAX)
}
