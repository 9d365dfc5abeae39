use super::*;
use crate::gate::asking::{ask, passed, refused};

#[tokio::test]
async fn a_constant_lets_all_pass_at_its_budget() {
    let gate = Constant { budget: 0.25 };
    assert_eq!(gate.budget(), 0.25);
    assert_eq!(ask(&gate).await.as_str(), "continue");
    assert_eq!(ask(&Constant { budget: 0.0 }).await.as_str(), "continue");
}

#[tokio::test]
async fn no_more_than_the_limit_are_under_way_and_the_budget_is_the_free_part() {
    let gate = LocalConcurrency::new(4);
    let mut held = Vec::new();
    for budget in [1.0, 0.75, 0.5, 0.25] {
        assert_eq!(gate.budget(), budget);
        held.push(passed(ask(&gate).await));
    }
    assert_eq!(gate.budget(), 0.0);
    let freed = refused(ask(&gate).await).freed.unwrap();
    assert_eq!(freed.count(), 0);
    held.truncate(2);
    freed.wait().await;
    assert_eq!((freed.count(), gate.budget()), (2, 0.5));
    passed(ask(&gate).await);
}
