//! Records for tests, with a value in every field.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use agentaflow_api::account::Role;
use agentaflow_api::billing::{LedgerEntry, LedgerKind};
use agentaflow_api::end::EndReason;
use agentaflow_api::event::{Event, EventKind};
use agentaflow_api::ids::{
    AgentId, CredentialId, EventSeq, JobId, LedgerEntryId, MicroUsd, NodeId, UserId,
};
use agentaflow_api::job::{JobSpec, JobStatus, ResourceUsage, TaskState};
use agentaflow_api::link::{GpuGrant, StopCause};
use agentaflow_api::node::{Health, NodeSpec, PendingRegistration, PriceSource};
use agentaflow_api::pending::PendingReason;
use agentaflow_api::queue::{QueueSpec, QuotaSpec};
use agentaflow_api::units::{Cores, Dollars, GpuAmount, Stamp};
use agentaflow_engine::{MicroDollars, Price};
use agentaflow_server::store::{
    AgentRow, Change, CredentialKind, CredentialRow, IdempotencyRow, JobRow, JobState,
    NodeOverrides, NodeRow, QueueRow, TaskAssignment, UserRow,
};
use serde_json::{Map, Value, json};

/// Morning of 2026-11-15.
pub(crate) const NOW: Stamp = Stamp(1_794_724_800_123);

pub(crate) fn user(id: i64, name: &str) -> UserRow {
    UserRow {
        id: UserId(id),
        username: name.to_owned(),
        email: Some(format!("{name}@example.com")),
        role: Role::Viewer,
        grants: vec!["process".to_owned()],
        active: true,
        default_queue: "main".to_owned(),
        prepaid: true,
        spending_limit: Some(MicroUsd(5_000_000)),
        password_hash: Some("$argon2id$…".to_owned()),
        session_epoch: 3,
        created_at: NOW,
    }
}

pub(crate) fn credential(id: i64, kind: CredentialKind) -> CredentialRow {
    CredentialRow {
        id: CredentialId(id),
        kind,
        hash: format!("{id:064x}"),
        prefix: "af_12".to_owned(),
        name: "laptop".to_owned(),
        user_id: Some(UserId(1)),
        node_id: Some(NodeId(2)),
        agent_id: Some(AgentId(3)),
        created_at: NOW,
        expires_at: Some(Stamp(Stamp::now().0 + 60_000)),
        last_used_at: Some(NOW),
        revoked_at: Some(NOW),
        uses_left: Some(2),
        opened_from: Some(Ipv4Addr::LOCALHOST.into()),
    }
}

pub(crate) fn node(id: i64, name: &str) -> NodeRow {
    NodeRow {
        id: NodeId(id),
        node_id: format!("gpu-{id:012x}"),
        spec: NodeSpec { node_name: name.to_owned(), ..NodeSpec::default() },
        price_source: PriceSource::Catalogue,
        cordoned: true,
        draining: true,
        health: Health::Healthy,
        last_heartbeat: Some(NOW),
        overrides: NodeOverrides { region: Some("eu".to_owned()), ..NodeOverrides::default() },
        peer: Some("10.0.0.7".to_owned()),
        claim: Some(PendingRegistration {
            address: "10.0.0.8".to_owned(),
            requested_at: NOW,
            approved: true,
        }),
        registered_at: NOW,
        created_at: NOW,
        updated_at: NOW,
    }
}

pub(crate) fn agent(id: i64, name: &str) -> AgentRow {
    AgentRow {
        id: AgentId(id),
        agent_id: name.to_owned(),
        node_id: NodeId(2),
        agent_version: Some("0.1.0".to_owned()),
        config: object(json!({"a": [1, 2.5, null]})),
        capabilities: object(json!({"docker": true})),
        api_endpoint: Some("http://10.0.0.7:8080".to_owned()),
        websocket_endpoint: Some("ws://10.0.0.7:8080".to_owned()),
        created_at: NOW,
        updated_at: NOW,
        started_at: Some(NOW),
    }
}

/// Every field by name: the store splits a job into columns, and must not lose a new field.
pub(crate) fn job(id: i64, user_id: i64) -> JobRow {
    JobRow {
        id: JobId(id),
        user_id: UserId(user_id),
        queue: "main".to_owned(),
        spec: JobSpec {
            job_name: Some(format!("Train {id}")),
            docker_image: Some("alpine".to_owned()),
            input_data: json!({"big": u64::MAX, "small": 0.1, "none": null}),
            cpu_cores_required: Some(Cores(1500)),
            env: BTreeMap::from([("A".to_owned(), "b".to_owned())]),
            ..JobSpec::default()
        },
        pinned: Some("gpu-000000000002".to_owned()),
        secret_names: vec!["TOKEN".to_owned()],
        trace: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".parse().ok(),
        created_at: NOW,
        state: state(JobStatus::Pending),
    }
}

