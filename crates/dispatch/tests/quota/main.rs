//! The quota client against a real Postgres, with replies lost on the way.

mod clients;
mod lost_replies;
mod random;
mod site;
