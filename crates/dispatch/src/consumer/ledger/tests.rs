use std::time::Duration;

use super::*;

const TIMEOUT: Duration = Duration::from_secs(10);

fn stamp(id: &str, attempt: i64) -> Stamp {
    Stamp { id: id.to_owned(), token: "t".to_owned(), attempt }
}

fn stamped(id: &str, attempt: i64, partition: i16, epoch: i64) -> Stamped {
    Stamped { stamp: stamp(id, attempt), partition, epoch }
}

fn lease(partition: i16, epoch: i64, draining: bool) -> Lease {
    Lease { partition, epoch, draining }
}

/// A ledger with these partitions at epoch 1.
fn ledger(partitions: impl IntoIterator<Item = i16>) -> Ledger {
    let mut ledger = Ledger::new();
    let leases: Vec<Lease> = partitions.into_iter().map(|partition| lease(partition, 1, false)).collect();
    ledger.sync(&leases, Instant::now());
    ledger
}

fn track(ledger: &mut Ledger, id: &str, attempt: i64, partition: i16) -> CancellationToken {
    ledger.track(&stamped(id, attempt, partition, 1))
}

fn flight(stamped: Vec<Stamped>, xmin: u64, xmax: u64) -> Flight {
    Flight { stamped, xmin, xmax }
}

#[test]
fn a_settled_dispatch_is_forgotten_and_settling_it_again_is_nothing() {
    let mut ledger = ledger([0]);
    let lost = track(&mut ledger, "a", 1, 0);
    assert!(ledger.settle(&stamp("a", 1)));
    assert!(!ledger.settle(&stamp("a", 1)));
    assert_eq!(ledger.in_flight(), 0);
    assert!(!lost.is_cancelled(), "it ended by itself");
}

#[test]
fn another_attempt_or_generation_settles_and_abandons_nothing() {
    let mut ledger = ledger([0]);
    let lost = track(&mut ledger, "a", 2, 0);
    let other_token = Stamp { token: "u".to_owned(), ..stamp("a", 2) };
    for other in [stamp("a", 1), stamp("a", 3), stamp("b", 2), other_token] {
        assert!(!ledger.settle(&other) && !ledger.abandon(&other));
    }
    assert_eq!((ledger.in_flight(), ledger.orphans()), (1, vec![]));
    assert!(!lost.is_cancelled());
}

#[test]
fn a_dispatch_replaced_by_a_newer_one_is_lost() {
    let mut ledger = ledger([0]);
    let old = track(&mut ledger, "a", 1, 0);
    let new = track(&mut ledger, "a", 2, 0);
    assert!(old.is_cancelled() && !new.is_cancelled());
    assert_eq!(ledger.in_flight(), 1);
    assert!(!ledger.settle(&stamp("a", 1)));
    assert!(ledger.settle(&stamp("a", 2)));
    assert!(!new.is_cancelled());
}

#[test]
fn an_abandoned_dispatch_is_an_orphan_until_it_is_settled() {
    let mut ledger = ledger([0]);
    track(&mut ledger, "a", 1, 0);
    assert!(ledger.abandon(&stamp("a", 1)));
    assert!(!ledger.abandon(&stamp("a", 1)));
    assert_eq!((ledger.in_flight(), ledger.orphans()), (0, vec![stamp("a", 1)]));
    assert!(!ledger.settle(&stamp("a", 2)), "another attempt");
    assert_eq!(ledger.orphans(), [stamp("a", 1)]);
    assert!(!ledger.settle(&stamp("a", 1)), "it was not tracked");
    assert!(ledger.orphans().is_empty());
}

#[test]
fn an_orphan_dispatched_anew_is_no_orphan_any_more() {
    let mut ledger = ledger([0]);
    track(&mut ledger, "a", 1, 0);
    ledger.abandon(&stamp("a", 1));
    let new = track(&mut ledger, "a", 2, 0);
    assert_eq!((ledger.in_flight(), ledger.orphans()), (1, vec![]));
    ledger.settle(&stamp("a", 1));
    assert_eq!(ledger.in_flight(), 1);
    assert!(!new.is_cancelled());
}

