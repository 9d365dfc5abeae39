//! What is rare by itself: steps to be taken in their order, with others in between.

use rand::{RngExt, rngs::StdRng, seq::IndexedRandom};

use crate::{
    draw::{BEAT, RECONCILE},
    step::{How, Kind, Pick, SLOTS, Step, Whose},
};

const GIVE_UP: Step = Step::GiveUp { which: 0 };
const RELEASE: Step = Step::Release { which: 0 };
const LATEST: Pick = Pick { whose: Whose::Own, from: 0, count: 1 };

fn join(seat: u8) -> Step {
    Step::Join { seat, hasty: true }
}

fn beat(seat: u8) -> Step {
    Step::Rebalance { seat, how: How::Well }
}

fn poll(seat: u8, how: How) -> Step {
    Step::Poll { seat, limit: 20, ended: false, how }
}

/// The peer takes over what the owner has.
fn takeover(seat: u8, peer: u8) -> [Step; 3] {
    [Step::Lapse { seat: Some(seat) }, join(peer), beat(peer)]
}

pub(crate) fn draw(rng: &mut StdRng, temper: f64, slots: u8) -> Vec<Step> {
    let seat = rng.random_range(0..2);
    let (peer, slot) = (1 - seat, rng.random_range(0..slots));
    let any = Pick { whose: Whose::Any, from: rng.random_range(0..3), count: 3 };
    let faulty = Step::Rebalance { seat, how: How::draw(rng, 1.0, &BEAT, &RECONCILE) };
    let begin = vec![join(seat), beat(seat), Step::Enqueue { slot, conflict: false, parked: false }];
    let go_on = match rng.random_range(0..11) {
        0 => late_stamp(seat, peer, slot),
        1 => return_of_a_partition(seat, peer, any, faulty),
        2 => lost_poll(rng, seat, faulty),
        3 => late_answer(rng, seat),
        4 => orphan(rng, seat),
        5 => late_beat(rng, temper, seat),
        6 => severed_poll(seat, slot),
        7 => late_release(seat, peer),
        8 => unseen_loss(rng, seat, slot),
        9 => return unfenced_look(seat, slot),
        _ => skipped_reset(seat, peer, slot),
    };
    [begin, go_on].concat()
}

/// A poll waits for a row while its partition changes hands.
fn late_stamp(seat: u8, peer: u8, slot: u8) -> Vec<Step> {
    let locked = [Step::LockRequest { slot }, poll(seat, How::Well)];
    let end = [beat(peer), Step::Unlock, beat(peer), poll(peer, How::Well)];
    [&locked[..], &takeover(seat, peer), &end].concat()
}

/// A partition is lost and comes back, while what was dispatched first is still worked on.
fn return_of_a_partition(seat: u8, peer: u8, any: Pick, faulty: Step) -> Vec<Step> {
    let back = [poll(peer, How::Well), Step::Lapse { seat: Some(peer) }, faulty];
    let settle = Step::Ack { seat, pick: any, failed: false, how: How::Well };
    [&[poll(seat, How::Well)][..], &takeover(seat, peer), &back, &[settle]].concat()
}

/// A poll is given up and late, or its reply is lost; the reconciliation has its own faults.
fn lost_poll(rng: &mut StdRng, seat: u8, faulty: Step) -> Vec<Step> {
    let kind = Kind::Dispatch;
    let how = *[How::HoldRequest(kind), How::LoseReply(kind), How::HoldReply(kind)].choose(rng).unwrap();
    vec![poll(seat, how), GIVE_UP, faulty, RELEASE, beat(seat)]
}

/// A request is dispatched again before its settlement is answered; then the later dispatch is lost, or given
/// up, perhaps.
fn late_answer(rng: &mut StdRng, seat: u8) -> Vec<Step> {
    let delayed = rng.random_bool(0.5);
    let settle = match rng.random_range(0..3) {
        0 => Step::Retry { seat, pick: LATEST, delayed, how: How::HoldReply(Kind::Retry) },
        1 => Step::Defer { seat, pick: LATEST, delayed, how: How::HoldReply(Kind::Defer) },
        _ => {
            let how = How::HoldReply(Kind::Undispatch);
            Step::HandBack { seat, pick: LATEST, refund: delayed, how }
        }
    };
    let again = *[How::Well, How::LoseReply(Kind::Dispatch)].choose(rng).unwrap();
    let abandon = Step::Abandon { seat, pick: LATEST };
    let end = match (again, delayed) {
        (How::Well, true) => [poll(seat, again), abandon, RELEASE, beat(seat)],
        _ => [poll(seat, again), beat(seat), beat(seat), RELEASE],
    };
    [&[poll(seat, How::Well), settle, Step::MakeDue][..], &end].concat()
}

