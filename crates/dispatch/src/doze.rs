//! When to look next, and whether to be rung: a queue's feeder between two polls.
//!
//! A notification costs producers a lock of the whole server at commit, so a feeder asks for it only while
//! little is going on, and looks by itself every few milliseconds while much is. What is going on is told by all
//! bells of the queue, also those for other members: one sleeper among many makes every producer ring, and where that
//! slows producers down, each member's own share looks as if little were going on.

use std::time::Duration;

use tokio::time::Instant;

/// Between two looks of a feeder that is awake and found less than it asked for, with so few members or fewer. It
/// grows with their number up to twice that, so that looks which share a queue among many are worth their while.
const PAUSE: (Duration, u32) = (Duration::from_millis(5), 4);
/// Of the last 16 looks so many were empty, and it goes to sleep: there were fewer than some 50 to 100 finds a second.
const EMPTY_LOOKS: u32 = 10;
/// So many bells within that time, for whomever, and it wakes up to stay awake: there are 50 or more a second.
const RESTLESS: (u32, Duration) = (16, Duration::from_millis(320));
/// How long it then stays awake at least. Each restless sleep doubles it, up to the second.
const STAY: (Duration, Duration) = (Duration::from_millis(160), Duration::from_secs(5));
/// After a sleep longer than this it begins with the shortest stay again.
const SLEPT_WELL: Duration = Duration::from_secs(2);

/// What to do before the next look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Look again at once.
    Look,
    /// Wait so long.
    Pause(Duration),
    /// Ask to be rung, then look again: what came before does not ring.
    AskForBell,
    /// Ask not to be rung, then look again.
    AskForQuiet,
    /// Wait for a bell, or the fallback.
    Sleep,
}

/// Why this look was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    Bell,
    /// Nobody rang.
    Fallback,
    /// Anything else.
    Other,
}

/// A look at the queue, and what came of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    pub(crate) at: Instant,
    pub(crate) cause: Cause,
    pub(crate) found: usize,
    /// From 1.
    pub(crate) asked: usize,
    /// Live members of the queue.
    pub(crate) members: u32,
}

#[derive(Debug)]
pub(crate) struct Doze {
    asleep: bool,
    /// The last looks while awake, one bit each: whether they were empty.
    empty: u16,
    fell_asleep: Instant,
    /// Bells heard in this sleep since then.
    bells: u32,
    counted_from: Instant,
    /// The least time awake after the last restless sleep, and its end.
    stay: Duration,
    awake_until: Instant,
}

impl Doze {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            asleep: false,
            empty: 0,
            fell_asleep: now,
            bells: 0,
            counted_from: now,
            stay: Duration::ZERO,
            awake_until: now,
        }
    }

    /// A bell was heard while asleep, for whomever. Says whether there were so many that it is time to wake up.
    pub(crate) fn hear(&mut self, now: Instant) -> bool {
        if !self.restless() && now.duration_since(self.counted_from) > RESTLESS.1 {
            (self.bells, self.counted_from) = (0, now);
        }
        self.bells += 1;
        self.restless()
    }

    pub(crate) fn step(&mut self, look: Look) -> Step {
        let full = look.found >= look.asked;
        if self.asleep && (full || self.restless()) {
            self.wake(look.at);
            return Step::AskForQuiet;
        }
        if full {
            self.empty = 0;
            return Step::Look;
        }
        if !self.asleep {
            self.empty = self.empty << 1 | u16::from(look.found == 0);
            if self.empty.count_ones() < EMPTY_LOOKS || look.at < self.awake_until {
                return Step::Pause(pause(look.members));
            }
            (self.asleep, self.fell_asleep) = (true, look.at);
            (self.bells, self.counted_from) = (0, look.at);
            return Step::AskForBell;
        }
        match look.cause {
            // Somebody's request came without a bell: perhaps our wish was forgotten with a lapsed membership.
            Cause::Fallback if look.found > 0 => Step::AskForBell,
            _ => Step::Sleep,
        }
    }

    /// Whether producers ring.
    pub(crate) fn is_asleep(&self) -> bool {
        self.asleep
    }

    fn restless(&self) -> bool {
        self.bells >= RESTLESS.0
    }

    fn wake(&mut self, now: Instant) {
        if now.duration_since(self.fell_asleep) > SLEPT_WELL {
            self.stay = Duration::ZERO;
        }
        if self.restless() {
            self.stay = (self.stay * 2).clamp(STAY.0, STAY.1);
            self.awake_until = now + self.stay;
        }
        (self.asleep, self.empty) = (false, 0);
    }
}

