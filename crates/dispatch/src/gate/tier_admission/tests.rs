use std::time::Duration;

use super::*;
use crate::gate::{
    Failed, Turned,
    asking::{Question, Scripted, ask},
};

const AFTER: Duration = Duration::from_secs(3);

fn full(wait: bool) -> TierAdmission {
    TierAdmission(Scripted::gate(0.0, move |_| {
        let turned = Turned { after: Some(AFTER), ..Turned::by("inner") };
        if wait { Decision::Wait(turned) } else { Decision::Refuse(turned) }
    }))
}

#[tokio::test]
async fn without_room_reserved_waits_interactive_overflow_is_dropped_and_the_rest_refused() {
    use {Class::*, Tier::*};
    for wait in [false, true] {
        for (class, tier, wanted) in [
            (Some(Reserved), Interactive, "wait"),
            (Some(Reserved), Async, "wait"),
            (Some(Reserved), Batch, "wait"),
            (Some(Overflow), Interactive, "drop"),
            (Some(Overflow), Async, "refuse"),
            (Some(Overflow), Batch, "refuse"),
            (None, Interactive, "refuse"),
            (None, Batch, "refuse"),
        ] {
            let decision = Question { class, tier, ..Question::new() }.put(&full(wait)).await;
            assert_eq!(decision.as_str(), wanted, "{class:?} {tier:?}");
            if let Decision::Wait(turned) | Decision::Refuse(turned) = decision {
                assert_eq!((turned.by, turned.after), ("inner", Some(AFTER)));
            }
        }
    }
}

#[tokio::test]
async fn what_is_dropped_has_the_answer_of_a_rate_limit() {
    let question = Question { class: Some(Class::Overflow), tier: Tier::Interactive, ..Question::new() };
    let Decision::Drop(dropped) = question.put(&full(false)).await else { panic!("not dropped") };
    assert_eq!(dropped.by, "tier-admission");
    let answer = dropped.answer.unwrap();
    assert_eq!((answer.status, answer.content_type.as_deref()), (429, Some("application/json")));
    let body: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(body["error"]["code"], 429);
    assert_eq!(body["error"]["type"], "rate_limit_error");
    assert_eq!(body["error"]["message"], dropped.message);
}

#[tokio::test]
async fn with_room_or_a_broken_inner_gate_nothing_is_sorted() {
    let open = TierAdmission(Scripted::gate(0.3, |_| Decision::pass()));
    assert_eq!(ask(&open).await.as_str(), "continue");
    let broken = TierAdmission(Scripted::gate(0.3, |_| {
        Decision::Fail(Failed { by: "inner", message: "broken".into() })
    }));
    assert_eq!(ask(&broken).await.as_str(), "error");
    assert_eq!(open.budget(), 1.0, "let in to be sorted");
}
