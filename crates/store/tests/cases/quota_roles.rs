//! The role of a program that gates itself by our quotas, and what of them is an admin's.

use leasehold_store::{Quota, Store};

use crate::{
    roles::{ADMINISTER, DISPATCH, ENQUEUE, OWN, POLL, READ, WRITE, assert_denied, member_of},
    support::{Site, TTL, refusal},
};

/// Whoever is limited calls these: a dispatcher, or a program in any language.
pub(crate) const GATE: [&str; 11] = [
    "SELECT quota_register('h', '1 minute')",
    "SELECT quota_renew('h', '1 minute')",
    "SELECT quota_acquire('h', 'k', 1, 1)",
    "SELECT quota_acquire_many('h', '{k}', '{1}', '{1}', '{NULL}', '{0}')",
    "SELECT quota_release('h', '{k}', '{1}')",
    "SELECT quota_delete('h')",
    "SELECT quota_admit('k', 1, 1)",
    "SELECT quota_admit_parts('k', '{1}', 1, '1 minute')",
    "SELECT quota_settle('k', '1 minute', '{now}', '{1}')",
    "SELECT quota_take('k', 1, '1 second')",
    "SELECT quota_budget('k')",
];

/// Everything that whoever is limited does, as that role.
pub(crate) async fn pass_the_gate(store: &Store) {
    store.register_quota_holder("h", TTL).await.unwrap();
    assert!(store.renew_quota_holder("h", TTL).await.unwrap());
    let quota = Quota { key: "k", max: 1, limit_keys: &["k", "*"] };
    assert_eq!(store.acquire_quota_slots("h", &quota, 2).await.unwrap(), 1);
    store.release_quota_slots("h", &["k"], &[1]).await.unwrap();
    assert!(store.delete_quota_holder("h").await.unwrap());
    let admitted = store.admit_quota(&quota, &[1, 1], TTL).await.unwrap();
    assert_eq!(admitted.parts, 1);
    store.settle_quota("k", TTL, &[(admitted.at, -1), (admitted.at, 2)]).await.unwrap();
    assert_eq!(store.take_quota_rate("k", 1, TTL).await.unwrap().0, 0);
    assert_eq!(store.quota_budget("k").await.unwrap(), 1.0);
}

#[tokio::test]
async fn quota_is_limited_and_does_nothing_else() {
    let site = Site::open().await;
    site.queue("q").await;
    let (store, sql) = member_of(&site, "leasehold_quota").await;
    pass_the_gate(&store).await;
    for call in GATE {
        sql.simple_query(call).await.unwrap_or_else(|e| panic!("{call}: {e:?}"));
    }
    for denied in [&ENQUEUE[..], &POLL, &DISPATCH, &ADMINISTER, &OWN, &READ, &WRITE] {
        assert_denied(&sql, denied).await;
    }
    assert_denied(&sql, &["SELECT backlog('q')"]).await;
}

/// Who is limited does not set the limit.
#[tokio::test]
async fn admin_sets_and_sees_quotas() {
    let site = Site::open().await;
    site.holders(&["other"]).await;
    let (store, sql) = member_of(&site, "leasehold_admin").await;
    store.set_quota_limit("theirs", Some(1), None).await.unwrap();
    store.set_quota_budget("theirs", Some(0.5)).await.unwrap();
    store.set_quota_rate("theirs", 1.0, TTL).await.unwrap();
    let quota = Quota { key: "theirs", max: 5, limit_keys: &["theirs"] };
    assert_eq!(site.store.acquire_quota_slots("other", &quota, 5).await.unwrap(), 1);
    assert_eq!(site.store.admit_quota(&quota, &[1], TTL).await.unwrap().parts, 1);
    assert_eq!(store.list_quotas("", 10).await.unwrap().len(), 2);
    assert_eq!(store.quota_holders_of("theirs").await.unwrap().len(), 1);
    assert_eq!(store.quota_admissions_of("theirs").await.unwrap().len(), 1);
    pass_the_gate(&store).await;
    assert_denied(&sql, &WRITE[..3]).await;
}

/// Every quota function is on one of the lists above.
#[tokio::test]
async fn no_quota_function_is_forgotten_here() {
    let site = Site::open().await;
    let (_, sql) = member_of(&site, "leasehold_quota").await;
    let functions =
        "SELECT proname FROM pg_proc WHERE pronamespace = 'leasehold'::regnamespace AND proname ~ '^quota_'";
    let functions = site.sql.query(functions, &[]).await.unwrap();
    assert!(functions.len() >= 20, "{}", functions.len());
    for row in functions {
        let call = format!("SELECT {}(", row.get::<_, &str>(0));
        let listed: Vec<_> = [&GATE[..], &DISPATCH, &ADMINISTER]
            .concat()
            .into_iter()
            .filter(|statement| statement.starts_with(&call))
            .collect();
        assert_eq!(listed.len(), 1, "{call}: {listed:?}");
        if !GATE.contains(&listed[0]) {
            let error = sql.simple_query(listed[0]).await.unwrap_err();
            assert_eq!(refusal(&error).0, "42501", "{call}");
        }
    }
}
