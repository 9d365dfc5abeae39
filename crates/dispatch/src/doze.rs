//! When to look next, and whether to be rung: a queue's feeder between two polls.
//!
//! A notification costs producers a lock of the whole server at commit, so a feeder asks for it only while
//! little is going on, and looks by itself every few milliseconds while much is.

use std::time::Duration;

/// Between two looks of a feeder that is awake and found less than it asked for.
const PAUSE: Duration = Duration::from_millis(5);
/// Of the last 16 looks so many were empty, and it goes to sleep: there were fewer than some 50 finds a second.
const EMPTY_LOOKS: u32 = 10;
/// So many wakings in a row with little sleep between, and it stays awake.
const RESTLESS_WAKINGS: u32 = 16;
/// A sleep longer than this was one: there are fewer than 100 bells a second.
const SLEPT: Duration = Duration::from_millis(10);

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
    /// A bell, after sleeping so long.
    Bell(Duration),
    /// Nobody rang.
    Fallback,
    /// Anything else.
    Other,
}

#[derive(Debug, Default)]
pub(crate) struct Doze {
    asleep: bool,
    /// The last looks, one bit each: whether they were empty.
    empty: u16,
    wakings: u32,
}

impl Doze {
    /// After a look that asked for `asked` (from 1) and found `found`.
    pub(crate) fn step(&mut self, cause: Cause, found: usize, asked: usize) -> Step {
        if found >= asked {
            return if self.wake() { Step::AskForQuiet } else { Step::Look };
        }
        if !self.asleep {
            self.empty = self.empty << 1 | u16::from(found == 0);
            if self.empty.count_ones() < EMPTY_LOOKS {
                return Step::Pause(PAUSE);
            }
            self.asleep = true;
            self.wakings = 0;
            return Step::AskForBell;
        }
        match cause {
            // Somebody's request came without a bell: perhaps our wish was forgotten with a lapsed membership.
            Cause::Fallback if found > 0 => Step::AskForBell,
            Cause::Bell(slept) if found > 0 && slept <= SLEPT => {
                self.wakings += 1;
                if self.wakings < RESTLESS_WAKINGS {
                    return Step::Sleep;
                }
                self.wake();
                Step::AskForQuiet
            }
            _ => {
                self.wakings = 0;
                Step::Sleep
            }
        }
    }

    /// Whether it was asleep.
    fn wake(&mut self) -> bool {
        self.empty = 0;
        std::mem::take(&mut self.asleep)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asleep() -> Doze {
        let mut doze = Doze::default();
        for _ in 1..EMPTY_LOOKS {
            assert_eq!(doze.step(Cause::Other, 0, 8), Step::Pause(PAUSE));
        }
        assert_eq!(doze.step(Cause::Other, 0, 8), Step::AskForBell);
        doze
    }

    #[test]
    fn an_idle_queue_asks_to_be_rung_looks_once_more_and_sleeps() {
        assert_eq!(asleep().step(Cause::Other, 0, 8), Step::Sleep);
    }

    #[test]
    fn a_full_batch_looks_again_at_once_and_wants_no_bell() {
        let mut doze = asleep();
        assert_eq!(doze.step(Cause::Bell(Duration::from_secs(1)), 8, 8), Step::AskForQuiet);
        assert_eq!(doze.step(Cause::Other, 8, 8), Step::Look);
    }

    #[test]
    fn a_request_now_and_then_keeps_the_bell() {
        let mut doze = asleep();
        for _ in 0..100 {
            assert_eq!(doze.step(Cause::Bell(Duration::from_secs(1)), 1, 8), Step::Sleep);
        }
    }

    #[test]
    fn a_steady_stream_of_small_batches_ends_the_bell() {
        let mut doze = asleep();
        let steps: Vec<Step> =
            (0..RESTLESS_WAKINGS).map(|_| doze.step(Cause::Bell(Duration::from_millis(1)), 1, 8)).collect();
        assert_eq!(steps.last(), Some(&Step::AskForQuiet));
        assert_eq!(doze.step(Cause::Other, 1, 8), Step::Pause(PAUSE));
    }

    #[test]
    fn finds_few_and_far_between_do_not_keep_it_awake() {
        let mut doze = Doze::default();
        let found = |look| usize::from(look % 5 == 0);
        let asked_for_bell =
            (0..40).find(|look| doze.step(Cause::Other, found(*look), 8) == Step::AskForBell);
        assert!(asked_for_bell.is_some_and(|look| look < 20), "one look in five finds something");
        let mut busy = Doze::default();
        assert!((0..100).all(|look| busy.step(Cause::Other, look % 3, 8) == Step::Pause(PAUSE)));
    }

    #[test]
    fn a_find_without_a_bell_asks_for_it_again() {
        assert_eq!(asleep().step(Cause::Fallback, 1, 8), Step::AskForBell);
    }
}
