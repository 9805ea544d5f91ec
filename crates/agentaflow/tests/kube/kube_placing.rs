//! Selection of pods by schedulerName.

use crate::PROGRAM;
use crate::support::{NodePlan, PodPlan, Scheduler, Share};

#[tokio::test]
#[ignore = "needs a Kubernetes control plane"]
async fn only_pods_with_the_scheduler_name_are_placed() {
    let share = Share::new().await;
    let node = share.node("a", &NodePlan::gpus(4)).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    share.create_pod(&PodPlan::new("ours").gpus(1).scheduler(&share.scheduler_name())).await;
    share.create_pod(&PodPlan::new("theirs").gpus(1)).await;
    assert_eq!(share.bound("ours").await, node);
    assert_eq!(share.bound_by("ours").await.assigned_node, Some(node.clone()));
    assert_eq!(share.bound("theirs").await, node);
    assert_eq!(share.bound_by("theirs").await.assigned_node, None);
    share.in_phase("ours", "Running").await;
}
