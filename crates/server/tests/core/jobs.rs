//! Life cycle of jobs.

use agentaflow_api::end::EndReason;
use agentaflow_api::event::EventKind;
use agentaflow_api::ids::JobId;
use agentaflow_api::job::{JobCreate, JobSpec, JobStatus, JobStatusUpdate};
use agentaflow_api::link::{StopCause, TaskUpdate};
use agentaflow_api::pending::{Alternative, PendingCode, PendingReason};
use agentaflow_api::queue::{QueueSpec, QuotaSpec};
use agentaflow_api::units::GpuAmount;
use agentaflow_server::core::{Idempotency, Worker as From};

use crate::rig::{Rig, ended, running, spec, stopped};

#[tokio::test]
async fn a_job_is_placed_runs_and_completes() {
    let rig = Rig::new().await;
    let mut worker = rig.worker("a", 2).await;
    let id = rig.submit(spec(1)).await;
    let assignment = worker.assignment().await;
    assert_eq!(assignment.key.job, id);
    assert_eq!(assignment.gpus.len(), 1);
    assert!(assignment.leased);
    assert!(worker.report(assignment.key, running()).await);
    assert_eq!(rig.job(id).await.status, JobStatus::Running);
    assert!(worker.report(assignment.key, ended(0, 20)).await);
    let job = rig.job(id).await;
    assert_eq!((job.status, job.exit_code, job.attempt), (JobStatus::Completed, Some(0), 1));
    assert_eq!(job.assigned_node_id, Some(worker.node));
    assert_eq!(
        rig.kinds(id).await,
        [EventKind::Submitted, EventKind::Scheduled, EventKind::Started, EventKind::Completed]
    );
}

#[tokio::test]
async fn a_short_job_needs_only_one_report() {
    let rig = Rig::new().await;
    let mut worker = rig.worker("a", 0).await;
    let id = rig.submit(spec(0)).await;
    let key = worker.assignment().await.key;
    assert!(worker.report(key, ended(3, 1)).await);
    let job = rig.job(id).await;
    assert_eq!((job.status, job.exit_code), (JobStatus::Failed, Some(3)));
    assert_eq!(job.end_reason, Some(EndReason::Exited));
    assert!(job.started_at.is_some());
    // The response may have been lost: a repeated report changes nothing.
    assert!(!worker.report(key, ended(0, 1)).await);
    assert_eq!(rig.job(id).await.exit_code, Some(3));
}

#[tokio::test]
async fn failures_are_retried_up_to_max_retries() {
    let rig = Rig::new().await;
    let mut worker = rig.worker("a", 1).await;
    let id = rig.submit(JobSpec { max_retries: Some(1), ..spec(1) }).await;
    let first = worker.assignment().await.key;
    worker.report(first, ended(1, 5)).await;
    let second = worker.assignment().await.key;
    assert_eq!((first.epoch, second.epoch), (1, 2));
    worker.report(second, ended(1, 5)).await;
    let job = rig.job(id).await;
    assert_eq!((job.status, job.retries_used, job.attempt), (JobStatus::Failed, 1, 2));
}

#[tokio::test]
async fn a_pending_job_is_cancelled_at_once_and_a_running_one_through_its_agent() {
    let rig = Rig::new().await;
    let mut worker = rig.worker("a", 1).await;
    let runs = rig.submit(spec(1)).await;
    let waits = rig.submit(spec(1)).await;
    let key = worker.assignment().await.key;
    worker.report(key, running()).await;

    let job = rig.core.cancel(&rig.ana, waits).await.unwrap();
    assert_eq!(job.status, JobStatus::Cancelled);

    let job = rig.core.cancel(&rig.ana, runs).await.unwrap();
    assert!(job.cancel_requested && job.status == JobStatus::Running);
    let stop = worker.stop().await;
    assert_eq!((stop.key, stop.cause), (key, StopCause::Cancelled));
    worker.report(key, stopped(StopCause::Cancelled, 7)).await;
    assert_eq!(rig.job(runs).await.status, JobStatus::Cancelled);
    assert_eq!(rig.core.cancel(&rig.ana, runs).await.unwrap_err().status, 409);
}

#[tokio::test]
async fn a_job_that_succeeds_during_its_cancellation_is_completed() {
    let rig = Rig::new().await;
    let mut worker = rig.worker("a", 1).await;
    let id = rig.submit(spec(1)).await;
    let key = worker.assignment().await.key;
    rig.core.cancel(&rig.ana, id).await.unwrap();
    worker.report(key, ended(0, 7)).await;
    assert_eq!(rig.job(id).await.status, JobStatus::Completed);
}

