use super::*;
use crate::{
    config::{Class, Tier},
    gate::{
        Dropped, Failed, Release, Turned,
        asking::{Notes, Noting, Question, Scripted, ask, passed, refused, waits},
    },
};

fn giving(name: &'static str, notes: &Notes) -> Arc<dyn Gate> {
    let notes = Arc::clone(notes);
    Scripted::gate(1.0, move |_| {
        notes.lock().unwrap().push(format!("{name} asked"));
        Decision::Continue(Pass { release: Release::of(Noting(name, Arc::clone(&notes))), ..Pass::default() })
    })
}

fn turning(decide: fn() -> Decision) -> Arc<dyn Gate> {
    Scripted::gate(1.0, move |_| decide())
}

fn classing(class: Option<Class>) -> Arc<dyn Gate> {
    Scripted::gate(1.0, move |_| Decision::Continue(Pass { class, ..Pass::default() }))
}

const NOT_ON: [fn() -> Decision; 4] = [
    || Decision::Wait(Turned::by("scripted")),
    || Decision::Refuse(Turned::by("scripted")),
    || Decision::Drop(Dropped { by: "scripted", message: "no".into(), answer: None }),
    || Decision::Fail(Failed { by: "scripted", message: "no".into() }),
];

#[tokio::test]
async fn the_first_that_does_not_let_pass_decides_and_the_others_give_back_in_reverse() {
    for decide in NOT_ON {
        let notes = Notes::default();
        let gates = vec![giving("a", &notes), giving("b", &notes), turning(decide), giving("never", &notes)];
        let decision = ask(&Composite(gates)).await;
        assert_eq!(decision.as_str(), decide().as_str());
        assert_eq!(*notes.lock().unwrap(), ["a asked", "b asked", "b back", "a back"]);
    }
}

#[tokio::test]
async fn what_all_gave_is_kept_together_and_given_back_in_reverse() {
    let notes = Notes::default();
    let composite = Composite(vec![giving("a", &notes), giving("b", &notes), giving("c", &notes)]);
    let pass = passed(ask(&composite).await);
    assert_eq!(notes.lock().unwrap().split_off(0), ["a asked", "b asked", "c asked"]);
    let mut release = pass.release;
    release.sent();
    drop(release);
    let back = ["a sent", "b sent", "c sent", "c back", "b back", "a back"];
    assert_eq!(*notes.lock().unwrap(), back);
}

#[tokio::test]
async fn the_smallest_budget_counts() {
    let gates = [0.9, 0.2, 1.0].map(|budget| Scripted::gate(budget, |_| Decision::pass()));
    assert_eq!(Composite(gates.into()).budget(), 0.2);
    assert_eq!(Composite(vec![Scripted::gate(0.0, |_| Decision::pass())]).budget(), 0.0);
}

#[tokio::test]
async fn a_class_is_told_to_the_gates_after_it_and_handed_on() {
    let seen: Arc<std::sync::Mutex<Vec<_>>> = Arc::default();
    let looking = || {
        let seen = Arc::clone(&seen);
        Scripted::gate(1.0, move |asked| {
            seen.lock().unwrap().push((asked.class, asked.tier));
            Decision::pass()
        })
    };
    let gates = vec![
        looking(),
        classing(Some(Class::Reserved)),
        looking(),
        classing(None),
        looking(),
        classing(Some(Class::Overflow)),
        looking(),
    ];
    let question = Question { tier: Tier::Async, ..Question::new() };
    let pass = passed(question.put(&Composite(gates)).await);
    assert_eq!(pass.class, Some(Class::Overflow), "the last word");
    let classes = [None, Some(Class::Reserved), Some(Class::Reserved), Some(Class::Overflow)];
    assert_eq!(*seen.lock().unwrap(), classes.map(|class| (class, Tier::Async)));
    let unsorted = passed(ask(&Composite(vec![classing(None)])).await);
    assert_eq!(unsorted.class, None);
}

#[tokio::test]
async fn a_refusal_becomes_a_wait_and_nothing_else_changes() {
    for decide in NOT_ON {
        let wanted = match decide().as_str() {
            "refuse" => "wait",
            other => other,
        };
        assert_eq!(ask(&WaitOnRefuse(turning(decide))).await.as_str(), wanted);
    }
    let after = Some(std::time::Duration::from_secs(3));
    let inner = Scripted::gate(0.4, move |_| Decision::Refuse(Turned { after, ..Turned::by("inner") }));
    refused(ask(&*inner).await);
    let gate = WaitOnRefuse(inner);
    let turned = waits(ask(&gate).await);
    assert_eq!((turned.by, turned.after, gate.budget()), ("inner", after, 0.4));
    let notes = Notes::default();
    drop(passed(ask(&WaitOnRefuse(giving("a", &notes))).await));
    assert_eq!(*notes.lock().unwrap(), ["a asked", "a back"]);
}