fn pause(members: u32) -> Duration {
    let (shortest, few) = PAUSE;
    shortest * members.clamp(few, 2 * few) / few
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A doze with its time.
    struct Night {
        doze: Doze,
        now: Instant,
    }

    impl Night {
        fn new() -> Self {
            let now = Instant::now();
            Self { doze: Doze::new(now), now }
        }

        fn asleep() -> Self {
            let mut night = Self::new();
            night.fall_asleep();
            night
        }

        /// Empty looks, until it asks to be rung. Says how long that took.
        fn fall_asleep(&mut self) -> Duration {
            let began = self.now;
            while self.look(Cause::Other, 0) != Step::AskForBell {}
            self.now - began
        }

        /// Asks for 8, and pauses as it is told.
        fn look(&mut self, cause: Cause, found: usize) -> Step {
            let step = self.doze.step(Look { at: self.now, cause, found, asked: 8, members: 1 });
            if let Step::Pause(pause) = step {
                self.now += pause;
            }
            step
        }

        /// Bells for others, one each so long. Says whether they woke it.
        fn hear(&mut self, bells: u32, every: Duration) -> bool {
            (0..bells).any(|_| {
                self.now += every;
                self.doze.hear(self.now)
            })
        }

        /// Many bells; says how long it then stays awake while it finds nothing.
        fn wake_and_stay(&mut self) -> Duration {
            assert!(self.hear(RESTLESS.0, MS));
            assert_eq!(self.look(Cause::Bell, 0), Step::AskForQuiet);
            self.fall_asleep()
        }
    }

    #[test]
    fn an_idle_queue_asks_to_be_rung_looks_once_more_and_sleeps() {
        let mut night = Night::new();
        assert_eq!(night.fall_asleep(), PAUSE.0 * (EMPTY_LOOKS - 1));
        assert_eq!(night.look(Cause::Other, 0), Step::Sleep);
    }

    #[test]
    fn a_full_batch_looks_again_at_once_and_wants_no_bell() {
        let mut night = Night::asleep();
        assert_eq!(night.look(Cause::Bell, 8), Step::AskForQuiet);
        assert_eq!(night.look(Cause::Other, 8), Step::Look);
    }

    #[test]
    fn a_request_now_and_then_keeps_the_bell() {
        let mut night = Night::asleep();
        for _ in 0..100 {
            assert!(!night.hear(1, 25 * MS), "there are 40 a second");
            assert_eq!(night.look(Cause::Bell, 1), Step::Sleep);
        }
    }

    #[test]
    fn a_steady_stream_of_requests_ends_the_bell_whoever_they_are_for() {
        let mut night = Night::asleep();
        assert!(!night.hear(RESTLESS.0 - 1, 20 * MS));
        assert!(night.hear(1, 20 * MS), "there are 50 a second");
        assert_eq!(night.look(Cause::Bell, 0), Step::AskForQuiet);
        assert_eq!(night.look(Cause::Other, 1), Step::Pause(PAUSE.0));
    }

    #[test]
    fn bells_of_an_earlier_sleep_do_not_count() {
        let mut night = Night::asleep();
        assert!(!night.hear(RESTLESS.0 - 1, MS));
        assert_eq!(night.look(Cause::Bell, 8), Step::AskForQuiet);
        night.fall_asleep();
        assert!(!night.hear(RESTLESS.0 - 1, MS));
        assert_eq!(night.look(Cause::Bell, 1), Step::Sleep);
    }

    #[test]
    fn each_restless_sleep_makes_it_stay_awake_for_longer() {
        let mut night = Night::asleep();
        let mut stay = STAY.0;
        while stay < STAY.1 {
            assert_eq!(night.wake_and_stay(), stay);
            stay *= 2;
        }
        for _ in 0..3 {
            assert_eq!(night.wake_and_stay(), STAY.1);
        }
    }

    #[test]
    fn after_a_quiet_sleep_it_begins_with_the_shortest_stay() {
        let mut night = Night::asleep();
        night.wake_and_stay();
        assert_eq!(night.wake_and_stay(), STAY.0 * 2);
        night.now += SLEPT_WELL + MS;
        assert_eq!(night.wake_and_stay(), STAY.0);

        night.wake_and_stay();
        night.now += SLEPT_WELL + MS;
        assert_eq!(night.look(Cause::Bell, 8), Step::AskForQuiet);
        night.fall_asleep();
        assert_eq!(night.wake_and_stay(), STAY.0, "one burst ended the quiet sleep");
    }

    #[test]
    fn finds_few_and_far_between_do_not_keep_it_awake() {
        let mut night = Night::new();
        let asked_for_bell =
            (0..40).find(|look| night.look(Cause::Other, usize::from(look % 5 == 0)) == Step::AskForBell);
        assert!(asked_for_bell.is_some_and(|look| look < 20), "one look in five finds something");
        let mut busy = Night::new();
        assert!((0..100).all(|look| busy.look(Cause::Other, look % 3) == Step::Pause(PAUSE.0)));
    }

    #[test]
    fn a_find_without_a_bell_asks_for_it_again() {
        assert_eq!(Night::asleep().look(Cause::Fallback, 1), Step::AskForBell);
    }

    #[test]
    fn many_members_take_longer_between_looks() {
        let pauses = [0, 1, 4, 6, 8, 64].map(pause);
        assert_eq!(pauses, [5000, 5000, 5000, 7500, 10_000, 10_000].map(Duration::from_micros));
    }
}
