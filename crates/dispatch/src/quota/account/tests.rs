//! Invariant 4, as far as a process can keep it by itself.

use super::*;

const LEASE: Duration = Duration::from_secs(10);

/// An account whose first statement has retired, and when it was opened.
fn account() -> (Account, Instant) {
    let now = Instant::now();
    let mut account = Account::new(now + LEASE, now);
    account.leave(None, now);
    (account, now)
}

fn key() -> Arc<str> {
    "k".into()
}

/// With one grant out.
fn granted() -> (Account, Instant) {
    let (mut account, now) = account();
    assert!(account.enter(now) && account.grant(1, now));
    account.leave(None, now);
    (account, now)
}

/// Invariant 4.
#[test]
fn what_is_given_back_is_owed_once() {
    let (mut account, now) = granted();
    account.leave(Some(&key()), now);
    assert_eq!((account.take_owed("other"), account.take_owed("k"), account.take_owed("k")), (0, 1, 0));
    account.owe(&key(), 1);
    assert_eq!(account.take_all_owed(), HashMap::from([(key(), 1)]));
    assert!(account.take_all_owed().is_empty());
}

/// Invariant 4: others may have counted without it.
#[test]
fn a_grant_after_the_lease_is_not_handed_out_and_retires_the_holder() {
    let (mut account, now) = account();
    assert!(account.enter(now) && !account.grant(1, now + LEASE));
    assert_eq!(
        (account.retired(), account.out()),
        (Some(Reason::LateGrant), 1),
        "the statement alone is out"
    );
    let (mut account, now) = self::account();
    assert!(account.enter(now));
    account.lapse();
    assert!(!account.grant(1, now), "the database knows better than the clock");
}

/// Invariant 4: a renewal is good from when it was sent.
#[test]
fn nobody_asks_with_a_holder_whose_lease_may_have_ended_until_it_is_renewed() {
    let (mut account, now) = account();
    let later = now + LEASE;
    assert!(!account.enter(later) && account.retired().is_none());
    account.lose(Statement::Renewal);
    account.renew(later + LEASE);
    assert!(account.enter(later));
}

/// Invariant 4: only its end frees what the database may count for it.
#[test]
fn a_doubt_about_slots_retires_the_holder_until_all_are_back() {
    for (statement, reason) in
        [(Statement::Ask, Reason::LostGrant), (Statement::Release, Reason::LostRelease)]
    {
        let (mut account, now) = granted();
        account.owe(&key(), 1);
        account.lose(statement);
        account.close();
        assert_eq!(account.retired(), Some(reason), "the first reason stays");
        assert!(!account.enter(now) && !account.is_done());
        account.leave(Some(&key()), now);
        assert!(account.is_done() && account.take_all_owed().is_empty());
    }
}

/// Invariant 4: a retired holder is renewed while anything is out, so what comes in time is counted.
#[test]
fn a_statement_under_way_when_the_holder_is_retired_still_brings_its_grants() {
    let (mut account, now) = account();
    assert!(account.enter(now));
    account.close();
    assert!(!account.is_done() && account.grant(1, now));
    account.leave(None, now);
    assert!(!account.is_done());
    account.leave(Some(&key()), now);
    assert!(account.is_done());
}

/// Invariant 4, as far as the log can tell that it was not kept.
#[test]
fn a_lapse_tells_once_how_many_grants_are_out() {
    let (mut account, _) = granted();
    assert_eq!((account.lapse(), account.lapse()), (1, 0));
    assert_eq!(account.retired(), Some(Reason::Lapsed));
}

/// Invariant 4: an idle holder is not kept for ever, and none that holds or owes a slot is taken for idle.
#[test]
fn only_what_is_not_used_is_idle() {
    let (mut account, now) = granted();
    account.retire_idle(LEASE, now + LEASE);
    account.leave(Some(&key()), now);
    account.retire_idle(LEASE, now + LEASE);
    account.take_all_owed();
    account.retire_idle(LEASE, now + LEASE / 2);
    assert_eq!(account.retired(), None);
    account.retire_idle(LEASE, now + LEASE);
    assert_eq!(account.retired(), Some(Reason::Idle));
}
