//! Life cycle of nodes.

use std::time::Duration;

use agentaflow_api::end::EndReason;
use agentaflow_api::error::ErrorCode;
use agentaflow_api::event::EventKind;
use agentaflow_api::ids::NodeId;
use agentaflow_api::job::{JobSpec, JobStatus, OnNodeLost, Volume};
use agentaflow_api::link::{KubernetesObjects, Message, StopCause, TaskUpdate};
use agentaflow_api::node::{
    GpuInstance, GpuStatus, Heartbeat, NodeRegistration, NodeStatus, NodeUpdate, PriceSource,
};
use agentaflow_api::pending::{PendingCode, PendingReason, Shortfall};
use agentaflow_api::units::Cores;
use agentaflow_server::core::{NodeRef, Registrant, Worker as Reporter};

use crate::rig::{INTERVAL, Rig, ended, registration, running, spec, stopped};

#[tokio::test]
async fn a_lost_agent_cannot_finish_a_job_given_to_another() {
    let rig = Rig::new().await;
    let mut first = rig.worker("a", 1).await;
    let id = rig.submit(spec(1)).await;
    let old = first.assignment().await.key;
    first.report(old, running()).await;
    let mut second = rig.worker("b", 1).await;
    // The first node is silent for three intervals.
    let new = second.beating(async { rig.until(id, |job| job.attempt == 2).await }).await;
    assert_eq!(new.assigned_node_id, Some(second.node));
    let key = second.assignment().await.key;
    assert!(!first.report(old, ended(0, 5)).await, "late news counts for nothing");
    assert_eq!(rig.job(id).await.status, JobStatus::Scheduled);
    assert!(second.report(key, ended(0, 5)).await);
    assert_eq!(rig.job(id).await.status, JobStatus::Completed);
    // The first node returns, is active again, and receives an empty sync.
    first.beat();
    let output = loop {
        if let Message::Sync { assignments, .. } = first.next().await {
            break assignments;
        }
    };
    assert!(output.is_empty());
    assert_eq!(rig.core.node(&NodeRef::Number(first.node)).unwrap().status, NodeStatus::Active);
}

#[tokio::test]
async fn a_node_is_silent_after_three_intervals_and_lost_after_its_lease() {
    let rig = Rig::with(|settings| settings.lease = Duration::from_secs(2), |store| store).await;
    let mut first = rig.worker("a", 1).await;
    let id = rig.submit(spec(1)).await;
    let key = first.assignment().await.key;
    first.report(key, running()).await;
    let second = rig.worker("b", 1).await;
    let renewed = rig.core.heartbeat(&NodeRef::Number(first.node), Heartbeat::default()).unwrap();
    assert_eq!(renewed.lease_ms, Some(2_000));
    second.beating(tokio::time::sleep(INTERVAL * 10)).await;
    let node = rig.core.node(&NodeRef::Number(first.node)).unwrap();
    assert_eq!((node.status, node.lease_ms), (NodeStatus::Inactive, None));
    let job = rig.job(id).await;
    assert_eq!((job.status, job.attempt), (JobStatus::Running, 1));
    let moved = second.beating(async { rig.until(id, |job| job.attempt == 2).await }).await;
    assert_eq!(moved.assigned_node_id, Some(second.node));
}

#[tokio::test]
async fn a_server_with_a_shorter_lease_waits_for_the_leases_of_the_earlier_one() {
    let mut rig =
        Rig::with(|settings| settings.lease = Duration::from_secs(3), |store| store).await;
    let mut first = rig.worker("a", 1).await;
    let id = rig.submit(spec(1)).await;
    let key = first.assignment().await.key;
    first.report(key, running()).await;
    rig.restart().await;
    let second = rig.worker("b", 1).await;
    second.beating(tokio::time::sleep(Duration::from_secs(2))).await;
    assert_eq!(rig.job(id).await.attempt, 1);
    second.beating(async { rig.until(id, |job| job.attempt == 2).await }).await;
}

