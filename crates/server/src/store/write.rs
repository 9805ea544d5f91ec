//! Conversion of changes to statements.
//!
//! Tables have no foreign keys, so changes of different tables may be reordered within a transaction: jobs, events and
//! ledger entries are gathered into statements of many rows.

use std::collections::BTreeMap;

use agentaflow_api::billing::LedgerEntry;
use agentaflow_api::event::Event;
use agentaflow_api::ids::{JobId, NodeId, UserId};
use agentaflow_api::job::JobSpec;
use agentaflow_api::trace::TraceContext;
use agentaflow_api::units::Stamp;
use serde::Serialize;

use super::records::{
    AgentRow, CredentialRow, HeartbeatRow, IdempotencyRow, JobRow, JobState, NodeRow, QueueRow,
    UserRow,
};
use super::sql::{Dialect, Sql, Value, in_powers_of_two, in_rows};
use super::{Change, read};

type JsonResult<T> = Result<T, serde_json::Error>;

/// Statements of one transaction.
pub(super) fn statements(dialect: Dialect, changes: &[Change]) -> JsonResult<Vec<Sql>> {
    let mut batch = Batch::new(dialect);
    for change in changes {
        batch.take(change)?;
    }
    batch.finish()
}

/// Part of a job that never changes.
#[derive(Serialize)]
struct JobHead<'a> {
    id: JobId,
    user_id: UserId,
    queue: &'a str,
    spec: &'a JobSpec,
    pinned: Option<&'a str>,
    secret_names: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    trace: Option<TraceContext>,
    created_at: Stamp,
}

struct Batch<'a> {
    dialect: Dialect,
    rare: Vec<Sql>,
    new_jobs: Vec<&'a JobRow>,
    /// Last state of each job.
    states: BTreeMap<JobId, &'a JobState>,
    events: Vec<&'a Event>,
    /// Entries with their days.
    ledger: Vec<(&'a LedgerEntry, &'a str)>,
}

impl<'a> Batch<'a> {
    fn new(dialect: Dialect) -> Self {
        Self {
            dialect,
            rare: Vec::new(),
            new_jobs: Vec::new(),
            states: BTreeMap::new(),
            events: Vec::new(),
            ledger: Vec::new(),
        }
    }

    fn take(&mut self, change: &'a Change) -> JsonResult<()> {
        match change {
            Change::NewJob(job) => self.new_jobs.push(job),
            Change::Job(id, state) => {
                self.states.insert(*id, state);
            }
            Change::Event(event) => self.events.push(event),
            Change::Ledger { entry, day } => self.ledger.push((entry, day)),
            Change::User(user) => self.user(user)?,
            Change::Credential(credential) => self.credential(credential)?,
            Change::CredentialGone(id) => self.delete_and_record("credentials", *id),
            Change::Node(node) => self.node(node)?,
            Change::NodeGone(id) => self.delete_and_record("nodes", *id),
            Change::Heartbeats(heartbeats) => self.heartbeats(heartbeats)?,
            Change::Agent(agent) => self.agent(agent)?,
            Change::AgentGone(id) => self.delete_and_record("agents", *id),
            Change::Queue(queue) => self.queue(queue)?,
            Change::QueueGone(name) => self.remove("queues", "name = ", name),
            Change::Idempotency(row) => self.idempotency(row),
            Change::IdempotencyBefore(at) => self.remove("idempotency", "at < ", *at),
            Change::IdempotencyMoved(ms) => {
                let mut sql = Sql::new(self.dialect, "UPDATE idempotency SET at = at + ");
                sql.bind(*ms);
                self.rare.push(sql);
            }
            Change::JobsGone(jobs) => self.jobs_gone(jobs),
            Change::EventsBefore { at, last } => {
                self.remove("events", "job_id IS NULL AND at < ", *at);
                self.record_deleted_id("events", *last);
            }
            Change::Meta(name, value) => {
                self.put("meta", "name", &["value"], [Value::from(*name), value.into()]);
            }
        }
        Ok(())
    }

    fn finish(mut self) -> JsonResult<Vec<Sql>> {
        let mut all = std::mem::take(&mut self.rare);
        all.extend(self.insert_jobs()?);
        all.extend(self.update_jobs()?);
        all.extend(self.insert_events()?);
        all.extend(self.insert_ledger()?);
        Ok(all)
    }

