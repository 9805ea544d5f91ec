//! Lists: order, pages and filters.

use agentaflow_api::ids::{EventSeq, JobId, LedgerEntryId, UserId};
use agentaflow_api::job::JobStatus;
use agentaflow_api::units::Stamp;
use agentaflow_server::store::{Change, EventFilter, JobFilter, LedgerFilter, Store};

use crate::make::{self, NOW, happened, job_state, new_job, paid};
use crate::place::Place;

async fn job_ids(store: &dyn Store, filter: JobFilter) -> Vec<i64> {
    let count = store.count_jobs(&filter).await.unwrap();
    let rows = store.jobs(&filter).await.unwrap();
    assert!(rows.len() as u64 <= count.min(filter.limit));
    rows.iter().map(|job| job.id.0).collect()
}

fn page() -> JobFilter {
    JobFilter { limit: 100, ..JobFilter::default() }
}

pub(crate) async fn jobs_are_listed_newest_first_in_pages(place: &Place) {
    let store = place.open().await;
    let jobs: Vec<Change> = (1..=20).map(|id| new_job(make::job(id, 1 + id % 2))).collect();
    store.commit(&jobs).await.unwrap();
    let pages = [
        (JobFilter { limit: 3, ..page() }, vec![20, 19, 18]),
        (JobFilter { skip: 18, ..page() }, vec![2, 1]),
        (JobFilter { skip: 99, ..page() }, vec![]),
        (JobFilter { before: Some(JobId(4)), limit: 2, ..page() }, vec![3, 2]),
        (
            JobFilter {
                before: Some(JobId(10)),
                skip: 1,
                limit: 2,
                user: Some(UserId(1)),
                ..page()
            },
            vec![6, 4],
        ),
        (JobFilter { limit: 0, ..page() }, vec![]),
        (JobFilter { before: Some(JobId(3)), skip: u64::MAX, limit: u64::MAX, ..page() }, vec![]),
    ];
    for (filter, ids) in pages {
        assert_eq!(job_ids(&*store, filter.clone()).await, ids, "{filter:?}");
    }
    let counted =
        JobFilter { before: Some(JobId(4)), skip: 5, limit: 1, user: Some(UserId(1)), ..page() };
    assert_eq!(store.count_jobs(&counted).await.unwrap(), 10, "paging aside");
}

pub(crate) async fn jobs_are_found_by_owner_state_queue_and_name(place: &Place) {
    let store = place.open().await;
    let mut changes = Vec::new();
    for (id, status) in (1..).zip(JobStatus::ALL) {
        let mut job = make::job(id, 1 + id % 2);
        job.queue = if id < 4 { "main".to_owned() } else { "Main".to_owned() };
        job.spec.job_name = (id != 6).then(|| format!("ÄPFEL-{id}"));
        changes.extend([new_job(job), job_state(id, make::state(status))]);
    }
    store.commit(&changes).await.unwrap();
    let some = |text: &str| Some(text.to_owned());
    let found = [
        (JobFilter { user: Some(UserId(1)), ..page() }, vec![6, 4, 2]),
        (JobFilter { user: Some(UserId(9)), ..page() }, vec![]),
        (JobFilter { status: vec![JobStatus::Running], ..page() }, vec![3]),
        (JobFilter { status: vec![JobStatus::Failed, JobStatus::Pending], ..page() }, vec![5, 1]),
        (JobFilter { queue: some("main"), ..page() }, vec![3, 2, 1]),
        (JobFilter { name: some("äpfel-"), ..page() }, vec![5, 4, 3, 2, 1]),
        (JobFilter { name: some("PFEL-4"), ..page() }, vec![4]),
        (JobFilter { name: some(""), user: Some(UserId(1)), ..page() }, vec![6, 4, 2]),
        (
            JobFilter { name: some("l-"), user: Some(UserId(2)), queue: some("Main"), ..page() },
            vec![5],
        ),
    ];
    for (filter, ids) in found {
        assert_eq!(job_ids(&*store, filter.clone()).await, ids, "{filter:?}");
    }
}

pub(crate) async fn searches_match_special_characters_literally(place: &Place) {
    let store = place.open().await;
    let names = ["50% off", "50 off", "a_b", "aXb", "c\\d", "c'd"];
    let jobs: Vec<Change> = (1..)
        .zip(names)
        .map(|(id, name)| {
            let mut job = make::job(id, 1);
            job.spec.job_name = Some(name.to_owned());
            new_job(job)
        })
        .collect();
    store.commit(&jobs).await.unwrap();
    for (text, ids) in [
        ("0%", vec![1]),
        ("%", vec![1]),
        ("_", vec![3]),
        ("A_B", vec![3]),
        ("\\", vec![5]),
        ("'", vec![6]),
        ("50", vec![2, 1]),
    ] {
        let filter = JobFilter { name: Some(text.to_owned()), ..page() };
        assert_eq!(job_ids(&*store, filter).await, ids, "{text}");
    }
}

