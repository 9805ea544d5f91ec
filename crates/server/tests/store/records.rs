//! Records: inserts, changes and deletions.

use agentaflow_api::event::Event;
use agentaflow_api::ids::{AgentId, CredentialId, EventSeq, JobId, LedgerEntryId, NodeId, UserId};
use agentaflow_api::job::JobStatus;
use agentaflow_api::units::Stamp;
use agentaflow_server::store::{
    Change, CredentialKind, EventFilter, HeartbeatRow, JobFilter, LastIds, LedgerFilter, Store,
    StoreError,
};
use serde_json::json;

use crate::make::{self, NOW, happened, job_state, new_job, paid};
use crate::place::Place;

const ALL_EVENTS: EventFilter = EventFilter {
    job: None,
    node: None,
    user: None,
    after: EventSeq(0),
    limit: 100,
    newest: false,
};

fn all_jobs() -> JobFilter {
    JobFilter { limit: 100, ..JobFilter::default() }
}

pub(crate) async fn an_empty_store_has_nothing_in_it(place: &Place) {
    let store = place.open().await;
    let loaded = store.load("2026-11").await.unwrap();
    assert_eq!(loaded.last, LastIds::default());
    assert!(loaded.users.is_empty() && loaded.accounts.is_empty() && loaded.meta.is_empty());
    assert_eq!(store.job(JobId(1)).await.unwrap(), None);
    assert_eq!(store.count_jobs(&all_jobs()).await.unwrap(), 0);
    store.commit(&[]).await.unwrap();
    store.ping().await.unwrap();
}

pub(crate) async fn every_record_comes_back_as_it_was_written(place: &Place) {
    let store = place.open().await;
    let (user, credential) = (make::user(1, "Ann"), make::credential(4, CredentialKind::Refresh));
    let (node, agent) = (make::node(2, "alpha"), make::agent(3, "worker"));
    let (job, queue) = (make::job(7, 1), make::queue("main"));
    let (event, line) = (make::event(9), make::ledger(8, 1, 55));
    store
        .commit(&[
            Change::User(Box::new(user.clone())),
            Change::Credential(Box::new(credential.clone())),
            Change::Node(Box::new(node.clone())),
            Change::Agent(Box::new(agent.clone())),
            new_job(job.clone()),
            Change::Queue(Box::new(queue.clone())),
            happened(event.clone()),
            paid(line.clone()),
            Change::Meta("strategy", "best_fit".to_owned()),
        ])
        .await
        .unwrap();
    let loaded = store.load("2026-11").await.unwrap();
    assert_eq!(loaded.users, [user]);
    assert_eq!(loaded.credentials, [credential]);
    assert_eq!(loaded.nodes, [node]);
    assert_eq!(loaded.agents, [agent]);
    assert_eq!(loaded.jobs.first(), Some(&job));
    assert_eq!(loaded.queues, [queue]);
    assert_eq!(loaded.meta["strategy"], "best_fit");
    let last = LastIds {
        user: UserId(1),
        credential: CredentialId(4),
        node: NodeId(2),
        agent: AgentId(3),
        job: JobId(7),
        event: EventSeq(9),
        ledger: LedgerEntryId(8),
    };
    assert_eq!(loaded.last, last);
    assert_eq!(store.job(JobId(7)).await.unwrap(), Some(job));
    assert_eq!(store.events(&ALL_EVENTS).await.unwrap(), [event]);
    let all = LedgerFilter { limit: 10, ..LedgerFilter::default() };
    assert_eq!(store.ledger(&all).await.unwrap(), [line]);
}