/// A dispatch is given up, and its request polled again before its hand-back is known to have happened; or that is late.
fn orphan(rng: &mut StdRng, seat: u8) -> Vec<Step> {
    let hand_back = Step::Rebalance { seat, how: How::draw(rng, 0.8, &[Kind::Undispatch], &[]) };
    let begin = [poll(seat, How::Well), Step::Abandon { seat, pick: LATEST }];
    let end = [hand_back, GIVE_UP, poll(seat, How::Well), beat(seat), RELEASE];
    [&begin[..], &end].concat()
}

/// A beat is late, and perhaps a poll behind it.
fn late_beat(rng: &mut StdRng, temper: f64, seat: u8) -> Vec<Step> {
    let late = Step::Rebalance { seat, how: How::HoldRequest(Kind::Heartbeat) };
    let begin = [late, GIVE_UP, poll(seat, How::HoldRequest(Kind::Dispatch)), GIVE_UP];
    let last = poll(seat, How::draw(rng, temper, &[Kind::Dispatch], &[]));
    [&begin[..], &[beat(seat), RELEASE, RELEASE, last]].concat()
}

/// The connection of a poll breaks while the server waits for a row: the reconciliation must wait for that.
fn severed_poll(seat: u8, slot: u8) -> Vec<Step> {
    let severed = [Step::LockRequest { slot }, poll(seat, How::Well), Step::Sever { seat }];
    let end = [beat(seat), beat(seat), Step::Unlock, beat(seat), poll(seat, How::Well)];
    [&severed[..], &end].concat()
}

/// A release arrives when a peer has what is released.
fn late_release(seat: u8, peer: u8) -> Vec<Step> {
    let release = Step::Rebalance { seat, how: How::HoldRequest(Kind::Release) };
    vec![join(peer), beat(peer), beat(seat), release, GIVE_UP, beat(seat), beat(peer), RELEASE]
}

/// A partition is lost and comes back between two heartbeats, by an acquisition that was held up.
fn unseen_loss(rng: &mut StdRng, seat: u8, slot: u8) -> Vec<Step> {
    let oust = |partition| Step::Oust { seat, partition: Some(partition) };
    let acquire = Step::Rebalance { seat, how: How::HoldRequest(Kind::Acquire) };
    // There is nothing to acquire without the last partition's loss, and it is the last to be taken.
    let lost = [poll(seat, How::Well), oust(3), acquire, oust(slot % (SLOTS / 2))];
    let late = [GIVE_UP, RELEASE, beat(seat)];
    [&lost[..], if rng.random_bool(0.5) { &late } else { &late[1..] }].concat()
}

/// A reconciliation looks while its owner is no member. After it arrive an acquisition, a heartbeat of the old
/// generation, and a poll, all given up before.
fn unfenced_look(seat: u8, slot: u8) -> Vec<Step> {
    let held = |kind| Step::Rebalance { seat, how: How::HoldRequest(kind) };
    let acquire = [join(seat), held(Kind::Acquire), GIVE_UP, beat(seat)];
    let enqueue = Step::Enqueue { slot, conflict: false, parked: false };
    let poll_late =
        [held(Kind::Heartbeat), GIVE_UP, enqueue, poll(seat, How::HoldRequest(Kind::Dispatch)), GIVE_UP];
    let gone = [Step::Lapse { seat: Some(seat) }, Step::Oust { seat, partition: None }, Step::Forget];
    // The heartbeat after the look stays behind.
    [&acquire[..], &poll_late, &gone, &[held(Kind::Heartbeat)], &[Step::Release { which: 1 }; 3]].concat()
}

/// Somebody else holds the row that is to be reset.
fn skipped_reset(seat: u8, peer: u8, slot: u8) -> Vec<Step> {
    let locked = [poll(seat, How::Well), Step::LockRequest { slot }];
    [&locked[..], &takeover(seat, peer), &[beat(peer), beat(peer), Step::Unlock]].concat()
}