#[tokio::test]
async fn a_job_that_a_user_completes_is_stopped_and_completed() {
    let rig = Rig::new().await;
    let mut worker = rig.worker("a", 1).await;
    let runs = rig.submit(spec(1)).await;
    let waits = rig.submit(spec(1)).await;
    let key = worker.assignment().await.key;
    worker.report(key, running()).await;

    let job = rig.core.complete(&rig.ana, waits).await.unwrap();
    assert_eq!(job.status, JobStatus::Completed);

    rig.core.complete(&rig.ana, runs).await.unwrap();
    assert_eq!(worker.stop().await.key, key);
    worker.report(key, stopped(StopCause::Cancelled, 7)).await;
    let job = rig.job(runs).await;
    assert_eq!((job.status, job.error_message), (JobStatus::Completed, None));
    assert!(rig.kinds(runs).await.contains(&EventKind::CompleteRequested));
}

#[tokio::test]
async fn a_failed_task_stops_its_gang() {
    let rig = Rig::new().await;
    let mut worker = rig.worker("a", 2).await;
    let gang = JobSpec { replicas: Some(2), ..spec(1) };
    let id = rig.submit(gang).await;
    let (one, two) = (worker.assignment().await, worker.assignment().await);
    assert_eq!(one.env["WORLD_SIZE"].expose(), "2");
    assert_ne!(one.env["RANK"].expose(), two.env["RANK"].expose());
    worker.report(one.key, running()).await;
    worker.report(two.key, running()).await;
    worker.report(one.key, ended(9, 5)).await;
    assert_eq!(rig.job(id).await.status, JobStatus::Running, "the other task still runs");
    assert_eq!(worker.stop().await.key, two.key);
    worker.report(two.key, stopped(StopCause::GangBroken, 5)).await;
    let job = rig.job(id).await;
    assert_eq!((job.status, job.exit_code), (JobStatus::Failed, Some(9)));
}

#[tokio::test]
async fn a_refused_placement_is_requeued_and_costs_no_retry() {
    let rig = Rig::new().await;
    let mut worker = rig.worker("a", 1).await;
    let id = rig.submit(spec(1)).await;
    let key = worker.assignment().await.key;
    worker.report(key, TaskUpdate::Refused { detail: "no disk".into() }).await;
    assert_eq!(rig.job(id).await.status, JobStatus::Pending);
    let again = worker.beating(async { rig.until(id, |job| job.attempt == 2).await }).await;
    assert_eq!((again.retries_used, again.status), (0, JobStatus::Scheduled));
    assert!(rig.kinds(id).await.contains(&EventKind::Refused));
}

#[tokio::test]
async fn the_same_key_gives_the_same_job_and_another_body_is_refused() {
    let mut rig = Rig::new().await;
    let key = |body: &str| Some(Idempotency { key: "k".into(), body: body.into() });
    let job = || JobCreate { spec: spec(0), ..JobCreate::default() };
    let (first, new) = rig.core.submit(&rig.ana, job(), None, key("x")).await.unwrap();
    assert!(new);
    let (second, new) = rig.core.submit(&rig.ana, job(), None, key("x")).await.unwrap();
    assert!(!new && second.id == first.id);
    assert_eq!(rig.core.submit(&rig.ana, job(), None, key("y")).await.unwrap_err().status, 409);
    rig.restart().await;
    let (third, new) = rig.core.submit(&rig.ana, job(), None, key("x")).await.unwrap();
    assert!(!new && third.id == first.id);
    assert_eq!(rig.core.submit(&rig.ana, job(), None, key("y")).await.unwrap_err().status, 409);
}

#[tokio::test]
async fn running_and_pending_jobs_survive_a_restart() {
    let mut rig = Rig::new().await;
    let mut worker = rig.worker("a", 1).await;
    let runs = rig.submit(spec(1)).await;
    let waits = rig.submit(spec(1)).await;
    let key = worker.assignment().await.key;
    worker.report(key, running()).await;
    rig.restart().await;
    assert_eq!(rig.job(runs).await.status, JobStatus::Running);
    assert_eq!(rig.job(waits).await.status, JobStatus::Pending);

    // The agent reconnects with a session that the new server does not know, and receives a full sync.
    let agent = rig.core.agents()[0].id;
    let mut stream = rig.core.open_stream(agent, Some("old".into()), 9).await.unwrap();
    let agentaflow_server::core::StreamItem::Message(first) = stream.recv().await.unwrap() else {
        panic!()
    };
    let agentaflow_api::link::Message::Sync { assignments, .. } = &first.message else {
        panic!("{first:?}")
    };
    assert_eq!(assignments.iter().map(|assignment| assignment.key).collect::<Vec<_>>(), [key]);
    let report = agentaflow_api::link::Report { key, update: ended(0, 5) };
    let batch = agentaflow_api::link::ReportBatch { reports: vec![report], logs: Vec::new() };
    assert!(rig.core.report(agent, batch).await.unwrap().accepted[0]);
    assert_eq!(rig.job(runs).await.status, JobStatus::Completed);
    rig.until(waits, |job| job.status == JobStatus::Scheduled).await;
}

