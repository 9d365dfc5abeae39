//! The protocols of ARCHITECTURE.md as state machines that a model checker walks through in every order.
//!
//! A statement is several steps here: it is sent, it looks, it commits, its answer comes. Between any two of them
//! anything else may happen, and an answer may never come. What a model leaves out is said at its head. Properties
//! begin with the number of the invariant that they stand for.
//!
//! The models share no code with the product: they are what its statements and its bookkeeping mean, written a second
//! time and small. A [`Fault`] breaks one rule, so that each property is known to be able to fail.

pub mod bounds;
pub mod fault;
pub mod lease;
pub mod quota;
pub mod verdict;
pub mod window;

pub use fault::Fault;
pub use verdict::{Verdict, check, refute};
