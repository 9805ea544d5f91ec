//! Workloads: what people hand in.

use serde::{Deserialize, Serialize};
use std::sync::Arc;

use crate::model::error::InvalidInput;
use crate::model::name::{BudgetId, QueueId, WorkloadId};
use crate::model::request::{Request, limit};
use crate::model::units::{Span, Time};
use crate::strategy::Strategy;

/// The most tasks of one gang.
pub(crate) const MAX_TASKS: u32 = 100_000;

/// The most roles of one gang.
const MAX_ROLES: u64 = 4096;

/// The highest priority.
pub(crate) const MAX_PRIORITY: u8 = 10;

/// A gang of one or more tasks, placed whole or not at all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Its name.
    pub id: WorkloadId,
    /// The queue that pays for it.
    #[serde(default = "root")]
    pub queue: QueueId,
    /// How many tasks; all start together.
    #[serde(default = "one")]
    pub tasks: u32,
    /// What each task asks for; shared, because most workloads ask for what others ask for.
    pub request: Arc<Request>,
    /// More tasks of the same gang that ask for something else, numbered on behind the first ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<Role>,
    /// How the tasks lie to each other.
    #[serde(default)]
    pub topology: Option<Topology>,
    /// 0 to 10, higher first.
    #[serde(default = "middle")]
    pub priority: u8,
    /// When it was handed in; the time of the event when absent.
    #[serde(default)]
    pub submitted: Option<Time>,
    /// How long it is expected to run; makes reservations, backfill and ETAs possible.
    #[serde(default)]
    pub estimate: Option<Span>,
    /// How to choose GPUs, if not as the cluster does.
    #[serde(default)]
    pub strategy: Option<Strategy>,
    /// May be stopped for others.
    #[serde(default)]
    pub preemptible: bool,
    /// May stop others.
    #[serde(default = "yes")]
    pub may_preempt: bool,
    /// Not stopped for others before it has run this long; the policy's when absent.
    #[serde(default)]
    pub min_runtime: Option<Span>,
    /// How long it may take to end when it is asked to.
    #[serde(default)]
    pub grace: Span,
    /// Disruption budgets that stopping it draws on, once for each task.
    #[serde(default)]
    pub budgets: Vec<BudgetId>,
    /// What happens to it when a node is lost, drained or sick.
    #[serde(default)]
    pub on_fault: OnFault,
    /// Not to be placed yet, and why.
    #[serde(default)]
    pub gate: Option<Gate>,
}

/// Tasks of a gang that ask for the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Role {
    /// How many.
    #[serde(default = "one")]
    pub tasks: u32,
    /// What each of them asks for.
    pub request: Arc<Request>,
}

/// How the tasks of a gang lie to each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Topology {
    /// All where this node label has the same value: a rack, a zone; `node` for one node.
    Same(String),
    /// Over as many values of this node label as possible, evenly; `node` for different nodes.
    Spread(String),
}

/// What to do when the ground under a placement gives way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFault {
    /// Stop it and plan it again.
    #[default]
    Requeue,
    /// Leave it where it is and wait for the ground to come back.
    Keep,
}

/// Why a body does not want a workload placed yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gate {
    /// Money or GPU hours are used up.
    Budget(String),
    /// Other parts of the gang are not there yet.
    GangIncomplete {
        /// Parts that are there.
        have: u32,
        /// Parts that are needed.
        need: u32,
    },
    /// A person or another system holds it.
    Paused(String),
}

impl Workload {
    /// A workload of one task with nothing special about it.
    pub fn new(id: impl Into<WorkloadId>, request: impl Into<Arc<Request>>) -> Self {
        Self {
            id: id.into(),
            queue: root(),
            tasks: 1,
            request: request.into(),
            roles: Vec::new(),
            topology: None,
            priority: middle(),
            submitted: None,
            estimate: None,
            strategy: None,
            preemptible: false,
            may_preempt: true,
            min_runtime: None,
            grace: Span(0),
            budgets: Vec::new(),
            on_fault: OnFault::default(),
            gate: None,
        }
    }

    /// How many tasks there are in all roles.
    pub fn task_count(&self) -> u32 {
        self.roles.iter().fold(self.tasks, |sum, role| sum.saturating_add(role.tasks))
    }

    /// What a task asks for, by its number; tasks that do not exist ask for what the last ones do.
    pub fn request_of(&self, task: u32) -> &Arc<Request> {
        let mut behind = self.tasks;
        let mut last = &self.request;
        for role in &self.roles {
            if task < behind {
                break;
            }
            behind = behind.saturating_add(role.tasks);
            last = &role.request;
        }
        last
    }

    /// The tasks that ask for the same, and what, in order.
    pub fn each_role(&self) -> impl Iterator<Item = (u32, &Arc<Request>)> {
        let more = self.roles.iter().map(|role| (role.tasks, &role.request));
        std::iter::once((self.tasks, &self.request)).chain(more)
    }

    /// Refuses values that cannot be right; see [`InvalidInput`].
    pub fn validate(&self) -> Result<(), InvalidInput> {
        checked_name("the workload's name", self.id.as_str())?;
        if self.tasks == 0 || self.roles.iter().any(|role| role.tasks == 0) {
            return Err(InvalidInput::Zero("the number of tasks"));
        }
        limit("the number of tasks", self.task_count().into(), MAX_TASKS.into())?;
        limit("the number of roles", self.roles.len() as u64, MAX_ROLES)?;
        self.roles.iter().try_for_each(|role| role.request.validate())?;
        if self.priority > MAX_PRIORITY {
            return Err(InvalidInput::Priority(self.priority));
        }
        self.request.validate()
    }
}

/// The longest name of anything.
const MAX_NAME: usize = 512;

pub(crate) fn checked_name(field: &'static str, name: &str) -> Result<(), InvalidInput> {
    if name.is_empty() || name.len() > MAX_NAME {
        let name = name.chars().take(64).collect();
        return Err(InvalidInput::Name { field, name, limit: MAX_NAME });
    }
    Ok(())
}

fn root() -> QueueId {
    QueueId::from("root")
}

fn one() -> u32 {
    1
}

fn middle() -> u8 {
    5
}

fn yes() -> bool {
    true
}