#[tokio::test]
async fn a_task_that_its_agent_does_not_confirm_is_requeued() {
    let timeout = Duration::from_millis(300);
    let rig = Rig::with(|settings| settings.confirmation_timeout = timeout, |store| store).await;
    let mut worker = rig.worker("a", 1).await;
    let id = rig.submit(spec(1)).await;
    let lost = worker.assignment().await.key;
    worker.beating(async { rig.until(id, |job| job.attempt == 2).await }).await;
    assert!(rig.kinds(id).await.contains(&EventKind::Refused));
    assert!(!worker.report(lost, running()).await, "the first attempt is over");
}

#[tokio::test]
async fn a_restored_backup_repeats_numbers_but_no_task() {
    let mut rig = Rig::new().await;
    rig.core.stop().await;
    let database = rig.dir.path().join("agentaflow.db");
    let backup = std::fs::read(&database).unwrap();
    rig.restart().await;
    let mut worker = rig.worker("a", 1).await;
    rig.submit(spec(1)).await;
    let first = worker.assignment().await.key;
    rig.core.stop().await;
    std::fs::write(&database, backup).unwrap();
    rig.restart().await;
    let mut worker = rig.worker("a", 1).await;
    rig.submit(spec(1)).await;
    let second = worker.assignment().await.key;
    assert_eq!((first.job, first.epoch, first.task), (second.job, second.epoch, second.task));
    assert_ne!(first, second);
    assert!(!worker.report(first, ended(0, 1)).await, "the task of the lost history is unknown");
    assert!(worker.report(second, ended(0, 1)).await);
}

#[tokio::test]
async fn a_job_fails_after_too_many_lost_nodes() {
    let rig = Rig::new().await;
    let mut worker = rig.worker("a", 1).await;
    let id = rig.submit(JobSpec { max_retries: Some(0), ..spec(1) }).await;
    let key = worker.assignment().await.key;
    worker.report(key, running()).await;
    let job = rig.until(id, |job| job.status.is_final()).await;
    assert_eq!((job.status, job.end_reason), (JobStatus::Failed, Some(EndReason::NodeLost)));
}

