//! What operators see and set: backlog, request status, status, queue settings.

use std::time::Duration;

use leasehold_store::{Error, NewRequest, QueueSettings, RequestState};
use serde_json::json;

use crate::{
    flight::retry,
    support::{Site, completion, invalid_argument, request},
};

/// Case 26.
#[tokio::test]
async fn backlog_counts_every_state_and_each_window() {
    let site = Site::open().await;
    let queue = site.queue("q").await;
    site.join(queue, "a", 64).await;
    let now = site.store.now().await.unwrap();
    let within = |id: &str, minutes: i64| NewRequest {
        deadline: Some(now + jiff::SignedDuration::from_mins(minutes)),
        ..request(id)
    };
    site.store.enqueue(&[within("in flight", 5)]).await.unwrap();
    site.dispatch_one(queue, "a").await;
    let later = now + jiff::SignedDuration::from_mins(10);
    site.store
        .enqueue(&[
            within("pending", 15),
            NewRequest { not_before: Some(later), ..within("parked", 25) },
            NewRequest { queue: "other".into(), ..within("elsewhere", 5) },
        ])
        .await
        .unwrap();
    let minutes = [10, 20, 30].map(|n| Duration::from_secs(n * 60));
    let backlog = site.store.backlog("q", &minutes).await.unwrap();
    assert_eq!((backlog.depth, backlog.due), (3, vec![1, 2, 3]));
    let backlog = site.store.backlog("q", &[minutes[2], minutes[0]]).await.unwrap();
    assert_eq!(backlog.due, [3, 1], "in the order asked");
    let backlog = site.store.backlog("other", &[]).await.unwrap();
    assert_eq!((backlog.depth, backlog.due), (1, vec![]));
    site.store.enqueue(&[request("without deadline")]).await.unwrap();
    let backlog = site.store.backlog("q", &[Duration::from_secs(366 * 86_400)]).await.unwrap();
    assert_eq!((backlog.depth, backlog.due), (4, vec![3]));
}

#[tokio::test]
async fn has_requests_in_whatever_state() {
    let (site, queue, stamp) = Site::one_in_flight().await;
    let other = site.queue("other").await;
    assert!(site.store.has_requests(queue).await.unwrap());
    assert!(!site.store.has_requests(other).await.unwrap());
    site.store.retry("a", &[retry(&stamp, Duration::from_secs(60))]).await.unwrap();
    assert!(site.store.has_requests(queue).await.unwrap(), "parked");
    site.execute("UPDATE requests SET due_at = now()").await;
    site.store.promote_due(queue, 1).await.unwrap();
    assert!(site.store.has_requests(queue).await.unwrap(), "pending");
    let stamp = site.dispatch_one(queue, "a").await;
    site.store.ack("a", &[completion(&stamp)]).await.unwrap();
    assert!(!site.store.has_requests(queue).await.unwrap());
}

#[tokio::test]
async fn request_status_names_the_state_of_each_generation() {
    let (site, _, stamp) = Site::one_in_flight().await;
    let later = site.store.now().await.unwrap() + jiff::SignedDuration::from_hours(1);
    let generation = |token: &str| NewRequest { token: Some(token.into()), ..request("x") };
    site.store
        .enqueue(&[generation("2"), NewRequest { not_before: Some(later), ..generation("3") }])
        .await
        .unwrap();
    let status = site.store.request_status("x").await.unwrap();
    let states: Vec<_> = status.iter().map(|s| (s.token.as_str(), s.state)).collect();
    assert_eq!(
        states,
        [("t", RequestState::InFlight), ("2", RequestState::Pending), ("3", RequestState::Parked)]
    );
    for found in &status {
        assert_eq!(
            site.value::<String>("SELECT state FROM request_status('x') WHERE token = $1", &[&found.token])
                .await,
            found.state.as_str()
        );
        assert_eq!((found.queue.as_str(), found.partition), ("q", Some(leasehold_store::partition_of("x"))));
    }
    assert_eq!(status[0].owner.as_deref(), Some("a"));
    assert_eq!((status[1].owner.as_deref(), status[1].deliveries), (None, 0));
    assert!(
        site.value::<bool>("SELECT due_at IS NOT NULL FROM request_status('x') WHERE token = '3'", &[]).await
    );
    site.store.ack("a", &[completion(&stamp)]).await.unwrap();
    site.store.cancel(&["x"]).await.unwrap();
    let status = site.store.request_status("x").await.unwrap();
    assert_eq!(
        status.iter().map(|s| (s.state, s.cancelled)).collect::<Vec<_>>(),
        [(RequestState::Pending, true); 2]
    );
    assert_eq!(site.store.request_status("unknown").await.unwrap(), []);
}