    /// Inserts or replaces a record. `key` names one or more columns.
    fn put(
        &mut self,
        table: &str,
        key: &str,
        columns: &[&str],
        values: impl IntoIterator<Item = Value>,
    ) {
        let names = columns.join(", ");
        let mut sql =
            Sql::new(self.dialect, &format!("INSERT INTO {table} ({key}, {names}) VALUES "));
        sql.bind_row(values).push(&format!(" ON CONFLICT ({key}) DO UPDATE SET "));
        for (at, column) in columns.iter().enumerate() {
            sql.push(if at == 0 { "" } else { ", " })
                .push(&format!("{column} = excluded.{column}"));
        }
        self.rare.push(sql);
    }

    fn remove(&mut self, table: &str, condition: &str, value: impl Into<Value>) {
        let mut sql = Sql::new(self.dialect, &format!("DELETE FROM {table}"));
        sql.and(condition).bind(value);
        self.rare.push(sql);
    }

    fn jobs_gone(&mut self, jobs: &[JobId]) {
        for (table, column) in [("jobs", "id"), ("events", "job_id"), ("idempotency", "job_id")] {
            for some in in_powers_of_two(jobs) {
                let mut sql = Sql::new(self.dialect, &format!("DELETE FROM {table}"));
                let ids = some.iter().map(|id| Value::from(*id));
                sql.and(&format!("{column} IN ")).bind_row(ids);
                self.rare.push(sql);
            }
        }
        if let Some(last) = jobs.iter().max() {
            self.record_deleted_id("jobs", *last);
        }
    }

    /// Deletes a record and remembers that its id was used.
    fn delete_and_record(&mut self, table: &str, id: impl Into<Value> + Copy) {
        self.remove(table, "id = ", id);
        self.record_deleted_id(table, id);
    }

    fn record_deleted_id(&mut self, table: &str, id: impl Into<Value>) {
        let mut sql = Sql::new(self.dialect, "INSERT INTO gone (name, id) VALUES ");
        sql.bind_row([Value::from(table), id.into()])
            .push(" ON CONFLICT (name) DO UPDATE SET id = excluded.id WHERE gone.id < excluded.id");
        self.rare.push(sql);
    }

    fn user(&mut self, user: &UserRow) -> JsonResult<()> {
        let key = user.username.to_lowercase();
        let values = [user.id.into(), (&user.username).into(), (&key).into(), Value::json(user)?];
        self.put("users", "id", &["username", "name_key", "doc"], values);
        Ok(())
    }

    fn credential(&mut self, row: &CredentialRow) -> JsonResult<()> {
        let values = [
            row.id.into(),
            read::word(row.kind)?.as_str().into(),
            (&row.hash).into(),
            row.expires_at.into(),
            Value::json(row)?,
        ];
        self.put("credentials", "id", &["kind", "hash", "expires_at", "doc"], values);
        Ok(())
    }

    fn node(&mut self, row: &NodeRow) -> JsonResult<()> {
        let values = [
            row.id.into(),
            (&row.node_id).into(),
            (&row.spec.node_name).into(),
            row.last_heartbeat.into(),
            Value::json(row)?,
        ];
        self.put("nodes", "id", &["node_id", "name", "last_heartbeat", "doc"], values);
        Ok(())
    }

    fn heartbeats(&mut self, heartbeats: &[HeartbeatRow]) -> JsonResult<()> {
        let last: BTreeMap<NodeId, Stamp> =
            heartbeats.iter().map(|heartbeat| (heartbeat.node, heartbeat.at)).collect();
        let rows: Vec<(NodeId, Stamp)> = last.into_iter().collect();
        let around = (
            "UPDATE nodes SET last_heartbeat = v.column2 FROM (VALUES ",
            ") AS v WHERE nodes.id = v.column1",
        );
        self.rare.extend(in_rows(self.dialect, around, &rows, |(id, at)| {
            Ok(vec![(*id).into(), (*at).into()])
        })?);
        Ok(())
    }