#[tokio::test]
async fn a_job_with_on_node_lost_wait_is_not_requeued() {
    let rig = Rig::new().await;
    let mut first = rig.worker("a", 1).await;
    let id = rig.submit(JobSpec { on_node_lost: Some(OnNodeLost::Wait), ..spec(1) }).await;
    let assignment = first.assignment().await;
    assert!(!assignment.leased);
    first.report(assignment.key, running()).await;
    let second = rig.worker("b", 1).await;
    second
        .beating(async {
            for _ in 0..100 {
                let node = rig.core.node(&NodeRef::Number(first.node)).unwrap();
                if node.status == NodeStatus::Inactive {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
    let job = rig.job(id).await;
    assert_eq!((job.status, job.attempt), (JobStatus::Running, 1));
    first.beat();
    assert!(first.report(assignment.key, ended(0, 5)).await);
    assert_eq!(rig.job(id).await.status, JobStatus::Completed);
}

#[tokio::test]
async fn draining_a_node_requeues_its_jobs_without_a_retry() {
    let rig = Rig::new().await;
    let mut first = rig.worker("a", 1).await;
    let id = rig.submit(spec(1)).await;
    let key = first.assignment().await.key;
    first.report(key, running()).await;
    let mut second = rig.worker("b", 1).await;
    let drain = NodeUpdate { drain: Some(true), ..NodeUpdate::default() };
    rig.core.update_node(&NodeRef::Number(first.node), drain).await.unwrap();
    let stop = first.stop().await;
    assert_eq!(stop.cause, StopCause::Drained);
    first.report(key, stopped(StopCause::Drained, 5)).await;
    let again = second.assignment().await;
    assert_eq!((again.key.job, again.key.epoch), (id, 2));
    let job = rig.job(id).await;
    assert_eq!((job.retries_used, job.assigned_node_id), (0, Some(second.node)));
}

#[tokio::test]
async fn a_node_without_an_agent_gets_no_job() {
    let rig = Rig::new().await;
    let node = rig
        .core
        .register_node(registration("by-hand", 4), "127.0.0.1".parse().unwrap(), crate::rig::TOKEN)
        .await
        .unwrap();
    assert_eq!(node.status, NodeStatus::Pending);
    rig.core.heartbeat(&NodeRef::Name(node.node_id), Heartbeat::default()).unwrap();
    let id = rig.submit(spec(1)).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(rig.job(id).await.status, JobStatus::Pending);
    assert!(rig.core.available_nodes(0, 0).is_empty());
}

#[tokio::test]
async fn a_node_with_live_jobs_cannot_be_deleted() {
    let rig = Rig::new().await;
    let mut worker = rig.worker("a", 1).await;
    rig.submit(spec(1)).await;
    let key = worker.assignment().await.key;
    let node = NodeRef::Number(worker.node);
    assert_eq!(rig.core.delete_node(&node).await.unwrap_err().status, 409);
    worker.report(key, ended(0, 1)).await;
    rig.core.delete_node(&node).await.unwrap();
    assert!(rig.core.nodes().is_empty());
}

#[tokio::test]
async fn a_node_is_not_available_while_its_room_is_reserved() {
    let rig = Rig::new().await;
    let mut worker = rig.worker("a", 2).await;
    worker.beat();
    let first = rig.submit(JobSpec { estimated_duration_seconds: Some(600), ..spec(1) }).await;
    let key = worker.assignment().await.key;
    worker.report(key, running()).await;
    assert_eq!(rig.core.available_nodes(1_000, 0).len(), 1);
    let wide = rig.submit(spec(2)).await;
    rig.until(wide, |job| job.pending_reason.is_some()).await;
    assert_eq!(rig.core.available_nodes(1_000, 0).len(), 0, "the free GPU is held");
    assert_eq!(rig.core.available_nodes(0, 1_000).len(), 1);
    rig.core.cancel(&rig.ana, wide).await.unwrap();
    rig.until(wide, |job| job.status == JobStatus::Cancelled).await;
    assert_eq!(rig.core.available_nodes(1_000, 0).len(), 1);
    assert_eq!(rig.job(first).await.status, JobStatus::Running);
}

#[tokio::test]
async fn memory_of_foreign_processes_is_not_allocated() {
    let rig = Rig::new().await;
    let worker = rig.worker("a", 1).await;
    let gpu = GpuInstance {
        gpu_index: Some(0),
        gpu_memory_available: Some(10_000),
        gpu_memory_foreign: Some(30_000),
        ..GpuInstance::default()
    };
    let beat = Heartbeat { gpu_instances: Some(vec![gpu]), ..Heartbeat::default() };
    rig.core.heartbeat(&NodeRef::Number(worker.node), beat).unwrap();
    assert_eq!(rig.core.available_nodes(12_000, 0).len(), 0);
    assert_eq!(rig.core.available_nodes(8_000, 0).len(), 1);
    let share = |mib| JobSpec { gpu_count: None, gpu_memory_required: Some(mib), ..spec(0) };
    let large = rig.submit(share(12_000)).await;
    let small = rig.submit(share(8_000)).await;
    rig.until(small, |job| job.status == JobStatus::Scheduled).await;
    assert_eq!(rig.job(large).await.status, JobStatus::Pending);
}

#[tokio::test]
async fn registering_again_rotates_the_key_and_ends_the_older_stream() {
    let rig = Rig::new().await;
    let mut first = rig.worker("a", 1).await;
    let _second = rig.worker("a", 1).await;
    let end = tokio::time::timeout(Duration::from_secs(2), first.stream.recv()).await;
    assert!(end.unwrap().is_none());
    assert_eq!(rig.core.nodes().len(), 1);
    assert_eq!(
        rig.core.directory(|directory| directory.credentials.len()),
        2,
        "one of the node, one of the agent"
    );
}

#[tokio::test]
async fn a_job_with_on_node_lost_wait_can_be_cancelled() {
    let rig = Rig::new().await;
    let mut worker = rig.worker("a", 1).await;
    let id = rig.submit(JobSpec { on_node_lost: Some(OnNodeLost::Wait), ..spec(1) }).await;
    let key = worker.assignment().await.key;
    worker.report(key, running()).await;
    let node = NodeRef::Number(worker.node);
    for _ in 0..200 {
        if rig.kinds(id).await.contains(&EventKind::NodeLost) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(rig.job(id).await.status, JobStatus::Running);
    rig.core.cancel(&rig.ana, id).await.unwrap();
    assert_eq!(rig.job(id).await.status, JobStatus::Cancelled);
    rig.core.delete_node(&node).await.unwrap();
}

#[tokio::test]
async fn a_node_lost_while_draining_has_its_jobs_requeued() {
    let rig = Rig::new().await;
    let mut first = rig.worker("a", 1).await;
    let id = rig.submit(spec(1)).await;
    let key = first.assignment().await.key;
    first.report(key, running()).await;
    let mut second = rig.worker("b", 1).await;
    let drain = NodeUpdate { drain: Some(true), ..NodeUpdate::default() };
    rig.core.update_node(&NodeRef::Number(first.node), drain).await.unwrap();
    assert_eq!(first.stop().await.cause, StopCause::Drained);
    let again = second.beating(async { rig.until(id, |job| job.attempt == 2).await }).await;
    assert_eq!(again.assigned_node_id, Some(second.node));
    assert_eq!(second.assignment().await.key.epoch, 2);
}

#[tokio::test]
async fn tasks_that_fail_after_a_lost_node_do_not_fail_the_gang() {
    let rig = Rig::new().await;
    let mut first = rig.worker("a", 1).await;
    let mut second = rig.worker("b", 1).await;
    let id = rig.submit(JobSpec { replicas: Some(2), ..spec(1) }).await;
    let (one, two) = (first.assignment().await.key, second.assignment().await.key);
    first.report(one, running()).await;
    second.report(two, running()).await;
    first.beat();
    second.beat();
    // The first node dies; the second notices before the server does.
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(second.report(two, ended(1, 5)).await);
    let job =
        second.beating(async { rig.until(id, |job| job.status == JobStatus::Pending).await }).await;
    assert_eq!((job.retries_used, job.end_reason), (0, None));
}

#[tokio::test]
async fn a_second_agent_of_a_node_is_refused_while_the_first_has_jobs() {
    let rig = Rig::new().await;
    let mut worker = rig.worker("a", 1).await;
    rig.submit(spec(1)).await;
    let key = worker.assignment().await.key;
    worker.report(key, running()).await;
    let agent = |name: &str, node: NodeId| agentaflow_api::agent::AgentRegistration {
        agent_id: name.into(),
        node_id: Some(node),
        ..Default::default()
    };
    let refused = rig
        .core
        .register_agent(agent("other", worker.node), crate::rig::HERE, Registrant::Key(worker.node))
        .await;
    assert_eq!(refused.unwrap_err().code, ErrorCode::NodeTaken);
    // Another node must not take an agent's name, and with it the agent's stream.
    let thief = rig
        .core
        .register_node(registration("b", 1), crate::rig::HERE, crate::rig::TOKEN)
        .await
        .unwrap();
    let refused = rig
        .core
        .register_agent(agent("agent-a", thief.id), crate::rig::HERE, crate::rig::TOKEN)
        .await;
    assert_eq!(refused.unwrap_err().code, ErrorCode::AgentTaken);
    worker.report(key, ended(0, 1)).await;
    rig.core
        .register_agent(agent("other", worker.node), crate::rig::HERE, Registrant::Key(worker.node))
        .await
        .unwrap();
    assert_eq!(rig.core.agents().len(), 1, "the first is forgotten, with its key");
}

#[tokio::test]
async fn values_of_an_admin_survive_a_registration() {
    let rig = Rig::new().await;
    let worker = rig.worker("a", 1).await;
    let price = agentaflow_api::units::Dollars(9_000_000);
    let update = NodeUpdate { price_per_gpu_hour: Some(price), ..NodeUpdate::default() };
    rig.core.update_node(&NodeRef::Number(worker.node), update).await.unwrap();
    let node = rig
        .core
        .register_node(registration("a", 1), crate::rig::HERE, Registrant::Key(worker.node))
        .await
        .unwrap();
    assert_eq!((node.spec.price_per_gpu_hour, node.price_source), (price, PriceSource::Admin));
}

#[tokio::test]
async fn a_cordoned_gpu_gets_no_work_until_uncordoned() {
    let rig = Rig::new().await;
    let mut worker = rig.worker("a", 2).await;
    let node = NodeRef::Number(worker.node);
    let close = |gpus: &[&str]| {
        let gpus = gpus.iter().map(|gpu| (*gpu).to_owned()).collect();
        NodeUpdate { cordoned_gpus: Some(gpus), ..NodeUpdate::default() }
    };
    assert_eq!(rig.core.update_node(&node, close(&["7"])).await.unwrap_err().status, 422);
    let shown = rig.core.update_node(&node, close(&["0"])).await.unwrap();
    assert_eq!(shown.cordoned_gpus, ["0"]);
    rig.submit(spec(1)).await;
    let waits = rig.submit(spec(1)).await;
    let first = worker.assignment().await;
    assert_eq!(first.gpus.iter().map(|gpu| gpu.index).collect::<Vec<_>>(), [1]);
    assert_eq!(rig.job(waits).await.status, JobStatus::Pending);
    rig.core.update_node(&node, close(&[])).await.unwrap();
    let second = worker.assignment().await;
    assert_eq!(second.gpus.iter().map(|gpu| gpu.index).collect::<Vec<_>>(), [0]);
}

#[tokio::test]
async fn a_gpu_in_maintenance_takes_no_new_job_and_a_failed_gpu_loses_its_job() {
    let rig = Rig::new().await;
    let mut worker = rig.worker("a", 2).await;
    let node = NodeRef::Number(worker.node);
    let reads = |status| Heartbeat {
        gpu_instances: Some(vec![GpuInstance {
            gpu_index: Some(0),
            status: Some(status),
            problem: Some("the driver reported XID 109".into()),
            ..GpuInstance::default()
        }]),
        ..Heartbeat::default()
    };
    let ids = [rig.submit(spec(1)).await, rig.submit(spec(1)).await];
    let [first, second] = [worker.assignment().await, worker.assignment().await];
    for key in [first.key, second.key] {
        worker.report(key, running()).await;
    }
    let on_zero = if first.gpus[0].index == 0 { first.key } else { second.key };
    rig.core.heartbeat(&node, reads(GpuStatus::Maintenance)).unwrap();
    for id in ids {
        assert_eq!(rig.job(id).await.status, JobStatus::Running);
    }
    worker.report(on_zero, ended(0, 5)).await;
    let waits = rig.submit(spec(1)).await;
    assert_eq!(rig.job(waits).await.status, JobStatus::Pending);
    rig.core.heartbeat(&node, reads(GpuStatus::Available)).unwrap();
    let third = worker.assignment().await;
    assert_eq!(third.key.job, waits);
    worker.report(third.key, running()).await;
    rig.core.heartbeat(&node, reads(GpuStatus::Error)).unwrap();
    let stop = worker.stop().await;
    assert_eq!((stop.key, stop.cause), (third.key, StopCause::GpuUnhealthy));
}

#[tokio::test]
async fn draining_a_gpu_moves_only_its_own_jobs() {
    let rig = Rig::new().await;
    let mut worker = rig.worker("a", 3).await;
    let node = NodeRef::Number(worker.node);
    let drain = |gpus: &[&str]| {
        let gpus = gpus.iter().map(|gpu| (*gpu).to_owned()).collect();
        NodeUpdate { draining_gpus: Some(gpus), ..NodeUpdate::default() }
    };
    let refused = rig.core.update_node(&node, drain(&["7"])).await.unwrap_err();
    assert_eq!((refused.status, refused.details.field.as_deref()), (422, Some("draining_gpus")));
    rig.submit(spec(1)).await;
    let first = worker.assignment().await;
    rig.submit(spec(1)).await;
    let second = worker.assignment().await;
    for key in [first.key, second.key] {
        worker.report(key, running()).await;
    }
    let gpu = first.gpus[0].index.to_string();
    let shown = rig.core.update_node(&node, drain(&[&gpu])).await.unwrap();
    assert_eq!(shown.draining_gpus, std::slice::from_ref(&gpu));
    let stop = worker.stop().await;
    assert_eq!((stop.key, stop.cause), (first.key, StopCause::Drained));
    worker.report(first.key, stopped(StopCause::Drained, 5)).await;
    let again = worker.assignment().await;
    assert_eq!(again.key.job, first.key.job);
    assert!(![first.gpus[0].index, second.gpus[0].index].contains(&again.gpus[0].index));
}

#[tokio::test]
async fn concurrent_gpu_cordons_of_two_admins_add_up() {
    let rig = Rig::new().await;
    let worker = rig.worker("a", 4).await;
    let node = NodeRef::Number(worker.node);
    let named = |gpus: &[&str]| Some(gpus.iter().map(|gpu| (*gpu).to_owned()).collect());
    let close = |gpu| NodeUpdate { cordon_gpus: named(&[gpu]), ..NodeUpdate::default() };
    let empty = |gpu| NodeUpdate { drain_gpus: named(&[gpu]), ..NodeUpdate::default() };
    let open = |gpu| NodeUpdate { uncordon_gpus: named(&[gpu]), ..NodeUpdate::default() };
    // Concurrent updates, none of which builds on another.
    let (first, second, third) = tokio::join!(
        rig.core.update_node(&node, close("0")),
        rig.core.update_node(&node, empty("1")),
        rig.core.update_node(&node, close("2")),
    );
    first.and(second).and(third).unwrap();
    let shown = rig.core.node(&node).unwrap();
    assert_eq!(
        (shown.cordoned_gpus, shown.draining_gpus),
        (["0", "1", "2"].map(str::to_owned).into(), vec!["1".to_owned()])
    );
    let (first, second) = tokio::join!(
        rig.core.update_node(&node, open("1")),
        rig.core.update_node(&node, close("3")),
    );
    first.and(second).unwrap();
    let shown = rig.core.node(&node).unwrap();
    assert_eq!((shown.cordoned_gpus.join(" "), shown.draining_gpus.len()), ("0 2 3".to_owned(), 0));
    let both = NodeUpdate { status: Some(NodeStatus::Maintenance), ..close("7") };
    let refused = rig.core.update_node(&node, both).await.unwrap_err();
    assert_eq!((refused.status, refused.details.field.as_deref()), (422, Some("cordon_gpus")));
    assert!(!rig.core.node(&node).unwrap().cordoned, "a rejected update changes nothing");
}

#[tokio::test]
async fn a_polling_agent_receives_assignments() {
    let rig = Rig::new().await;
    let worker = rig.worker("a", 1).await;
    drop(worker.stream);
    let first = rig.core.poll(worker.agent, None, 0, 1_000).await.unwrap();
    assert!(matches!(first[0].message, Message::Sync { .. }));
    let id = rig.submit(spec(1)).await;
    let (session, after) = (Some(first[0].session.clone()), first.last().unwrap().seq);
    let next = rig.core.poll(worker.agent, session, after, 5_000).await.unwrap();
    assert!(matches!(&next[0].message, Message::Assign(assignment) if assignment.key.job == id));
}

#[tokio::test]
async fn a_kubernetes_node_assigns_whole_gpus_and_no_host_folders() {
    let rig = Rig::new().await;
    let kubernetes =
        NodeRegistration { runtimes: vec!["kubernetes".to_owned()], ..registration("gpu-7", 2) };
    let mut worker = rig.join(kubernetes).await;
    let part = || JobSpec {
        docker_image: Some("a/b".to_owned()),
        command: Some(vec!["true".to_owned()]),
        gpu_memory_required: Some(1024),
        cpu_cores_required: Some(Cores(4000)),
        ..JobSpec::default()
    };
    let id = rig.submit(part()).await;
    let first = worker.assignment().await;
    assert_eq!(
        (first.gpus[0].milli, first.gpus[0].memory),
        (1000, 40_960),
        "all of it is paid for"
    );
    let place = KubernetesObjects {
        namespace: "imagepod".to_owned(),
        job_name: "gpu-job-1-1-0".to_owned(),
        pod_name: "gpu-job-1-1-0-x".to_owned(),
    };
    assert!(worker.report(first.key, TaskUpdate::Placed(place)).await);
    let job = rig.job(id).await;
    assert_eq!(job.k8s_job_name.as_deref(), Some("gpu-job-1-1-0"));
    assert_eq!(job.k8s_pod_name.as_deref(), Some("gpu-job-1-1-0-x"));
    assert_eq!(job.handle(), id.to_string(), "its number is still its name");

    let volume = Volume { source: "/data".to_owned(), target: "/data".to_owned(), read_only: true };
    let needs_host =
        [JobSpec { volumes: vec![volume], ..part() }, JobSpec { replicas: Some(2), ..part() }];
    for spec in needs_host {
        let id = rig.submit(spec).await;
        let job = worker.beating(rig.until(id, |job| job.wait_reason.is_some())).await;
        let code = job.pending_reason.as_ref().map(PendingReason::code);
        assert_eq!(code, Some(PendingCode::NoRuntime), "{job:?}");
    }

    // Foreign pods request all but two cores.
    let beat = Heartbeat { cpu_cores_available: Some(Cores(6000)), ..Heartbeat::default() };
    let node = NodeRef::Number(worker.node);
    rig.core.heartbeat(&node, beat).unwrap();
    assert_eq!(rig.core.node(&node).unwrap().cpu_cores_available, Cores(2000));
    let id = rig.submit(part()).await;
    let job = worker.beating(rig.until(id, |job| job.wait_reason.is_some())).await;
    let Some(PendingReason::NoRoom(fit)) = &job.pending_reason else { panic!("{job:?}") };
    assert!(matches!(fit.shortfalls[0].shortfall, Shortfall::Cpu { .. }), "{job:?}");
    let beat = Heartbeat { cpu_cores_available: Some(Cores(16_000)), ..Heartbeat::default() };
    rig.core.heartbeat(&node, beat).unwrap();
    let second = worker.assignment().await;
    assert_ne!(second.gpus[0].index, first.gpus[0].index);
}

#[tokio::test]
async fn a_registration_token_stands_for_the_only_push_node_of_an_address() {
    let rig = Rig::new().await;
    let address = |last: u8| std::net::IpAddr::from([10, 0, 0, last]);
    let mut nodes = Vec::new();
    for (name, last) in [("a", 1), ("b", 2), ("c", 2)] {
        let endpoint = Some(format!("http://10.0.0.{last}:8080"));
        let node = NodeRegistration { api_endpoint: endpoint, ..registration(name, 1) };
        nodes
            .push(rig.core.register_node(node, address(last), crate::rig::TOKEN).await.unwrap().id);
    }
    let identify = |last| rig.core.identify(Reporter::Token, address(last));
    assert_eq!(identify(1), Reporter::Node(nodes[0]));
    assert_eq!(identify(2), Reporter::Token, "two nodes");
    assert_eq!(identify(3), Reporter::Token, "no node");
    let own = Reporter::Node(nodes[2]);
    assert_eq!(rig.core.identify(own.clone(), address(1)), own, "a key names its node");
}