pub(crate) async fn a_record_written_again_is_changed(place: &Place) {
    let store = place.open().await;
    let mut user = make::user(1, "ann");
    let mut node = make::node(2, "alpha");
    let mut queue = make::queue("main");
    let mut changes = Vec::new();
    for (email, weight) in [("a@example.com", 1), ("b@example.com", 2)] {
        user.email = Some(email.to_owned());
        node.cordoned = weight == 1;
        queue.spec.weight = Some(weight);
        changes.push(Change::User(Box::new(user.clone())));
        changes.push(Change::Node(Box::new(node.clone())));
        changes.push(Change::Queue(Box::new(queue.clone())));
        changes.push(Change::Meta("fact", email.to_owned()));
    }
    store.commit(&changes).await.unwrap();
    // A job that is created and changed in one transaction has its last state.
    let done = make::state(JobStatus::Running);
    let middle = make::state(JobStatus::Scheduled);
    let changes = [new_job(make::job(1, 1)), job_state(1, middle), job_state(1, done.clone())];
    store.commit(&changes).await.unwrap();
    let loaded = store.load("2026-11").await.unwrap();
    assert_eq!((loaded.users, loaded.nodes), (vec![user], vec![node]));
    assert_eq!(loaded.queues, [queue]);
    assert_eq!(loaded.meta["fact"], "b@example.com");
    assert_eq!(loaded.jobs[0].state, done);
}

pub(crate) async fn deleted_ids_are_not_used_again(place: &Place) {
    let store = place.open().await;
    let changes = [
        Change::Node(Box::new(make::node(5, "alpha"))),
        Change::Agent(Box::new(make::agent(6, "worker"))),
        Change::Credential(Box::new(make::credential(7, CredentialKind::ApiKey))),
        Change::Queue(Box::new(make::queue("main"))),
    ];
    store.commit(&changes).await.unwrap();
    let gone = [
        Change::NodeGone(NodeId(5)),
        Change::AgentGone(AgentId(6)),
        Change::CredentialGone(CredentialId(7)),
        Change::CredentialGone(CredentialId(3)),
        Change::QueueGone("main".to_owned()),
        Change::QueueGone("never".to_owned()),
        // The name is free again.
        Change::Node(Box::new(make::node(4, "alpha"))),
    ];
    store.commit(&gone).await.unwrap();
    let loaded = store.load("2026-11").await.unwrap();
    assert_eq!(loaded.nodes.len(), 1);
    assert!(loaded.agents.is_empty() && loaded.credentials.is_empty() && loaded.queues.is_empty());
    let last = loaded.last;
    assert_eq!((last.node, last.agent, last.credential), (NodeId(5), AgentId(6), CredentialId(7)));
}

pub(crate) async fn heartbeats_change_nothing_else(place: &Place) {
    let store = place.open().await;
    let nodes = [make::node(1, "alpha"), make::node(2, "beta"), make::node(3, "gamma")];
    let changes = nodes.clone().map(|node| Change::Node(Box::new(node)));
    store.commit(&changes).await.unwrap();
    let heartbeats = [(1, 5), (3, 6), (3, 7), (99, 8)];
    let heartbeats =
        heartbeats.map(|(node, at)| HeartbeatRow { node: NodeId(node), at: Stamp(at) }).to_vec();
    store.commit(&[Change::Heartbeats(heartbeats), Change::Heartbeats(Vec::new())]).await.unwrap();
    let [mut one, two, mut three] = nodes;
    one.last_heartbeat = Some(Stamp(5));
    three.last_heartbeat = Some(Stamp(7));
    assert_eq!(store.load("2026-11").await.unwrap().nodes, [one, two, three]);
}

/// Changes that each violate a rule of the store.
fn broken() -> Vec<Change> {
    let mut same_hash = make::credential(2, CredentialKind::ApiKey);
    same_hash.hash = make::credential(1, CredentialKind::ApiKey).hash;
    let mut same_id = make::node(2, "beta");
    same_id.node_id = make::node(1, "alpha").node_id;
    vec![
        Change::User(Box::new(make::user(2, "ANN"))),
        Change::Credential(Box::new(same_hash)),
        Change::Node(Box::new(make::node(2, "alpha"))),
        Change::Node(Box::new(same_id)),
        Change::Agent(Box::new(make::agent(2, "worker"))),
        new_job(make::job(1, 1)),
        happened(make::event(1)),
        paid(make::ledger(1, 1, 5)),
    ]
}

