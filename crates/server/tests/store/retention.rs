//! Deletion of old records.

use agentaflow_api::event::Event;
use agentaflow_api::ids::{EventSeq, JobId, UserId};
use agentaflow_api::job::JobStatus;
use agentaflow_api::units::Stamp;
use agentaflow_server::store::{Change, EndedFilter, EventFilter, LedgerFilter, StoredBytes};

use crate::make::{self, NOW};
use crate::place::Place;

pub(crate) async fn ended_jobs_are_deleted_with_their_events_and_the_ledger_stays(place: &Place) {
    let store = place.open().await;
    let node_event = Event { job_id: None, user_id: None, ..make::event(3) };
    let changes = [
        make::new_job(make::job(1, 1)),
        make::new_job(make::job(2, 1)),
        make::new_job(make::job(3, 2)),
        make::job_state(1, make::state(JobStatus::Completed)),
        make::job_state(3, make::state(JobStatus::Failed)),
        make::happened(make::event(1)),
        make::happened(Event { job_id: Some(JobId(2)), ..make::event(2) }),
        make::happened(node_event),
        make::paid(make::ledger(1, 1, 5)),
        Change::Idempotency(Box::new(make::key(1, "once", NOW))),
    ];
    store.commit(&changes).await.unwrap();
    let ended = EndedFilter { created_before: Stamp(NOW.0 + 1), after: JobId(0), limit: 10 };
    let ids = |rows: Vec<agentaflow_server::store::JobRow>| -> Vec<i64> {
        rows.iter().map(|row| row.id.0).collect()
    };
    assert_eq!(ids(store.ended_jobs(&ended).await.unwrap()), [1, 3]);
    let later = EndedFilter { after: JobId(1), ..ended };
    assert_eq!(ids(store.ended_jobs(&later).await.unwrap()), [3]);
    let earlier = EndedFilter { created_before: NOW, ..ended };
    assert!(store.ended_jobs(&earlier).await.unwrap().is_empty());

    let sizes = store.ended_bytes(UserId(1), JobId(0), 10).await.unwrap();
    let [(JobId(1), size)] = sizes[..] else { panic!("{sizes:?}") };
    assert!(size > 100, "{size}");
    assert!(store.ended_bytes(UserId(1), JobId(1), 10).await.unwrap().is_empty());
    assert!(store.ended_bytes(UserId(9), JobId(0), 10).await.unwrap().is_empty());

    let last = EventSeq(3);
    let gone = [
        Change::JobsGone(vec![JobId(1), JobId(3)]),
        Change::EventsBefore { at: Stamp(NOW.0 + 100), last },
    ];
    store.commit(&gone).await.unwrap();
    assert!(store.job(JobId(1)).await.unwrap().is_none());
    assert!(store.job(JobId(2)).await.unwrap().is_some());
    assert!(store.idempotency(UserId(1), "once").await.unwrap().is_none());
    let events = store.events(&EventFilter { limit: 10, ..EventFilter::default() }).await.unwrap();
    assert_eq!(events.iter().map(|event| event.seq.0).collect::<Vec<_>>(), [2]);
    let ledger = LedgerFilter { limit: 10, ..LedgerFilter::default() };
    assert_eq!(store.ledger(&ledger).await.unwrap().len(), 1);
    let loaded = store.load("2026-11").await.unwrap();
    assert_eq!((loaded.last.job, loaded.last.event), (JobId(3), last), "numbers are not reused");
}

pub(crate) async fn records_of_each_user_are_measured(place: &Place) {
    let store = place.open().await;
    let changes = [
        make::new_job(make::job(1, 1)),
        make::new_job(make::job(2, 2)),
        make::new_job(make::job(3, 2)),
        make::happened(make::event(1)),
    ];
    store.commit(&changes).await.unwrap();
    let owners = store.owners(&[JobId(1), JobId(3), JobId(9)]).await.unwrap();
    assert_eq!(owners, [(JobId(1), UserId(1)), (JobId(3), UserId(2))]);
    let mut stored = store.stored_bytes().await.unwrap();
    stored.sort_by_key(|stored| stored.user);
    let [StoredBytes { user: UserId(1), bytes: one }, StoredBytes { user: UserId(2), bytes: two }] =
        stored[..]
    else {
        panic!("{stored:?}")
    };
    assert!(one > 500 && two > one, "{one} {two}");
}