#[test]
fn sync_keeps_what_is_the_same_and_loses_what_changed_hands_or_vanished() {
    let mut ledger = ledger([0, 1, 2]);
    let lost: Vec<_> = [("a", 0), ("b", 1), ("c", 2)].map(|(id, p)| track(&mut ledger, id, 1, p)).into();
    track(&mut ledger, "d", 1, 2);
    ledger.abandon(&stamp("d", 1));
    ledger.note_reset(&[0, 1, 2], Reset { reset: 0, found: 0, xmin: 9, xmax: 9 });
    assert!(ledger.unsettled().is_empty());

    let synced = ledger.sync(&[lease(0, 1, false), lease(1, 2, false), lease(3, 1, false)], Instant::now());
    assert_eq!(synced, Synced { gained: 2, lost: 2 });
    assert_eq!(lost.iter().map(CancellationToken::is_cancelled).collect::<Vec<_>>(), [false, true, true]);
    assert_eq!((ledger.in_flight(), ledger.shares(), ledger.orphans()), (1, 3, vec![]));
    assert_eq!(ledger.unsettled(), [1, 3], "fresh shares are to be reset");
}

#[test]
fn a_share_gained_at_a_new_epoch_or_released_loses_its_dispatches() {
    let mut ledger = ledger([0, 1, 2]);
    let lost: Vec<_> = [("a", 0), ("b", 1), ("c", 2)].map(|(id, p)| track(&mut ledger, id, 1, p)).into();
    ledger.gain(0, 2);
    ledger.release(&[1]);
    assert_eq!(lost.iter().map(CancellationToken::is_cancelled).collect::<Vec<_>>(), [true, true, false]);
    assert_eq!((ledger.in_flight(), ledger.shares()), (1, 2));
    assert!(ledger.settle(&stamp("c", 1)));
}

#[test]
fn a_dispatch_of_an_epoch_that_a_heartbeat_has_yet_to_tell_of_survives_it() {
    let mut ledger = ledger([0]);
    // Acquired again by a statement whose reply was lost.
    let lost = ledger.track(&stamped("a", 1, 0, 3));
    ledger.sync(&[lease(0, 3, false)], Instant::now());
    assert!(!lost.is_cancelled());
    assert_eq!(ledger.in_flight(), 1);
}

#[test]
fn surplus_is_what_has_fewest_in_flight_then_the_highest_number() {
    let mut ledger = ledger(0..5);
    track(&mut ledger, "a", 1, 4);
    track(&mut ledger, "b", 1, 3);
    track(&mut ledger, "c", 1, 3);
    track(&mut ledger, "d", 1, 1);
    ledger.abandon(&stamp("d", 1));
    assert!(ledger.surplus(0).is_empty());
    assert_eq!(ledger.surplus(2), [2, 0]);
    assert_eq!(ledger.surplus(4), [2, 0, 4, 1], "an orphan counts");
    assert_eq!(ledger.surplus(usize::MAX), [2, 0, 4, 1, 3]);
    ledger.set_draining(&[2], true, Instant::now());
    assert_eq!(ledger.surplus(2), [0, 4], "what drains already is no surplus");
}

#[test]
fn draining_partitions_are_taken_back_lowest_first_and_do_not_dispatch() {
    let mut ledger = ledger(0..4);
    ledger.set_draining(&[3, 1, 9], true, Instant::now());
    assert_eq!((ledger.active(), ledger.shares()), (2, 4), "what is not ours is left alone");
    assert!(ledger.dispatches(0) && !ledger.dispatches(1) && !ledger.dispatches(9));
    assert_eq!((ledger.draining(1), ledger.draining(9)), (vec![1], vec![1, 3]));
    ledger.set_draining(&[1], false, Instant::now());
    assert_eq!(ledger.draining(9), [3]);
}

#[test]
fn a_draining_partition_may_go_when_nothing_is_in_flight_or_its_time_is_up() {
    let mut ledger = ledger(0..4);
    let start = Instant::now();
    track(&mut ledger, "a", 1, 1);
    track(&mut ledger, "b", 1, 2);
    ledger.abandon(&stamp("b", 1));
    ledger.set_draining(&[0, 1, 2], true, start);
    assert_eq!(ledger.drained(TIMEOUT, start), [0], "an orphan is in flight as well");
    assert_eq!(ledger.drained(TIMEOUT, start + TIMEOUT), [0, 1, 2]);
    ledger.settle(&stamp("b", 1));
    assert_eq!(ledger.drained(TIMEOUT, start), [0, 2]);
}