pub(crate) async fn a_duplicate_name_fails_the_whole_transaction(place: &Place) {
    let store = place.open().await;
    let first = [
        Change::User(Box::new(make::user(1, "ann"))),
        Change::Credential(Box::new(make::credential(1, CredentialKind::ApiKey))),
        Change::Node(Box::new(make::node(1, "alpha"))),
        Change::Agent(Box::new(make::agent(1, "worker"))),
        new_job(make::job(1, 1)),
        happened(make::event(1)),
        paid(make::ledger(1, 1, 5)),
    ];
    store.commit(&first).await.unwrap();
    let before = store.load("2026-11").await.unwrap().last;
    for (at, change) in broken().into_iter().enumerate() {
        let seq = 100 + at as i64;
        let changes = [happened(make::event(seq)), change, happened(make::event(seq + 100))];
        let error = store.commit(&changes).await.unwrap_err();
        assert!(matches!(error, StoreError::Failed { .. }), "{at}: {error}");
        assert_eq!(store.load("2026-11").await.unwrap().last, before, "{at}");
    }
    store.commit(&[happened(make::event(2))]).await.unwrap();
}

pub(crate) async fn a_transaction_is_all_or_nothing(place: &Place) {
    let store = place.open().await;
    store.commit(&[new_job(make::job(1, 1))]).await.unwrap();
    let mut changes: Vec<Change> = (2..500).map(|id| new_job(make::job(id, 1))).collect();
    changes.push(job_state(1, make::state(JobStatus::Failed)));
    changes.push(Change::Meta("fact", "new".to_owned()));
    changes.push(new_job(make::job(2, 1)));
    store.commit(&changes).await.unwrap_err();
    let loaded = store.load("2026-11").await.unwrap();
    assert_eq!(loaded.jobs, [make::job(1, 1)]);
    assert!(loaded.meta.is_empty());
    changes.pop();
    store.commit(&changes).await.unwrap();
    assert_eq!(store.count_jobs(&all_jobs()).await.unwrap(), 499);
}

pub(crate) async fn the_state_of_an_unknown_job_is_refused(place: &Place) {
    let store = place.open().await;
    store.commit(&[new_job(make::job(1, 1))]).await.unwrap();
    let running = || make::state(JobStatus::Running);
    store.commit(&[job_state(1, running()), job_state(2, running())]).await.unwrap_err();
    assert_eq!(store.job(JobId(1)).await.unwrap(), Some(make::job(1, 1)));
}

pub(crate) async fn ended_jobs_are_not_loaded(place: &Place) {
    let store = place.open().await;
    let mut changes = Vec::new();
    for (id, status) in (1..).zip(JobStatus::ALL) {
        changes.push(new_job(make::job(id, 1)));
        changes.push(job_state(id, make::state(status)));
    }
    store.commit(&changes).await.unwrap();
    let loaded = store.load("2026-11").await.unwrap();
    let live: Vec<_> = loaded.jobs.iter().map(|job| (job.id, job.state.status)).collect();
    assert!(live.iter().all(|(_, status)| !status.is_final()));
    assert_eq!(live.iter().map(|(id, _)| id.0).collect::<Vec<_>>(), [1, 2, 3]);
}

pub(crate) async fn credentials_that_expired_long_ago_are_not_loaded(place: &Place) {
    let store = place.open().await;
    let day = 24 * 3600 * 1000;
    let (hour_ago, days_ago) = (Stamp(Stamp::now().0 - day / 24), Stamp(Stamp::now().0 - 2 * day));
    let mut changes = Vec::new();
    for (id, (kind, end)) in (1..).zip([
        (CredentialKind::Refresh, Some(hour_ago)),
        (CredentialKind::Refresh, Some(days_ago)),
        (CredentialKind::Invite, Some(days_ago)),
        (CredentialKind::BrowserLink, Some(days_ago)),
        (CredentialKind::Invite, None),
        (CredentialKind::ApiKey, Some(days_ago)),
        (CredentialKind::Registration, Some(days_ago)),
    ]) {
        let mut row = make::credential(id, kind);
        row.expires_at = end;
        changes.push(Change::Credential(Box::new(row)));
    }
    store.commit(&changes).await.unwrap();
    let loaded = store.load("2026-11").await.unwrap();
    let ids: Vec<i64> = loaded.credentials.iter().map(|row| row.id.0).collect();
    assert_eq!(ids, [1, 5, 6, 7]);
    assert_eq!(loaded.last.credential, CredentialId(7));
}