    fn agent(&mut self, row: &AgentRow) -> JsonResult<()> {
        let values = [row.id.into(), (&row.agent_id).into(), Value::json(row)?];
        self.put("agents", "id", &["agent_id", "doc"], values);
        Ok(())
    }

    fn queue(&mut self, row: &QueueRow) -> JsonResult<()> {
        self.put("queues", "name", &["doc"], [(&row.spec.name).into(), Value::json(row)?]);
        Ok(())
    }

    fn idempotency(&mut self, row: &IdempotencyRow) {
        let values = [
            row.user_id.into(),
            (&row.key).into(),
            (&row.body).into(),
            row.job_id.into(),
            row.at.into(),
        ];
        self.put("idempotency", "user_id, key", &["body", "job_id", "at"], values);
    }

    fn insert_jobs(&mut self) -> JsonResult<Vec<Sql>> {
        let jobs: Vec<(&JobRow, &JobState)> = std::mem::take(&mut self.new_jobs)
            .into_iter()
            .map(|job| (job, self.states.remove(&job.id).unwrap_or(&job.state)))
            .collect();
        let head =
            "INSERT INTO jobs (id, user_id, queue, status, name, created_at, spec, state) VALUES ";
        in_rows(self.dialect, (head, ""), &jobs, |(job, state)| {
            Ok(vec![
                job.id.into(),
                job.user_id.into(),
                (&job.queue).into(),
                state.status.as_str().into(),
                job.spec.job_name.as_deref().unwrap_or_default().to_lowercase().as_str().into(),
                job.created_at.into(),
                Value::json(&job_head(job))?,
                Value::json(state)?,
            ])
        })
    }

    fn update_jobs(&self) -> JsonResult<Vec<Sql>> {
        let states: Vec<(JobId, &JobState)> =
            self.states.iter().map(|(id, state)| (*id, *state)).collect();
        let around = (
            "UPDATE jobs SET status = v.column2, state = v.column3 FROM (VALUES ",
            ") AS v WHERE jobs.id = v.column1 RETURNING jobs.id",
        );
        let mut made = in_rows(self.dialect, around, &states, |(id, state)| {
            Ok(vec![(*id).into(), state.status.as_str().into(), Value::json(state)?])
        })?;
        // The state of an unknown job fails the transaction, so that no change is lost.
        for sql in &mut made {
            sql.expect = Some(sql.values.len() / 3);
        }
        Ok(made)
    }

    fn insert_events(&self) -> JsonResult<Vec<Sql>> {
        let head =
            "INSERT INTO events (seq, at, kind, message, job_id, node_id, user_id, data) VALUES ";
        in_rows(self.dialect, (head, ""), &self.events, |event| {
            Ok(vec![
                event.seq.into(),
                event.at.into(),
                event.kind.as_str().into(),
                (&event.message).into(),
                event.job_id.into(),
                event.node_id.as_deref().into(),
                event.user_id.into(),
                Value::json(&event.data)?,
            ])
        })
    }

    fn insert_ledger(&self) -> JsonResult<Vec<Sql>> {
        let head = "INSERT INTO ledger (id, at, day, kind, user_id, job_id, attempt, task, queue, node_id, \
                    gpu_milli, cpu_milli, memory, duration_ms, micros, note) VALUES ";
        in_rows(self.dialect, (head, ""), &self.ledger, |(entry, day)| {
            Ok(vec![
                entry.id.into(),
                entry.at.into(),
                (*day).into(),
                entry.kind.as_str().into(),
                entry.user_id.into(),
                entry.job_id.into(),
                entry.attempt.into(),
                entry.task.into(),
                entry.queue.as_deref().into(),
                entry.node_id.as_deref().into(),
                entry.gpus.0.into(),
                entry.cpu_cores.0.into(),
                entry.memory.into(),
                entry.duration_ms.into(),
                entry.micros.into(),
                entry.note.as_deref().into(),
            ])
        })
    }
}

fn job_head(job: &JobRow) -> JobHead<'_> {
    JobHead {
        id: job.id,
        user_id: job.user_id,
        queue: &job.queue,
        spec: &job.spec,
        pinned: job.pinned.as_deref(),
        secret_names: &job.secret_names,
        trace: job.trace,
        created_at: job.created_at,
    }
}