#[test]
fn a_heartbeat_neither_restarts_nor_forgets_the_time_of_a_drain() {
    let mut ledger = ledger([0]);
    let start = Instant::now();
    track(&mut ledger, "a", 1, 0);
    ledger.set_draining(&[0], true, start);
    ledger.sync(&[lease(0, 1, true)], start + TIMEOUT);
    assert_eq!(ledger.drained(TIMEOUT, start + TIMEOUT), [0]);
    ledger.sync(&[lease(0, 1, false)], start + TIMEOUT);
    assert_eq!(ledger.active(), 1, "the database has the word");
    // Set by a statement whose reply was lost: its time begins when it is known.
    ledger.sync(&[lease(0, 1, true)], start + TIMEOUT);
    assert!(ledger.drained(TIMEOUT, start + TIMEOUT).is_empty());
}

#[test]
fn a_reset_is_final_when_it_skipped_nothing_after_everything_older_had_ended() {
    let mut ledger = ledger([0, 1]);
    let reset = |reset, found, xmin, xmax| Reset { reset, found, xmin, xmax };
    ledger.note_reset(&[0, 1], reset(0, 0, 5, 10));
    assert_eq!(ledger.unsettled(), [0, 1], "something older runs");
    ledger.note_reset(&[0, 1], reset(1, 2, 12, 20));
    assert_eq!(ledger.unsettled(), [0, 1], "one was skipped");
    ledger.note_reset(&[0], reset(1, 1, 10, 30));
    assert_eq!(ledger.unsettled(), [1], "the first horizon counts");
    ledger.gain(0, 2);
    ledger.note_reset(&[0], reset(0, 0, 30, 40));
    assert_eq!(ledger.unsettled(), [0, 1], "a new epoch has a horizon of its own");
}

#[test]
fn stamps_are_known_by_their_attempts() {
    let mut ledger = ledger([0]);
    track(&mut ledger, "tracked", 2, 0);
    track(&mut ledger, "orphan", 2, 0);
    ledger.abandon(&stamp("orphan", 2));
    let look = |attempt| ["tracked", "orphan", "stranger"].map(|id| stamped(id, attempt, 0, 1)).to_vec();
    assert_eq!(ledger.unknown(&flight(look(2), 1, 1)), [stamp("stranger", 2)]);
    let all = ["tracked", "orphan", "stranger"].map(|id| stamp(id, 3));
    assert_eq!(ledger.unknown(&flight(look(3), 1, 1)), all);
}

#[test]
fn a_reconciliation_is_over_when_every_older_poll_has_ended() {
    let mut ledger = ledger([0]);
    assert!(ledger.marked().is_none());
    ledger.mark();
    let mark = ledger.marked().expect("it is marked");
    assert_eq!((mark.generation, ledger.generation(), mark.horizon), (2, 2, None));
    assert!(ledger.bookkeeping().unfenced, "the poll may not have begun");
    ledger.note_reconciled(mark, &flight(vec![], 5, 10));
    assert_eq!(ledger.marked().and_then(|mark| mark.horizon), Some(10));
    assert!(ledger.bookkeeping().reconciling && !ledger.bookkeeping().unfenced);
    ledger.note_reconciled(mark, &flight(vec![], 9, 20));
    assert_eq!(ledger.marked().and_then(|mark| mark.horizon), Some(10), "the first horizon counts");
    ledger.note_reconciled(mark, &flight(vec![], 10, 20));
    assert!(ledger.marked().is_none());
    assert_eq!(ledger.generation(), 2, "it never falls");
}

#[test]
fn a_poll_lost_during_a_reconciliation_begins_a_new_one() {
    let mut ledger = ledger([0]);
    ledger.mark();
    let first = ledger.marked().expect("it is marked");
    ledger.note_reconciled(first, &flight(vec![], 5, 10));
    ledger.mark();
    ledger.note_reconciled(first, &flight(vec![], 10, 20));
    let second = ledger.marked().expect("the first one's end does not end it");
    assert_eq!((second.generation, second.horizon), (3, None));
}
