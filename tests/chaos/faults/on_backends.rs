//! The moods of the backend.

use std::time::Duration;

use rand::RngExt;
use tokio::time::sleep;

use crate::{
    backend::Backend,
    clock::Clock,
    schedule::{Deck, ON_BACKENDS, Schedule, Target},
};

pub(crate) async fn deal(backend: &Backend, schedule: &Schedule, clock: Clock, seed: u64, end: f64) {
    let mut deck = Deck::new(&ON_BACKENDS, seed);
    while deck.goes_on(clock, end) {
        sleep(Duration::from_millis(deck.rng.random_range(300..1500))).await;
        let fault = deck.deal();
        let time = Duration::from_millis(deck.rng.random_range(600..1800));
        let blow = async {
            backend.set_mood(Some(fault));
            sleep(time).await;
            backend.set_mood(None);
        };
        schedule.strike(fault, Target::Elsewhere, blow).await;
    }
}