pub(crate) fn state(status: JobStatus) -> JobState {
    JobState {
        status,
        sealed: Some("v1.k.AAAA".to_owned()),
        epoch: 2,
        tasks: vec![task()],
        retries_used: 1,
        losses: 2,
        cancel_requested: true,
        stopping: Some(StopCause::Drained),
        output_data: Some(json!({"loss": 0.25})),
        error_message: Some("it's \"broken\"".to_owned()),
        end_reason: Some(EndReason::Exited),
        failed_at: Some(NOW),
        exit_code: Some(-7),
        usage: ResourceUsage { gpu_memory: Some(7), ..ResourceUsage::default() },
        scheduled_at: Some(NOW),
        started_at: Some(NOW),
        completed_at: Some(NOW),
        ran_ms: 12_345,
        cost: MicroUsd(67),
        pending_reason: Some(PendingReason::NoNodes { unreachable: 1 }),
        warned_at: Some(NOW),
        updated_at: NOW,
        ..JobState::default()
    }
}

fn task() -> TaskAssignment {
    let micros = MicroDollars(1_000_000);
    TaskAssignment {
        task: 1,
        node: NodeId(2),
        gpus: Vec::new(),
        grants: vec![GpuGrant {
            index: 0,
            uuid: "GPU-1".to_owned(),
            milli: 500,
            memory: 8192,
            shared: true,
        }],
        price: Price { gpu_hour: micros, cpu_hour: micros, gib_hour: micros },
        gpu_milli: 500,
        state: TaskState::Running,
        started_at: Some(NOW),
        ran_ms: 99,
        exit_code: Some(1),
        stopped: true,
        kubernetes: Some(agentaflow_api::link::KubernetesObjects {
            namespace: "imagepod".to_owned(),
            job_name: "gpu-job-1-1-0".to_owned(),
            pod_name: "gpu-job-1-1-0-x".to_owned(),
        }),
    }
}

pub(crate) fn queue(name: &str) -> QueueRow {
    let limit = QuotaSpec { gpus: Some(GpuAmount(8000)), ..QuotaSpec::default() };
    QueueRow {
        members: vec![UserId(1)],
        spec: QueueSpec { name: name.to_owned(), limit, ..QueueSpec::default() },
        created_at: NOW,
        updated_at: NOW,
    }
}

pub(crate) fn event(seq: i64) -> Event {
    Event {
        seq: EventSeq(seq),
        at: Stamp(NOW.0 + seq),
        kind: EventKind::Started,
        message: format!("event {seq}"),
        job_id: Some(JobId(1)),
        job: None,
        node_id: Some("gpu-000000000002".to_owned()),
        user_id: Some(UserId(1)),
        data: object(json!({"seq": seq})),
    }
}

pub(crate) fn ledger(id: i64, user_id: i64, micros: i64) -> LedgerEntry {
    LedgerEntry {
        id: LedgerEntryId(id),
        at: Stamp(NOW.0 + id),
        kind: LedgerKind::Usage,
        user_id: UserId(user_id),
        job_id: Some(JobId(id)),
        attempt: Some(1),
        task: Some(0),
        queue: Some("main".to_owned()),
        node_id: Some("gpu-000000000002".to_owned()),
        gpus: GpuAmount(2500),
        cpu_cores: Cores(4000),
        memory: 2048,
        duration_ms: 3_600_000,
        micros: MicroUsd(micros),
        amount: Dollars(micros),
        note: Some("an hour".to_owned()),
    }
}

pub(crate) fn key(user_id: i64, key: &str, at: Stamp) -> IdempotencyRow {
    IdempotencyRow {
        user_id: UserId(user_id),
        key: key.to_owned(),
        body: "00ff".to_owned(),
        job_id: JobId(1),
        at,
    }
}

pub(crate) fn object(value: Value) -> Map<String, Value> {
    serde_json::from_value(value).unwrap()
}

/// Shorter names for changes.
pub(crate) fn new_job(job: JobRow) -> Change {
    Change::NewJob(Box::new(job))
}

pub(crate) fn job_state(id: i64, state: JobState) -> Change {
    Change::Job(JobId(id), Box::new(state))
}

pub(crate) fn happened(event: Event) -> Change {
    Change::Event(Box::new(event))
}

pub(crate) fn paid(entry: LedgerEntry) -> Change {
    Change::Ledger { day: entry.at.day(), entry: Box::new(entry) }
}
