//! Who is next: the requests a pool holds ready, by lane and queue.

use std::collections::VecDeque;

use rand::{Rng, RngExt};

use crate::config::{Class, MergePolicy, Tier};

/// Lanes by priority, and queues within a lane.
#[derive(Debug)]
pub(crate) struct Lanes<T> {
    policy: MergePolicy,
    lanes: Vec<Lane<T>>,
    waiting: Vec<usize>,
}

#[derive(Debug)]
struct Lane<T> {
    queues: Vec<VecDeque<T>>,
    next: usize,
    waiting: usize,
}

/// 3 × class + tier: reserved before overflow, interactive before async before batch.
pub(crate) fn lane_of(class: Class, tier: Tier) -> usize {
    let class = match class {
        Class::Reserved => 0,
        Class::Overflow => 1,
    };
    let tier = match tier {
        Tier::Interactive => 0,
        Tier::Async => 1,
        Tier::Batch => 2,
    };
    3 * class + tier
}

impl<T> Lanes<T> {
    pub(crate) fn new(policy: MergePolicy, queues: usize) -> Self {
        let lanes = match policy {
            MergePolicy::RandomRobin => 1,
            MergePolicy::TierPriority => 6,
        };
        let lane = || Lane { queues: (0..queues).map(|_| VecDeque::new()).collect(), next: 0, waiting: 0 };
        Self { policy, lanes: (0..lanes).map(|_| lane()).collect(), waiting: vec![0; queues] }
    }

    /// How many of a queue wait.
    pub(crate) fn waiting(&self, queue: usize) -> usize {
        self.waiting[queue]
    }

    pub(crate) fn push(&mut self, queue: usize, lane: usize, item: T) {
        let lane = match self.policy {
            MergePolicy::RandomRobin => 0,
            MergePolicy::TierPriority => lane,
        };
        self.lanes[lane].queues[queue].push_back(item);
        self.lanes[lane].waiting += 1;
        self.waiting[queue] += 1;
    }

    /// The next one: from the first lane that has any; there, round robin, or from a random queue on.
    pub(crate) fn pop(&mut self, rng: &mut impl Rng) -> Option<T> {
        let lane = self.lanes.iter_mut().find(|lane| lane.waiting > 0)?;
        let count = lane.queues.len();
        let start = match self.policy {
            MergePolicy::RandomRobin => rng.random_range(0..count),
            MergePolicy::TierPriority => lane.next,
        };
        let queue = (start..start + count).map(|n| n % count).find(|n| !lane.queues[*n].is_empty())?;
        lane.next = (queue + 1) % count;
        lane.waiting -= 1;
        self.waiting[queue] -= 1;
        lane.queues[queue].pop_front()
    }

    /// Takes those that `pick` picks, wherever they stand.
    pub(crate) fn take_if(&mut self, pick: impl Fn(&T) -> bool) -> Vec<T> {
        let mut taken = Vec::new();
        for lane in &mut self.lanes {
            for (place, queue) in lane.queues.iter_mut().enumerate() {
                let (picked, kept): (VecDeque<T>, VecDeque<T>) = queue.drain(..).partition(&pick);
                *queue = kept;
                lane.waiting -= picked.len();
                self.waiting[place] -= picked.len();
                taken.extend(picked);
            }
        }
        taken
    }

    /// Empties all lanes.
    pub(crate) fn take_all(&mut self) -> Vec<T> {
        self.waiting.fill(0);
        let mut all = Vec::new();
        for lane in &mut self.lanes {
            lane.waiting = 0;
            all.extend(lane.queues.iter_mut().flat_map(|queue| queue.drain(..)));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use rand::{SeedableRng, rngs::StdRng};

    use super::*;

    #[test]
    fn random_robin_is_fair_across_queues_however_long_they_are() {
        let mut rng = StdRng::seed_from_u64(7);
        let mut lanes = Lanes::new(MergePolicy::RandomRobin, 2);
        (0..10_000).for_each(|_| lanes.push(0, 0, 0));
        (0..1_000).for_each(|_| lanes.push(1, 0, 1));
        let of_second = (0..1_000).filter_map(|_| lanes.pop(&mut rng)).filter(|queue| *queue == 1).count();
        assert!((400..=600).contains(&of_second), "{of_second} of 1000");
        assert_eq!(lanes.waiting(0) + lanes.waiting(1), 10_000);
    }

    #[test]
    fn tier_priority_serves_lanes_strictly_and_queues_in_turn() {
        let mut rng = StdRng::seed_from_u64(7);
        let mut lanes = Lanes::new(MergePolicy::TierPriority, 2);
        let (low, high) =
            (lane_of(Class::Overflow, Tier::Batch), lane_of(Class::Reserved, Tier::Interactive));
        for n in 0..2 {
            lanes.push(0, low, format!("a{n}"));
            lanes.push(1, low, format!("b{n}"));
        }
        lanes.push(0, lane_of(Class::Overflow, Tier::Interactive), "c".to_owned());
        lanes.push(1, high, "first".to_owned());
        let order: Vec<String> = std::iter::from_fn(|| lanes.pop(&mut rng)).collect();
        assert_eq!(order, ["first", "c", "a0", "b0", "a1", "b1"]);
    }
}
