//! The examples of the manual.
