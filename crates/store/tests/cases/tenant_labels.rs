//! Labels: what makes a request a tenant's, who sets that, and that it stays so through all that happens to it.

use std::time::Duration;

use leasehold_store::{NewRequest, TenantPoll};
use serde_json::json;

use crate::{
    flight::{deferral, retry},
    support::{Site, completion, ids, invalid_argument, request, stamps},
    tenants::{caps, of_tenant, requests_of, turns},
};

/// Metadata and its label, where tenants are told apart by `userid`, and by `userid` and `model`.
const LABELS: &[(&str, &str, &str)] = &[
    (r#"{"userid": "u"}"#, "u", "u"),
    (r#"{"userid": "u", "model": "m"}"#, "u", "u\u{1f}m"),
    (r#"{"model": "m"}"#, "", "\u{1f}m"),
    (r#"{"userid": "", "model": ""}"#, "", ""),
    (r#"{"userid": null, "other": "u"}"#, "", ""),
    (r#"{"userid": 7, "model": true}"#, "7", "7\u{1f}true"),
    (r#"{"userid": ["u"]}"#, r#"["u"]"#, r#"["u"]"#),
    ("{}", "", ""),
];

impl Site {
    async fn attributes(&self, attributes: &[&str]) {
        self.store.configure_queue("q", &json!({ "tenant_attributes": attributes })).await.unwrap();
    }

    async fn label(&self, id: &str) -> String {
        self.value("SELECT tenant FROM requests WHERE id = $1", &[&id]).await
    }
}

#[tokio::test]
async fn request_is_labelled_with_the_values_of_the_attributes_however_it_is_enqueued() {
    let site = Site::open().await;
    for (attributes, of_two) in [(&["userid"][..], false), (&["userid", "model"], true)] {
        site.attributes(attributes).await;
        for (metadata, one, two) in LABELS {
            let expected = if of_two { two } else { one };
            site.execute(&format!(
                "TRUNCATE requests, submissions;
                 SELECT enqueue('q', 'x', 'one', metadata => '{metadata}');
                 SELECT enqueue('q', 'x', 'one named', 't', metadata => '{metadata}');
                 SELECT enqueue('q', '{{}}'::jsonb, 'json', metadata => '{metadata}');
                 SELECT enqueue_many('q', ARRAY['x'], ARRAY['many'], metadata => ARRAY['{metadata}']::jsonb[]);
                 SELECT enqueue_many('q', ARRAY['x'], ARRAY['many named'], ARRAY['t'],
                    metadata => ARRAY['{metadata}']::jsonb[])"
            ))
            .await;
            for id in ["one", "one named", "json", "many", "many named"] {
                assert_eq!(site.label(id).await, **expected, "{id} with {metadata}");
            }
        }
        site.execute("SELECT enqueue('q', 'x', 'without')").await;
        assert_eq!(site.label("without").await, "");
    }
}

/// An index takes no value of any length.
#[tokio::test]
async fn long_value_is_labelled_with_its_digest() {
    let (site, queue) = Site::with_tenants().await;
    let (whole, long) = ("x".repeat(255), "ü".repeat(100_000));
    site.store.enqueue(&[of_tenant(&whole, "whole"), of_tenant(&long, "long")]).await.unwrap();
    assert_eq!(site.label("whole").await, whole);
    assert_eq!(site.label("long").await, site.value::<String>("SELECT md5($1)", &[&long]).await);
    assert_eq!(site.poll(queue, "a", 10, &turns(1)).await.tenants, 2);
}

/// A queue that tells nobody apart pays for none of it.
#[tokio::test]
async fn queue_without_tenants_has_nothing_in_their_index() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    site.join(queue, "a", 64).await;
    site.store.enqueue(&requests_of("u", 100)).await.unwrap();
    let settings = site.store.queue_settings(queue).await.unwrap().unwrap();
    assert_eq!((settings.tenant_attributes, settings.has_tenants), (vec![], false));
    let size: i64 = site.value("SELECT pg_relation_size('requests_tenant')", &[]).await;
    assert_eq!(size, 8192, "no more than its first page");
    assert_eq!(site.poll(queue, "a", 10, &turns(1)).await.requests, []);
    let batch = site.dispatch(queue, "a", 200).await;
    assert!(batch.len() == 100 && batch.iter().all(|r| r.tenant.is_empty()));
}

/// In a queue with tenants, each request is found by one kind of poll, and by one only.
#[tokio::test]
async fn request_without_a_label_is_dispatched_as_ever() {
    let (site, queue) = Site::with_tenants().await;
    site.store
        .enqueue(&[of_tenant("u", "labelled"), request("plain"), of_tenant("", "empty")])
        .await
        .unwrap();
    assert_eq!(ids(&site.dispatch(queue, "a", 10).await), ["plain", "empty"]);
    let batch = site.poll(queue, "a", 10, &turns(1)).await;
    assert_eq!((ids(&batch.requests), batch.requests[0].tenant.as_str()), (vec!["labelled"], "u"));
}

#[tokio::test]
async fn bad_tenant_attributes_are_refused_by_name() {
    let (site, queue) = Site::with_tenants().await;
    let nine: Vec<String> = (0..9).map(|n| n.to_string()).collect();
    for bad in [
        json!([]),
        json!(nine),
        json!("userid"),
        json!({ "userid": 1 }),
        json!(["userid", 7]),
        json!(["userid", null]),
        json!([["userid"]]),
        json!([""]),
        json!(["x".repeat(256)]),
        json!(["a\nb"]),
        json!(7),
    ] {
        let config = json!({ "max_deliveries": 3, "tenant_attributes": bad });
        let message = invalid_argument(site.store.configure_queue("q", &config).await.unwrap_err());
        assert!(message.contains("tenant_attributes"), "{config}: {message}");
    }
    for bad in [vec![], nine, vec![String::new()]] {
        let error = site.store.ensure_tenant_attributes(queue, &bad).await.unwrap_err();
        assert!(invalid_argument(error).contains("tenant_attributes"), "{bad:?}");
    }
    let settings = site.store.queue_settings(queue).await.unwrap().unwrap();
    assert_eq!((settings.tenant_attributes, settings.max_deliveries), (vec!["userid".into()], 10));
}

/// A null tells tenants apart no longer; those that are labelled stay so, and the settings say that they are there.
#[tokio::test]
async fn tenants_of_a_queue_that_no_longer_has_any_are_still_polled() {
    let (site, queue) = Site::with_tenants().await;
    site.store.enqueue(&[of_tenant("u", "before")]).await.unwrap();
    site.store.configure_queue("q", &json!({ "tenant_attributes": null })).await.unwrap();
    site.store.enqueue(&[of_tenant("u", "after")]).await.unwrap();
    let settings = site.store.queue_settings(queue).await.unwrap().unwrap();
    assert_eq!((settings.tenant_attributes, settings.has_tenants), (vec![], true));
    assert_eq!(ids(&site.dispatch(queue, "a", 10).await), ["after"]);
    let batch = site.poll(queue, "a", 10, &turns(1)).await;
    assert_eq!(ids(&batch.requests), ["before"]);
    site.store.ack("a", &[completion(&batch.requests[0].stamped.stamp)]).await.unwrap();
    assert!(!site.store.queue_settings(queue).await.unwrap().unwrap().has_tenants);
}

#[tokio::test]
async fn tenant_attributes_are_ensured_only_once() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    let ensure = async |attributes: &[&str]| {
        let attributes: Vec<String> = attributes.iter().map(|a| (*a).to_owned()).collect();
        site.store.ensure_tenant_attributes(queue, &attributes).await.unwrap()
    };
    assert_eq!(ensure(&["userid", "model"]).await, (vec!["userid".into(), "model".into()], true));
    for other in [&["userid", "model"][..], &["other"]] {
        assert_eq!(ensure(other).await, (vec!["userid".into(), "model".into()], false));
    }
    site.attributes(&["other"]).await;
    assert_eq!(ensure(&["userid"]).await, (vec!["other".into()], false), "the operator's come first");
}

/// What was there before is labelled a partition at a time, past what another transaction holds.
#[tokio::test]
async fn requests_from_before_are_labelled() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    site.join(queue, "a", 64).await;
    let requests: Vec<NewRequest> = requests_of("u", 40);
    site.store.enqueue(&requests).await.unwrap();
    site.store.enqueue(&[request("plain"), of_tenant("", "empty")]).await.unwrap();
    let partition = leasehold_store::partition_of("u0");
    assert_eq!(site.store.label_tenants(queue, partition, 10).await.unwrap(), 0, "nothing to label by");
    site.attributes(&["userid"]).await;
    let open = site.begin().await;
    open.lock("u0").await;
    let label_all = async || {
        let mut labelled = 0;
        for partition in 0..64 {
            while site.store.label_tenants(queue, partition, 1).await.unwrap() == 1 {
                labelled += 1;
            }
        }
        labelled
    };
    assert_eq!(label_all().await, 39);
    open.commit().await;
    assert_eq!(label_all().await, 1);
    assert_eq!(label_all().await, 0);
    assert_eq!(ids(&site.dispatch(queue, "a", 100).await), ["plain", "empty"]);
    let batch = site.poll(queue, "a", 100, &turns(1)).await;
    assert_eq!((batch.requests.len(), batch.tenants), (40, 1));
    assert!(batch.requests.is_sorted_by_key(|r| r.seq));
}

/// One that was in flight then is labelled when it is handed back.
#[tokio::test]
async fn undispatch_labels_what_is_not_labelled_yet() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    site.join(queue, "a", 64).await;
    site.store.enqueue(&[of_tenant("u", "x"), request("plain")]).await.unwrap();
    let given = stamps(&site.dispatch(queue, "a", 10).await);
    site.attributes(&["userid"]).await;
    assert_eq!(site.store.label_tenants(queue, leasehold_store::partition_of("x"), 10).await.unwrap(), 0);
    assert_eq!(site.store.undispatch("a", &given, true).await.unwrap().len(), 2);
    assert_eq!(ids(&site.dispatch(queue, "a", 10).await), ["plain"]);
    let batch = site.poll(queue, "a", 10, &turns(1)).await;
    assert_eq!((ids(&batch.requests), batch.requests[0].tenant.as_str()), (vec!["x"], "u"));
}

/// Case 23: a next try is the same tenant's, whatever its envelope says by then.
#[tokio::test]
async fn retry_deferral_and_promotion_keep_the_tenant() {
    let (site, queue) = Site::with_tenants().await;
    site.store.enqueue(&requests_of("u", 2)).await.unwrap();
    let given = stamps(&site.poll(queue, "a", 10, &turns(2)).await.requests);
    assert_eq!(site.store.retry("a", &[retry(&given[0], Duration::ZERO)]).await.unwrap().len(), 1);
    assert_eq!(
        site.store.defer_dispatches("a", &[deferral(&given[1], Duration::ZERO)]).await.unwrap().len(),
        1
    );
    assert_eq!(site.poll(queue, "a", 10, &turns(2)).await.requests, [], "parked");
    assert_eq!(site.store.promote_due(queue, 10).await.unwrap().promoted, 2);
    assert_eq!(site.dispatch(queue, "a", 10).await, []);
    let batch = site.poll(queue, "a", 10, &turns(2)).await;
    let found: Vec<_> = batch.requests.iter().map(|r| (r.tenant.as_str(), r.deliveries)).collect();
    assert_eq!(found, [("u", 2), ("u", 1)]);
    let later = site.store.now().await.unwrap() + jiff::SignedDuration::from_hours(1);
    site.store.enqueue(&[NewRequest { not_before: Some(later), ..of_tenant("u", "later") }]).await.unwrap();
    assert_eq!(site.poll(queue, "a", 10, &turns(2)).await.requests, []);
    site.execute("UPDATE requests SET due_at = now() WHERE id = 'later'").await;
    assert_eq!(site.store.promote_due(queue, 10).await.unwrap().promoted, 1);
    assert_eq!(ids(&site.poll(queue, "a", 10, &turns(2)).await.requests), ["later"]);
}

/// Case 12, invariants 1 and 2: the flight and the stale reset see them, and they are delivered again.
#[tokio::test]
async fn takeover_redelivers_the_requests_of_tenants() {
    let (site, queue) = Site::with_tenants().await;
    site.store.enqueue(&requests_of("u", 3)).await.unwrap();
    site.store.enqueue(&[request("plain")]).await.unwrap();
    let old = stamps(&site.poll(queue, "a", 10, &turns(3)).await.requests);
    assert_eq!(site.dispatch(queue, "a", 10).await.len(), 1);
    let mut flight: Vec<_> = site.store.in_flight(queue, "a").await.unwrap().stamped;
    flight.retain(|s| s.stamp.id != "plain");
    flight.sort_by(|a, b| a.stamp.cmp(&b.stamp));
    assert_eq!(flight.into_iter().map(|s| s.stamp).collect::<Vec<_>>(), old);

    assert_eq!(site.take_over(queue, "b").await, 4);
    assert_eq!(site.store.in_flight(queue, "a").await.unwrap().stamped, []);
    let new = stamps(&site.poll(queue, "b", 10, &turns(3)).await.requests);
    assert_eq!(new.len(), 3);
    let completions = |stamps: &[_]| stamps.iter().map(completion).collect::<Vec<_>>();
    assert_eq!(site.store.ack("a", &completions(&old)).await.unwrap(), [false; 3]);
    assert_eq!(site.store.ack("b", &completions(&new)).await.unwrap(), [true; 3]);
    assert_eq!(site.rows_of("u0").await, (0, 1));
}

/// Case 26.
#[tokio::test]
async fn requests_of_tenants_are_counted() {
    let (site, queue) = Site::with_tenants().await;
    site.store.enqueue(&requests_of("u", 3)).await.unwrap();
    assert!(site.store.has_requests(queue).await.unwrap());
    let given = stamps(&site.poll(queue, "a", 2, &turns(2)).await.requests);
    site.store.defer_dispatches("a", &[deferral(&given[1], Duration::from_secs(3600))]).await.unwrap();
    site.store.enqueue(&[request("plain")]).await.unwrap();
    let status = site.store.status(100).await.unwrap().queues.remove(0);
    assert_eq!((status.pending, status.in_flight, status.parked), (2, 1, 1));
    assert!(status.oldest_seconds.is_some());
    assert_eq!(site.store.backlog("q", &[]).await.unwrap().depth, 4);
    assert_eq!(site.state("u0").await, "in flight");
    assert_eq!(site.state("u1").await, "parked");
    site.execute("DELETE FROM requests WHERE id <> 'u0'").await;
    assert!(site.store.has_requests(queue).await.unwrap());
    site.store.ack("a", &[completion(&given[0])]).await.unwrap();
    assert!(!site.store.has_requests(queue).await.unwrap());
}

/// Case 70, invariant 5: a cancelled request of a tenant that is blocked has its outcome at once.
#[tokio::test]
async fn cancelled_request_of_a_blocked_tenant_is_handed_out() {
    let (site, queue) = Site::with_tenants().await;
    site.store.enqueue(&requests_of("u", 2)).await.unwrap();
    assert_eq!(site.store.cancel(&["u1"]).await.unwrap(), 1);
    let poll = TenantPoll { ended_only: true, caps: caps(&[("u", 0)]), past_locked: true, ..turns(1) };
    let batch = site.poll(queue, "a", 10, &poll).await;
    assert_eq!((ids(&batch.requests), batch.requests[0].cancelled), (vec!["u1"], true));
    assert_eq!(batch.requests[0].tenant, "u");
    assert_eq!(site.state("u0").await, "pending");
}
