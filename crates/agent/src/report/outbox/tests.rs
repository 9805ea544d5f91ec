//! What is told, in which order, and what is told again.

use agentaflow_api::event::EventKind;
use agentaflow_api::link::{Ended, TaskUpdate};
use agentaflow_api::units::Stamp;

use super::*;

fn key(job: i64) -> TaskKey {
    TaskKey { job, epoch: 1, task: 0 }
}

fn words(batch: &ReportBatch) -> Vec<String> {
    let word = |update: &TaskUpdate| match update {
        TaskUpdate::Accepted => "accepted".to_owned(),
        TaskUpdate::Placed(place) => format!("placed in {}", place.pod_name),
        TaskUpdate::Running { .. } => "running".to_owned(),
        TaskUpdate::Progress { kind, .. } => kind.to_string(),
        TaskUpdate::Refused { .. } => "refused".to_owned(),
        TaskUpdate::Ended(_) => "ended".to_owned(),
    };
    batch
        .reports
        .iter()
        .map(|report| format!("{} {}", report.key.job, word(&report.update)))
        .collect()
}

fn ended() -> TaskUpdate {
    TaskUpdate::Ended(Box::default())
}

#[tokio::test]
async fn the_end_of_a_short_task_says_it_all_but_keeps_its_warnings() {
    let outbox = Outbox::default();
    outbox.tell(key(1), TaskUpdate::Accepted);
    outbox.tell(key(1), TaskUpdate::Running { started_at: Stamp(0) });
    outbox.tell(key(1), TaskUpdate::Progress { kind: EventKind::Warning, detail: String::new() });
    outbox.tell(key(2), TaskUpdate::Accepted);
    let finish = outbox.finish(key(1), ended());
    let told = async {
        let batch = outbox.compose(100);
        assert_eq!(words(&batch), ["1 Warning", "2 accepted", "1 ended"]);
        // It does not get through; the next one has the same.
        outbox.put_back(batch);
        let batch = outbox.compose(100);
        assert_eq!(words(&batch), ["1 Warning", "2 accepted", "1 ended"]);
        let reply = ReportReply { accepted: vec![true, false, true], log_have: Vec::new() };
        assert_eq!(outbox.settle(&batch, &reply).stale, [key(2)]);
    };
    let (accepted, ()) = tokio::join!(finish, told);
    assert!(accepted && outbox.is_empty());
}

/// A server that takes nothing of this task but what passes.
async fn told_to(outbox: &Outbox, takes: impl Fn(&ReportBatch) -> bool) -> Vec<String> {
    let mut told = Vec::new();
    while !outbox.is_empty() {
        outbox.ready().await;
        let batch = outbox.compose(1);
        if takes(&batch) {
            told.extend(words(&batch));
            let accepted = vec![true; batch.reports.len()];
            outbox.settle(&batch, &ReportReply { accepted, log_have: Vec::new() });
        } else {
            outbox.refused(batch);
        }
    }
    told
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
async fn an_end_with_a_result_that_is_refused_is_told_without_it() {
    let outbox = Outbox::default();
    let takes = |batch: &ReportBatch| end(batch).is_none_or(|end| end.output_data.is_none());
    let (accepted, told) =
        tokio::join!(outbox.finish(key(1), with_result()), told_to(&outbox, takes));
    assert!(accepted);
    assert_eq!(told, ["1 Warning", "1 ended"]);
}

#[tokio::test]
async fn an_end_is_told_bare_when_nothing_else_is_taken_and_for_ever() {
    let outbox = Outbox::default();
    let refusals = std::cell::Cell::new(0);
    let takes = |batch: &ReportBatch| match end(batch) {
        Some(end) if end.stopped != Some(StopCause::LeaseLost) => false,
        // Even that is refused a few times.
        Some(_) => refusals.replace(refusals.get() + 1) >= 5,
        // So are its warnings.
        None => false,
    };
    let (accepted, told) =
        tokio::join!(outbox.finish(key(1), with_result()), told_to(&outbox, takes));
    assert!(accepted);
    assert_eq!(told, ["1 ended"]);
}

#[tokio::test]
async fn a_refused_end_does_not_hold_up_others() {
    let outbox = Outbox::default();
    let finish = async {
        let _ = tokio::join!(
            timeout(Duration::from_millis(100), outbox.finish(key(1), with_result())),
            outbox.finish(key(2), ended()),
        );
    };
    let told = async {
        while outbox.boxes().last.contains_key(&key(2)) {
            outbox.ready().await;
            let batch = outbox.compose(1);
            if batch.reports.iter().any(|report| report.key == key(1)) {
                outbox.refused(batch);
            } else {
                let accepted = vec![true; batch.reports.len()];
                outbox.settle(&batch, &ReportReply { accepted, log_have: Vec::new() });
            }
        }
    };
    tokio::join!(finish, told);
    assert!(outbox.boxes().last.contains_key(&key(1)));
}

#[tokio::test]
async fn large_results_do_not_all_go_into_one_report() {
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
    while outbox.boxes().last.len() < 20 {
        tokio::task::yield_now().await;
    }
    assert_eq!(outbox.compose(100).reports.len(), 5);
}
