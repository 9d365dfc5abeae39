//! Odd arguments of SQL functions, each as the shortest call that once was answered with an error that names nothing, or wrongly.

use crate::support::{Site, refusal};

async fn refused(site: &Site, call: &str) -> (String, String) {
    match site.sql.simple_query(call).await {
        Ok(_) => panic!("{call} was taken"),
        Err(error) => refusal(&error),
    }
}

#[tokio::test]
async fn windows_beyond_any_time_are_refused_by_name() {
    let site = Site::open().await;
    site.queue("q").await;
    for window in ["178000000 years", "-178000000 years", "101 years"] {
        let (code, message) =
            refused(&site, &format!("SELECT backlog('q', ARRAY[interval '{window}'])")).await;
        assert_eq!((&*code, &*message), ("LH001", "windows must be from -100 years to 100 years"));
    }
    site.execute("SELECT backlog('q', '{-1 day,100 years,NULL}'), backlog('q', NULL)").await;
}

#[tokio::test]
async fn numbers_in_an_array_of_two_dimensions_are_numbers() {
    let site = Site::open().await;
    site.execute("SELECT create_queue('m', '{}')").await;
    let (code, message) = refused(&site, "SELECT receive_deferred('m', '{{1,2},{3,NULL}}')").await;
    assert_eq!((&*code, &*message), ("LH011", "queue \"m\" has no deferred message 1"));
}

/// Invariant 4.
#[tokio::test]
async fn a_holder_has_no_more_slots_than_can_be_counted() {
    let site = Site::open().await;
    site.execute("SELECT quota_register('h', '1 hour')").await;
    let acquire = "SELECT quota_acquire('h', 'k', 2147483647, 1000000000000)";
    assert_eq!(site.value::<i32>(acquire, &[]).await, i32::MAX);
    assert_eq!(site.value::<i32>(acquire, &[]).await, 0);
    let many = "SELECT quota_acquire_many('h', '{k}', '{2147483647}', '{1000000000000}', '{NULL}', '{5}')";
    assert_eq!(site.value::<Vec<i32>>(many, &[]).await, [5]);
    assert_eq!(site.value::<i32>("SELECT slots FROM quota_slots", &[]).await, i32::MAX);
}

/// Invariant 4.
#[tokio::test]
async fn arrays_of_quotas_count_from_any_subscript() {
    let site = Site::open().await;
    site.execute("SELECT quota_register('h', '1 hour')").await;
    let many = "SELECT quota_acquire_many('h', '{{a},{b}}', '{{1},{1}}', '{{1},{1}}', '{{NULL},{NULL}}', '{{0},{0}}')";
    assert_eq!(site.value::<Vec<i32>>(many, &[]).await, [1, 1]);
    // The second part does not fit yet, and it is said when it will.
    let parts = "SELECT retry_after > '0' FROM quota_admit_parts('k', '[0:1]={5,4}', 5, '1 minute')";
    assert!(site.value::<bool>(parts, &[]).await);
    let settle =
        "SELECT quota_settle('k', '1 minute', array_fill(admitted_at[1], ARRAY[1], ARRAY[0]), '[0:0]={-2}')
        FROM quota_windows WHERE key = 'k'";
    site.execute(settle).await;
    assert_eq!(site.value::<Vec<i64>>("SELECT counts FROM quota_windows WHERE key = 'k'", &[]).await, [3]);
    site.execute("SELECT quota_settle('k', '1 minute', '{{now},{now}}', '{{1},{2}}')").await;
    let (code, message) = refused(&site, "SELECT quota_settle('k', '1 minute', '{{now}}', '{{NULL}}')").await;
    assert_eq!(code, "LH001");
    assert!(message.contains("changes"), "{message}");
}

#[tokio::test]
async fn a_rate_next_to_nothing_is_refused_by_name() {
    let site = Site::open().await;
    let (code, message) = refused(&site, "SELECT quota_set_rate('k', 5e-324, '1 hour')").await;
    assert_eq!(
        (&*code, &*message),
        ("LH001", "rate must be 0, or at least 0.000000001 a second, not 5e-324")
    );
    site.execute("SELECT quota_set_rate('k', 1e-9, '1 hour'); SELECT quota_take('k', 1, '1 day')").await;
    site.execute("SELECT quota_set_rate('k', 0, '1 hour'); SELECT quota_take('k', 1, '0')").await;
}
