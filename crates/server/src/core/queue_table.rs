//! Queues as an admin defined them.

use std::collections::BTreeMap;
use std::sync::Arc;

use agentaflow_api::queue::{QueueSpec, QuotaSpec};
use agentaflow_engine::{MiB, MilliCpu, Priority, Queue, Quota};

use crate::directory::Directory;
use crate::store::{QueueRow, UserRow};

/// Queue above all other queues; the store has no record of it.
pub(crate) const ROOT: &str = "root";

#[derive(Debug, Default)]
pub(crate) struct QueueTable {
    rows: BTreeMap<String, Arc<QueueRow>>,
    /// A queue changed since the last publication.
    stale: bool,
}

impl QueueTable {
    /// Queues of the store. Records of earlier versions have names of users only.
    pub(crate) fn new(rows: Vec<QueueRow>, directory: &Directory) -> Self {
        let named = |mut row: QueueRow| {
            if row.members.is_empty() {
                let users = row.spec.users.iter();
                let known = users.filter_map(|name| directory.user_named(name));
                row.members = known.map(|user| user.id).collect();
            }
            (row.spec.name.clone(), Arc::new(row))
        };
        Self { rows: rows.into_iter().map(named).collect(), stale: true }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Arc<QueueRow>> {
        self.rows.get(name)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &QueueRow> {
        self.rows.values().map(|row| &**row)
    }

    /// Queue that names a user who does not exist yet.
    pub(crate) fn naming(&self, username: &str) -> Option<&str> {
        let username = username.to_lowercase();
        let names_it = |row: &&Arc<QueueRow>| {
            row.spec.users.iter().any(|listed| listed.to_lowercase() == username)
        };
        self.rows.values().find(names_it).map(|row| row.spec.name.as_str())
    }

    pub(crate) fn put(&mut self, row: QueueRow) {
        self.stale = true;
        self.rows.insert(row.spec.name.clone(), Arc::new(row));
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.stale = true;
        self.rows.remove(name);
    }

    pub(crate) fn take_stale(&mut self) -> bool {
        std::mem::take(&mut self.stale)
    }
}

impl QueueRow {
    /// Returns true if the queue is open to the user.
    pub(crate) fn is_open_to(&self, user: &UserRow) -> bool {
        self.spec.users.is_empty() || self.members.contains(&user.id)
    }
}

/// Engine queue of a definition.
pub(crate) fn engine_queue(spec: &QueueSpec) -> Queue {
    let mut queue = Queue::new(spec.name.as_str());
    queue.parent = spec.parent.as_deref().unwrap_or(ROOT).into();
    queue.weight = spec.weight.unwrap_or(100);
    queue.guaranteed = quota(&spec.guaranteed);
    queue.limit = quota(&spec.limit);
    queue.borrow = spec.borrow.unwrap_or(true);
    queue.max_priority = Priority(spec.max_priority.map_or(10, |most| most.min(10) as i32));
    queue
}

fn quota(spec: &QuotaSpec) -> Quota {
    Quota {
        cpu: spec.cpu_cores.map(|cores| MilliCpu(cores.0).0),
        memory: spec.memory.map(|memory| MiB(memory).0),
        gpu: spec.gpus.map(|gpus| gpus.0),
        models: spec
            .gpu_types
            .iter()
            .map(|(model, gpus)| (model.as_str().into(), gpus.0))
            .collect(),
        ..Quota::default()
    }
}

#[cfg(test)]
mod tests {
    use agentaflow_api::ids::UserId;

    use super::*;

    #[test]
    fn a_listed_name_without_a_user_gives_no_access() {
        let user = |id: i64, name: &str| UserRow {
            id: UserId(id),
            username: name.to_owned(),
            ..UserRow::default()
        };
        let directory = Directory::new(vec![user(1, "Ada")], Vec::new());
        let spec = QueueSpec {
            name: "team".into(),
            users: vec!["ada".into(), "Ghost".into()],
            ..QueueSpec::default()
        };
        // A record of an earlier version.
        let table = QueueTable::new(vec![QueueRow { spec, ..QueueRow::default() }], &directory);
        let queue = table.get("team").unwrap();
        assert!(queue.is_open_to(&user(1, "Ada")));
        assert!(!queue.is_open_to(&user(2, "Ghost")), "the name alone is no membership");
        assert_eq!((table.naming("ghost"), table.naming("ben")), (Some("team"), None));
    }
}
