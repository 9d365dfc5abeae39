//! How walks are drawn from seeds: mostly any step, at times the beginning of something rare.

use std::collections::VecDeque;

use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};

use crate::{
    motif,
    step::{How, Kind, Pick, SLOTS, Step, Whose},
};

/// Where steps come from: a seed, or a list. Either way a walk is the list of those that found something to do.
pub(crate) enum Route {
    Drawn(Box<Draw>),
    Given(std::vec::IntoIter<Step>),
}

/// What is drawn from a seed.
pub(crate) struct Draw {
    rng: StdRng,
    /// How often things go wrong.
    temper: f64,
    /// Requests: where there are few, more happens to each.
    slots: u8,
    left: usize,
    /// How often the next step is that of the motif that has begun.
    devotion: f64,
    /// Of the motif that has begun.
    to_come: VecDeque<Step>,
}

/// How often another step is drawn where one finds nothing to do.
const DRAWS: usize = 30;

impl Route {
    /// Of `steps`, or from 20 to 60.
    pub(crate) fn of_seed(seed: u64, steps: Option<usize>) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let left = steps.unwrap_or_else(|| rng.random_range(20..=60));
        let temper = *[0.15, 0.35, 0.6].choose(&mut rng).unwrap();
        let slots = *[1, 3, 3, SLOTS].choose(&mut rng).unwrap();
        let devotion = *[0.6, 0.8, 0.95].choose(&mut rng).unwrap();
        Self::Drawn(Box::new(Draw { rng, temper, slots, left, devotion, to_come: VecDeque::new() }))
    }

    pub(crate) fn given(steps: Vec<Step>) -> Self {
        Self::Given(steps.into_iter())
    }

    /// Steps, each to be tried if the one before found nothing to do; empty at the end.
    pub(crate) fn next(&mut self) -> Vec<Step> {
        match self {
            Self::Drawn(draw) => draw.next(),
            Self::Given(steps) => steps.next().into_iter().collect(),
        }
    }
}

impl Draw {
    fn next(&mut self) -> Vec<Step> {
        if self.left == 0 {
            return Vec::new();
        }
        self.left -= 1;
        if self.to_come.is_empty() && self.rng.random_bool(0.15) {
            self.to_come = motif::draw(&mut self.rng, self.temper, self.slots).into();
        }
        let begun = (!self.to_come.is_empty() && self.rng.random_bool(self.devotion))
            .then(|| self.to_come.pop_front());
        let drawn = (0..DRAWS).map(|_| Step::draw(&mut self.rng, self.temper, self.slots));
        begun.flatten().into_iter().chain(drawn.collect::<Vec<_>>()).collect()
    }
}

impl Step {
    fn draw(rng: &mut StdRng, temper: f64, slots: u8) -> Self {
        let seat = *[0, 0, 0, 1, 1, 2].choose(rng).unwrap();
        let slot = rng.random_range(0..slots);
        match rng.random_range(0..1000) {
            0..60 => Self::Enqueue { slot, conflict: rng.random_bool(0.3), parked: rng.random_bool(0.15) },
            60..75 => Self::Cancel { slot },
            75..130 => Self::Join { seat, hasty: rng.random_bool(0.5) },
            130..400 => {
                let limit = *[1, 2, 20, 20].choose(rng).unwrap();
                let how = How::draw(rng, temper, &[Kind::Dispatch; 4], &RECONCILE);
                Self::Poll { seat, limit, ended: rng.random_bool(0.1), how }
            }
            400..520 => {
                let how = How::draw(rng, temper, &[Kind::Ack], &[]);
                Self::Ack { seat, pick: Pick::draw(rng), failed: rng.random_bool(0.3), how }
            }
            520..590 => {
                let how = How::draw(rng, temper, &[Kind::Retry], &[]);
                Self::Retry { seat, pick: Pick::draw(rng), delayed: rng.random_bool(0.5), how }
            }
            590..630 => {
                let how = How::draw(rng, temper, &[Kind::Defer], &[]);
                Self::Defer { seat, pick: Pick::draw(rng), delayed: rng.random_bool(0.5), how }
            }
            630..680 => {
                let how = How::draw(rng, temper, &[Kind::Undispatch], &[]);
                Self::HandBack { seat, pick: Pick::draw(rng), refund: rng.random_bool(0.6), how }
            }
            680..710 => Self::Abandon { seat, pick: Pick { whose: Whose::Own, ..Pick::draw(rng) } },
            710..810 => Self::Rebalance { seat, how: How::draw(rng, temper, &BEAT, &RECONCILE) },
            810..814 => Self::Stop { seat },
            814..820 => {
                Self::Close { seat, how: How::draw(rng, temper, &[Kind::Leave], &[Kind::Undispatch]) }
            }
            820..827 => Self::Crash { seat, cut: rng.random_bool(0.4) },
            827..830 => Self::Sever { seat },
            830..846 => Self::Lapse { seat: rng.random_bool(0.8).then_some(seat) },
            846..849 => Self::Forget,
            849..876 => Self::MakeDue,
            876..884 => Self::PassDeadline { slot },
            884..904 => Self::LockRequest { slot },
            904..907 => Self::LockPartition { partition: rng.random_range(0..4) },
            907..925 => Self::Unlock,
            925..968 => Self::Release { which: rng.random_range(0..8) },
            968..972 => {
                let partition = rng.random_bool(0.7).then(|| rng.random_range(0..4));
                Self::Oust { seat, partition }
            }
            _ => Self::GiveUp { which: rng.random_range(0..8) },
        }
    }
}

pub(crate) const RECONCILE: [Kind; 3] = [Kind::SetGeneration, Kind::InFlight, Kind::Undispatch];
pub(crate) const BEAT: [Kind; 7] = [
    Kind::Heartbeat,
    Kind::Heartbeat,
    Kind::Reset,
    Kind::Reset,
    Kind::Release,
    Kind::SetDraining,
    Kind::Acquire,
];

impl How {
    pub(crate) fn draw(rng: &mut StdRng, temper: f64, usual: &[Kind], rare: &[Kind]) -> Self {
        if !rng.random_bool(temper) {
            return Self::Well;
        }
        let kinds: Vec<Kind> = usual.iter().chain(rare).copied().collect();
        let kind = *kinds.choose(rng).unwrap();
        match rng.random_range(0..10) {
            0..2 => Self::LoseReply(kind),
            2 => Self::FailBefore(kind),
            3..7 => Self::HoldRequest(kind),
            _ => Self::HoldReply(kind),
        }
    }
}

impl Pick {
    fn draw(rng: &mut StdRng) -> Self {
        let whose = if rng.random_bool(0.8) { Whose::Own } else { Whose::Any };
        Self { whose, from: rng.random_range(0..6), count: rng.random_range(1..=3) }
    }
}