pub(crate) async fn events_are_listed_oldest_first_from_a_cursor(place: &Place) {
    let store = place.open().await;
    let mut changes = Vec::new();
    for seq in 1..=12 {
        let mut event = make::event(seq);
        event.job_id = (seq % 3 != 0).then_some(JobId(seq % 3));
        event.user_id = event.job_id.map(|job| UserId(job.0 + 10));
        event.node_id = (seq > 6).then(|| "gpu-000000000002".to_owned());
        changes.push(happened(event));
    }
    store.commit(&changes).await.unwrap();
    let page = || EventFilter { limit: 100, ..EventFilter::default() };
    let node = Some("gpu-000000000002".to_owned());
    for (filter, seqs) in [
        (EventFilter { limit: 3, ..page() }, vec![1, 2, 3]),
        (EventFilter { after: EventSeq(10), ..page() }, vec![11, 12]),
        (EventFilter { after: EventSeq(12), ..page() }, vec![]),
        (EventFilter { job: Some(JobId(1)), ..page() }, vec![1, 4, 7, 10]),
        (
            EventFilter { user: Some(UserId(12)), after: EventSeq(2), limit: 2, ..page() },
            vec![5, 8],
        ),
        (EventFilter { node: node.clone(), job: Some(JobId(2)), ..page() }, vec![8, 11]),
    ] {
        let found = store.events(&filter).await.unwrap();
        let found: Vec<i64> = found.iter().map(|event| event.seq.0).collect();
        assert_eq!(found, seqs, "{filter:?}");
    }
}

pub(crate) async fn the_ledger_is_listed_newest_first(place: &Place) {
    let store = place.open().await;
    let lines: Vec<Change> = (1..=9).map(|id| paid(make::ledger(id, 1 + id % 2, id))).collect();
    store.commit(&lines).await.unwrap();
    let page = || LedgerFilter { limit: 100, ..LedgerFilter::default() };
    let time = |id: i64| Some(Stamp(NOW.0 + id));
    for (filter, ids) in [
        (LedgerFilter { limit: 2, ..page() }, vec![9, 8]),
        (LedgerFilter { skip: 7, ..page() }, vec![2, 1]),
        (LedgerFilter { before: Some(LedgerEntryId(3)), ..page() }, vec![2, 1]),
        (LedgerFilter { user: Some(UserId(1)), ..page() }, vec![8, 6, 4, 2]),
        (LedgerFilter { job: Some(JobId(5)), ..page() }, vec![5]),
        (LedgerFilter { from: time(3), to: time(6), ..page() }, vec![5, 4, 3]),
        (
            LedgerFilter {
                from: time(3),
                user: Some(UserId(2)),
                before: Some(LedgerEntryId(9)),
                ..page()
            },
            vec![7, 5, 3],
        ),
    ] {
        let found = store.ledger(&filter).await.unwrap();
        let found: Vec<i64> = found.iter().map(|line| line.id.0).collect();
        assert_eq!(found, ids, "{filter:?}");
    }
}

pub(crate) async fn a_large_transaction_keeps_its_order(place: &Place) {
    let store = place.open().await;
    let mut changes = Vec::new();
    for id in 1..=777 {
        let last = if id % 7 == 0 { JobStatus::Completed } else { JobStatus::Scheduled };
        changes.push(new_job(make::job(id, 1)));
        changes.push(happened(make::event(2 * id)));
        changes.push(job_state(id, make::state(JobStatus::Failed)));
        changes.push(job_state(id, make::state(last)));
        changes.push(happened(make::event(2 * id + 1)));
        changes.push(paid(make::ledger(id, 1, 1)));
    }
    store.commit(&changes).await.unwrap();
    let running: Vec<Change> =
        (1..=777).map(|id| job_state(id, make::state(JobStatus::Running))).collect();
    let some: Vec<Change> = running.into_iter().filter(|change| !is_seventh(change)).collect();
    store.commit(&some).await.unwrap();
    let over = JobFilter { status: vec![JobStatus::Completed], ..page() };
    assert_eq!(store.count_jobs(&over).await.unwrap(), 111);
    let live = store.load("2026-11").await.unwrap().jobs;
    assert_eq!(live.len(), 666);
    assert!(live.iter().all(|job| job.state.status == JobStatus::Running));
    let all = EventFilter { limit: 10_000, ..EventFilter::default() };
    assert_eq!(store.events(&all).await.unwrap().len(), 1554);
}

fn is_seventh(change: &Change) -> bool {
    matches!(change, Change::Job(id, _) if id.0 % 7 == 0)
}