pub(crate) async fn an_idempotency_key_finds_its_job_until_deleted(place: &Place) {
    let store = place.open().await;
    let (old, new) = (make::key(1, "k", Stamp(10)), make::key(2, "k", Stamp(20)));
    let changes = [&old, &new].map(|row| Change::Idempotency(Box::new(row.clone())));
    store.commit(&changes).await.unwrap();
    assert_eq!(store.idempotency(UserId(1), "k").await.unwrap(), Some(old));
    assert_eq!(store.idempotency(UserId(3), "k").await.unwrap(), None);
    assert_eq!(store.idempotency(UserId(1), "K").await.unwrap(), None);
    store.commit(&[Change::IdempotencyMoved(1_000)]).await.unwrap();
    let (old, new) = (make::key(1, "k", Stamp(1_010)), make::key(2, "k", Stamp(1_020)));
    assert_eq!(store.idempotency(UserId(1), "k").await.unwrap(), Some(old));
    store.commit(&[Change::IdempotencyBefore(Stamp(1_020))]).await.unwrap();
    assert_eq!(store.idempotency(UserId(1), "k").await.unwrap(), None);
    assert_eq!(store.idempotency(UserId(2), "k").await.unwrap(), Some(new));
    // An expired key may be used again before it is deleted.
    let again = make::key(2, "k", NOW);
    store.commit(&[Change::Idempotency(Box::new(again.clone()))]).await.unwrap();
    assert_eq!(store.idempotency(UserId(2), "k").await.unwrap(), Some(again));
}

pub(crate) async fn strings_of_any_kind_come_back(place: &Place) {
    let store = place.open().await;
    let hostile = "'; DROP TABLE jobs; -- \" \\ \\u0000 %_ \u{1F980}\u{202E} \r\n\t $1 ? {} \u{7f}";
    let mut job = make::job(1, 1);
    job.queue = hostile.to_owned();
    job.spec.job_name = Some(hostile.to_owned());
    job.spec.input_data = json!({hostile: [hostile]});
    let mut event = make::event(1);
    event.message = hostile.to_owned();
    let row = make::key(1, hostile, NOW);
    let changes =
        [new_job(job.clone()), happened(event.clone()), Change::Idempotency(Box::new(row.clone()))];
    store.commit(&changes).await.unwrap();
    assert_eq!(store.job(JobId(1)).await.unwrap(), Some(job));
    assert_eq!(store.events(&ALL_EVENTS).await.unwrap(), [event]);
    assert_eq!(store.idempotency(UserId(1), hostile).await.unwrap(), Some(row));
    nul_is_replaced(&*store).await;
    // As deep as a request can be; the record around the value is deeper and must load.
    let mut deep = make::job(3, 1);
    deep.spec.input_data = (0..127).fold(json!(1), |inner, _| json!({"a": inner}));
    store.commit(&[new_job(deep)]).await.unwrap();
    assert_eq!(store.load("2026-11").await.unwrap().jobs.len(), 3);
}

/// PostgreSQL cannot store the character 0; both databases replace it.
async fn nul_is_replaced(store: &dyn Store) {
    let mut job = make::job(2, 1);
    job.spec.job_name = Some("a\0b".to_owned());
    job.spec.input_data = json!({"k\0": "v\0"});
    let event = Event { message: "a\0b".to_owned(), ..make::event(2) };
    store.commit(&[new_job(job), happened(event)]).await.unwrap();
    let job = store.job(JobId(2)).await.unwrap().unwrap();
    assert_eq!(job.spec.job_name.as_deref(), Some("a\u{fffd}b"));
    assert_eq!(job.spec.input_data, json!({"k\u{fffd}": "v\u{fffd}"}));
    let after = EventFilter { after: EventSeq(1), ..ALL_EVENTS };
    assert_eq!(store.events(&after).await.unwrap()[0].message, "a\u{fffd}b");
}
