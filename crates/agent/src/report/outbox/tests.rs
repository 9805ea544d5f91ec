//! Contents and order of reports, retries, and rejected updates.

use agentaflow_api::event::EventKind;
use agentaflow_api::ids::JobId;
use agentaflow_api::link::Ended;
use agentaflow_api::units::Stamp;

use super::*;

fn key(job: i64) -> TaskKey {
    TaskKey { job: JobId(job), epoch: 1, incarnation: 0, task: 0 }
}

fn summary(batch: &ReportBatch) -> Vec<String> {
    let name = |update: &TaskUpdate| match update {
        TaskUpdate::Accepted => "accepted".to_owned(),
        TaskUpdate::Placed(objects) => format!("placed in {}", objects.pod_name),
        TaskUpdate::Running { .. } => "running".to_owned(),
        TaskUpdate::Progress { kind, .. } => kind.to_string(),
        TaskUpdate::Refused { .. } => "refused".to_owned(),
        TaskUpdate::Ended(_) => "ended".to_owned(),
    };
    batch
        .reports
        .iter()
        .map(|report| format!("{} {}", report.key.job, name(&report.update)))
        .collect()
}

fn ended() -> TaskUpdate {
    TaskUpdate::Ended(Box::default())
}

#[tokio::test]
async fn the_end_of_a_short_task_replaces_earlier_updates_except_warnings() {
    let outbox = Outbox::default();
    outbox.send(key(1), TaskUpdate::Accepted);
    outbox.send(key(1), TaskUpdate::Running { started_at: Stamp(0) });
    outbox.send(key(1), TaskUpdate::Progress { kind: EventKind::Warning, detail: String::new() });
    outbox.send(key(2), TaskUpdate::Accepted);
    let finish = outbox.finish(key(1), ended());
    let report = async {
        let batch = outbox.compose(100);
        assert_eq!(summary(&batch), ["1 Warning", "2 accepted", "1 ended"]);
        // The report does not reach the server; the next one is equal.
        outbox.put_back(batch);
        let batch = outbox.compose(100);
        assert_eq!(summary(&batch), ["1 Warning", "2 accepted", "1 ended"]);
        let reply = ReportReply { accepted: vec![true, false, true], log_have: Vec::new() };
        assert_eq!(outbox.settle(&batch, &reply), [key(2)]);
    };
    let (accepted, ()) = tokio::join!(finish, report);
    assert!(accepted && outbox.is_empty());
}

/// Sends reports to a server that accepts only the batches for which `accepts` is true.
async fn report_to(outbox: &Outbox, accepts: impl Fn(&ReportBatch) -> bool) -> Vec<String> {
    let mut reported = Vec::new();
    while !outbox.is_empty() {
        outbox.ready().await;
        let batch = outbox.compose(1);
        if accepts(&batch) {
            reported.extend(summary(&batch));
            let accepted = vec![true; batch.reports.len()];
            outbox.settle(&batch, &ReportReply { accepted, log_have: Vec::new() });
        } else {
            outbox.reduce_rejected(batch);
        }
    }
    reported
}

fn with_result() -> TaskUpdate {
    let output_data = Some(serde_json::Value::from(1));
    TaskUpdate::Ended(Box::new(Ended { exit_code: Some(0), output_data, ..Ended::default() }))
}

fn end(batch: &ReportBatch) -> Option<&Ended> {
    batch.reports.iter().find_map(|report| match &report.update {
        TaskUpdate::Ended(ended) => Some(&**ended),
        _ => None,
    })
}

#[tokio::test]
async fn an_end_with_a_rejected_result_is_reported_without_the_result() {
    let outbox = Outbox::default();
    let accepts = |batch: &ReportBatch| end(batch).is_none_or(|end| end.output_data.is_none());
    let (accepted, reported) =
        tokio::join!(outbox.finish(key(1), with_result()), report_to(&outbox, accepts));
    assert!(accepted);
    assert_eq!(reported, ["1 Warning", "1 ended"]);
}

#[tokio::test]
async fn a_rejected_end_is_reported_without_details_until_the_server_accepts_it() {
    let outbox = Outbox::default();
    let rejections = std::cell::Cell::new(0);
    let accepts = |batch: &ReportBatch| match end(batch) {
        Some(end) if end.stopped != Some(StopCause::LeaseLost) => false,
        // The server rejects the reduced end five times.
        Some(_) => rejections.replace(rejections.get() + 1) >= 5,
        // The server also rejects its warnings.
        None => false,
    };
    let (accepted, reported) =
        tokio::join!(outbox.finish(key(1), with_result()), report_to(&outbox, accepts));
    assert!(accepted);
    assert_eq!(reported, ["1 ended"]);
}

#[tokio::test]
async fn a_rejected_end_does_not_delay_other_tasks() {
    let outbox = Outbox::default();
    let finish = async {
        let _ = tokio::join!(
            timeout(Duration::from_millis(100), outbox.finish(key(1), with_result())),
            outbox.finish(key(2), ended()),
        );
    };
    let report = async {
        while outbox.queues().last.contains_key(&key(2)) {
            outbox.ready().await;
            let batch = outbox.compose(1);
            if batch.reports.iter().any(|report| report.key == key(1)) {
                outbox.reduce_rejected(batch);
            } else {
                let accepted = vec![true; batch.reports.len()];
                outbox.settle(&batch, &ReportReply { accepted, log_have: Vec::new() });
            }
        }
    };
    tokio::join!(finish, report);
    assert!(outbox.queues().last.contains_key(&key(1)));
}

#[tokio::test]
async fn large_results_are_split_over_several_reports() {
    let outbox = std::sync::Arc::new(Outbox::default());
    let output_data = Some(serde_json::Value::from("x".repeat(250_000)));
    for job in 0..20 {
        let outbox = std::sync::Arc::clone(&outbox);
        let update = TaskUpdate::Ended(Box::new(Ended {
            output_data: output_data.clone(),
            ..Ended::default()
        }));
        tokio::spawn(async move { outbox.finish(key(job), update).await });
    }
    while outbox.queues().last.len() < 20 {
        tokio::task::yield_now().await;
    }
    assert_eq!(outbox.compose(100).reports.len(), 5);
}