#[tokio::test]
async fn status_shows_queues_dispatchers_partitions_and_routes() {
    let (site, queue, _) = Site::one_in_flight().await;
    site.queue("idle").await;
    site.store.enqueue(&[request("y"), request("z")]).await.unwrap();
    site.store.set_draining(queue, "a", &[5], true).await.unwrap();
    site.execute("UPDATE partitions SET lease_expires_at = now() WHERE partition_id = 6").await;
    site.execute(
        "INSERT INTO results (enqueued_at, finished_at, attempt, queue_id, deliveries, body_is_text, route, id, token)
         SELECT now(), now(), 1, 1, 1, false, r, n, 't' FROM generate_series(1, 5) n, unnest(ARRAY['a', 'b']) r",
    )
    .await;
    let status = site.store.status(4).await.unwrap();
    assert_eq!(status.queues.iter().map(|q| q.queue.as_str()).collect::<Vec<_>>(), ["idle", "q"]);
    let q = &status.queues[1];
    assert_eq!((q.pending, q.in_flight, q.parked), (2, 1, 0));
    assert!(q.oldest_seconds.unwrap() >= 0.0);
    assert_eq!(q.dispatchers.len(), 1);
    assert!(q.dispatchers[0].owner == "a" && q.dispatchers[0].member && !q.dispatchers[0].asleep);
    assert_eq!(q.partitions.len(), 64);
    assert!(q.partitions[5].draining && q.partitions[6].lapsed && !q.partitions[7].lapsed);
    let routes: Vec<_> = status.routes.iter().map(|r| (r.route.as_str(), r.waiting)).collect();
    assert_eq!(routes, [("a", 4), ("b", 4)], "counts stop at the bound");
}

#[tokio::test]
async fn queue_settings_are_changed_one_by_one_and_put_back_by_null() {
    let site = Site::open().await;
    let given = json!({ "route": "r", "result_ttl": "1 day", "default_deadline": "PT90S", "max_deliveries": 3,
        "max_payload_bytes": 0, "tenant_attributes": ["userid", "model"] });
    site.store.configure_queue("q", &given).await.unwrap();
    let queue = site.store.ensure_queue("q").await.unwrap();
    let settings = site.store.queue_settings(queue).await.unwrap().unwrap();
    let expected = QueueSettings {
        route: Some("r".into()),
        result_ttl: Some(Duration::from_secs(86_400)),
        default_deadline: Some(Duration::from_secs(90)),
        max_deliveries: 3,
        max_payload_bytes: 0,
        channel: settings.channel.clone(),
        tenant_attributes: vec!["userid".into(), "model".into()],
        has_tenants: true,
    };
    assert_eq!(settings, expected);
    site.store.configure_queue("q", &json!({})).await.unwrap();
    assert_eq!(site.store.queue_settings(queue).await.unwrap().unwrap(), expected);
    site.store
        .configure_queue(
            "q",
            &json!({ "route": null, "result_ttl": null, "max_deliveries": null, "max_payload_bytes": null }),
        )
        .await
        .unwrap();
    let settings = site.store.queue_settings(queue).await.unwrap().unwrap();
    assert_eq!((settings.route, settings.result_ttl), (None, None));
    assert_eq!(settings.default_deadline, Some(Duration::from_secs(90)), "left out, so left alone");
    assert_eq!((settings.max_deliveries, settings.max_payload_bytes), (10, 16 << 20));
    assert_eq!(site.store.queue_settings(queue + 1).await.unwrap(), None);
}

#[tokio::test]
async fn bad_setting_is_named_and_changes_nothing() {
    let site = Site::open().await;
    let queue = site.store.ensure_queue("q").await.unwrap();
    let before = site.store.queue_settings(queue).await.unwrap();
    for (config, named) in [
        (json!({ "max_deliveries": 5, "colour": "red" }), "colour"),
        (json!({ "max_deliveries": 0 }), "max_deliveries"),
        (json!({ "max_deliveries": "many" }), "max_deliveries"),
        (json!({ "max_deliveries": 1e12 }), "max_deliveries"),
        (json!({ "max_payload_bytes": -1 }), "max_payload_bytes"),
        (json!({ "result_ttl": "soon" }), "result_ttl"),
        (json!({ "result_ttl": "-1 hour" }), "result_ttl"),
        (json!({ "default_deadline": "0" }), "default_deadline"),
        (json!({ "route": "" }), "route"),
        (json!({ "route": "a\nb" }), "route"),
        (json!([]), "config"),
        (json!(null), "config"),
    ] {
        let message = invalid_argument(site.store.configure_queue("q", &config).await.unwrap_err());
        assert!(message.contains(named), "{config}: {message}");
        let message = invalid_argument(site.store.configure_queue("new", &config).await.unwrap_err());
        assert!(message.contains(named), "{config}: {message}");
    }
    assert_eq!(site.store.queue_settings(queue).await.unwrap(), before);
    assert_eq!(site.count("queues").await, 1, "nor was a queue made");
}

#[tokio::test]
async fn unknown_queue_is_not_found_and_not_made() {
    let site = Site::open().await;
    let error = site.store.backlog("nope", &[]).await.unwrap_err();
    assert!(matches!(&error, Error::QueueNotFound(message) if message.contains("nope")), "{error:?}");
    let long = "x".repeat(256);
    for name in ["", "a\tb", long.as_str()] {
        let message = invalid_argument(site.store.ensure_queue(name).await.unwrap_err());
        assert!(message.contains("queue"), "{message}");
        assert!(matches!(site.store.backlog(name, &[]).await, Err(Error::InvalidArgument(_))));
    }
    assert_eq!(site.count("queues").await, 0);
}