#[tokio::test]
async fn illegal_transitions_are_refused_and_a_repeated_end_is_accepted() {
    let rig = Rig::new().await;
    let mut worker = rig.worker("a", 1).await;
    let waits = rig.submit(spec(1)).await;
    let key = worker.assignment().await.key;
    assert_eq!(key.job, waits);
    let blocked = rig.submit(spec(1)).await;
    let say = |id: JobId, status: JobStatus| {
        let update =
            JobStatusUpdate { job_id: Some(id), status: Some(status), ..Default::default() };
        rig.core.job_status(id, update, From::Node(worker.node), crate::rig::HERE)
    };
    assert_eq!(say(blocked, JobStatus::Running).await.unwrap_err().status, 409);
    assert_eq!(say(waits, JobStatus::Pending).await.unwrap_err().status, 409);
    assert_eq!(say(waits, JobStatus::Running).await.unwrap().status, JobStatus::Running);
    assert_eq!(say(waits, JobStatus::Completed).await.unwrap().status, JobStatus::Completed);
    assert_eq!(say(waits, JobStatus::Completed).await.unwrap().status, JobStatus::Completed);
    assert_eq!(say(waits, JobStatus::Failed).await.unwrap_err().status, 409);
}

#[tokio::test]
async fn a_pending_job_has_a_reason_and_alternatives() {
    let rig = Rig::new().await;
    let _worker = rig.worker("a", 1).await;
    let id = rig.submit(spec(2)).await;
    let explained = rig.explain(id).await;
    let Some(PendingReason::NeverFits(fit)) = &explained.pending_reason else {
        panic!("{explained:?}")
    };
    assert_eq!(fit.nodes, 1);
    assert_eq!(explained.alternatives, [Alternative::Gpus(1)]);
    assert_eq!(explained.position, Some(1));
}

#[tokio::test]
async fn an_explanation_after_a_change_of_a_queue_has_the_numbers_of_the_change() {
    let rig = Rig::new().await;
    let mut worker = rig.worker("a", 4).await;
    let put = async |gpus: u64| {
        let limit = QuotaSpec { gpus: Some(GpuAmount(gpus)), ..QuotaSpec::default() };
        let queue = QueueSpec { name: "lab".into(), limit, ..QueueSpec::default() };
        rig.core.put_queue(queue, false).await.unwrap();
    };
    put(1000).await;
    let of_lab = |gpus| JobSpec { queue: Some("lab".into()), ..spec(gpus) };
    rig.submit(of_lab(1)).await;
    worker.assignment().await;
    let id = rig.submit(of_lab(3)).await;
    for gpus in [1000, 2000, 3000, 1000] {
        put(gpus).await;
        let reason = rig.explain(id).await.pending_reason;
        let Some(PendingReason::QuotaExceeded { limit, .. }) = reason else { panic!("{reason:?}") };
        assert_eq!(limit, gpus);
    }
}

#[tokio::test]
async fn a_missing_runtime_has_its_own_pending_code() {
    let rig = Rig::new().await;
    let mut node = crate::rig::registration("a", 1);
    node.runtimes = vec!["process".into()];
    let worker = rig.worker("a", 1).await;
    let key = agentaflow_server::core::Registrant::Key(worker.node);
    rig.core.register_node(node, crate::rig::HERE, key).await.unwrap();
    let docker = JobSpec { runtime: None, docker_image: Some("pytorch/pytorch".into()), ..spec(1) };
    let id = rig.submit(docker).await;
    let explained = rig.explain(id).await;
    let code = explained.pending_reason.as_ref().map(PendingReason::code);
    assert_eq!(code, Some(PendingCode::NoRuntime), "{explained:?}");
}

#[tokio::test]
async fn secrets_are_sealed_in_the_store_and_deleted_at_the_end() {
    let rig = Rig::new().await;
    let mut worker = rig.worker("a", 0).await;
    let job = JobCreate {
        spec: spec(0),
        secret_env: [("TOKEN".to_owned(), "hunter2".into())].into_iter().collect(),
        ..JobCreate::default()
    };
    let (job, _) = rig.core.submit(&rig.ana, job, None, None).await.unwrap();
    assert_eq!(job.secret_env_names, ["TOKEN"]);
    assert!(!serde_json::to_string(&job).unwrap().contains("hunter2"));
    let assignment = worker.assignment().await;
    assert_eq!(assignment.env["TOKEN"].expose(), "hunter2");
    assert!(!format!("{assignment:?}").contains("hunter2"));

    let sealed = || async { rig.core.store().job(job.id).await.unwrap().unwrap().state.sealed };
    let first = sealed().await.unwrap();
    assert!(!first.contains("hunter2"));
    assert_eq!(rig.core.rotate_secret_key().await.unwrap(), 1);
    let second = sealed().await.unwrap();
    assert_ne!(first, second);
    worker.report(assignment.key, ended(0, 1)).await;
    assert_eq!(sealed().await, None);
}
