//! Workloads: the unit that users submit.

use serde::{Deserialize, Serialize};
use std::sync::Arc;

use crate::model::error::InvalidInput;
use crate::model::name::{BudgetId, QueueId, WorkloadId};
use crate::model::request::{Request, limit};
use crate::model::units::{Priority, Span, Time};
use crate::strategy::Strategy;

/// Limit of tasks per workload.
pub(crate) const MAX_TASKS: u32 = 100_000;

/// Limit of roles per workload.
const MAX_ROLES: u64 = 4096;

/// A gang of one or more tasks; the engine places all tasks or none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    pub id: WorkloadId,
    /// The queue whose quota the workload uses.
    #[serde(default = "root")]
    pub queue: QueueId,
    /// Number of tasks with `request`.
    #[serde(default = "one")]
    pub tasks: u32,
    /// Request of each task; shared between workloads with equal requests.
    pub request: Arc<Request>,
    /// Further tasks of the gang with other requests, numbered after the first `tasks`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<Role>,
    #[serde(default)]
    pub topology: Option<Topology>,
    /// Labels of topology levels, narrowest first: the gang starts within one domain of the first level with room for
    /// all tasks, else as `topology` demands.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub preferred_topology: Vec<String>,
    /// Higher first.
    #[serde(default = "middle")]
    pub priority: Priority,
    /// Order among workloads of equal priority, higher first, while ageing is off. Gives no right to preempt.
    #[serde(default)]
    pub precedence: u8,
    /// Submission time; defaults to the time of the event.
    #[serde(default)]
    pub submitted: Option<Time>,
    /// Expected run time; enables reservations, backfill and ETAs.
    #[serde(default)]
    pub estimate: Option<Span>,
    /// Overrides the cluster's strategy for the choice of GPUs.
    #[serde(default)]
    pub strategy: Option<Strategy>,
    /// The workload may be a preemption victim.
    #[serde(default)]
    pub preemptible: bool,
    /// The workload may preempt lower-priority workloads.
    #[serde(default = "yes")]
    pub may_preempt: bool,
    /// Minimum run time before preemption; defaults to the policy's.
    #[serde(default)]
    pub min_runtime: Option<Span>,
    #[serde(default)]
    pub grace: Span,
    /// Disruption budgets that a preemption of this workload uses, once per task.
    #[serde(default)]
    pub budgets: Vec<BudgetId>,
    #[serde(default)]
    pub on_fault: OnFault,
    /// Time during which the place of a lost task stays reserved; defaults to the policy's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replacement_wait: Option<Span>,
    /// Blocks scheduling while set.
    #[serde(default)]
    pub gate: Option<Gate>,
}

/// Tasks of a gang with the same request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Role {
    #[serde(default = "one")]
    pub tasks: u32,
    pub request: Arc<Request>,
}

/// Placement of a gang's tasks relative to each other. `node` as the label stands for the node itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Topology {
    /// All tasks on nodes with the same value of this label, for example a rack or a zone.
    Same(String),
    /// Tasks spread evenly over the values of this label.
    Spread(String),
}

/// Reaction to a lost, drained or failed node or GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFault {
    /// Stop the workload and schedule it again.
    #[default]
    Requeue,
    /// Leave the tasks in place until the node or GPU returns.
    Keep,
}

/// The driver's reason for blocking a workload, similar to a Kubernetes scheduling gate.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gate {
    /// The budget of money or GPU hours is used up.
    Budget(String),
    /// The driver has not seen all pods of the gang yet.
    PodsMissing { have: u32, need: u32 },
    /// The driver cannot open the secrets of the workload; the text names their key file.
    SecretsSealed(String),
    /// A user or another system suspended the workload.
    Paused(String),
}

impl Workload {
    /// A workload of one task with default settings.
    pub fn new(id: impl Into<WorkloadId>, request: impl Into<Arc<Request>>) -> Self {
        Self {
            id: id.into(),
            queue: root(),
            tasks: 1,
            request: request.into(),
            roles: Vec::new(),
            topology: None,
            preferred_topology: Vec::new(),
            priority: middle(),
            precedence: 0,
            submitted: None,
            estimate: None,
            strategy: None,
            preemptible: false,
            may_preempt: true,
            min_runtime: None,
            grace: Span(0),
            budgets: Vec::new(),
            on_fault: OnFault::default(),
            replacement_wait: None,
            gate: None,
        }
    }

    /// Number of tasks in all roles.
    pub fn task_count(&self) -> u32 {
        self.roles.iter().fold(self.tasks, |sum, role| sum.saturating_add(role.tasks))
    }

    /// Request of a task by number; numbers past the end return the last role's request.
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

    /// Number of tasks and request of each role, in order.
    pub fn each_role(&self) -> impl Iterator<Item = (u32, &Arc<Request>)> {
        let more = self.roles.iter().map(|role| (role.tasks, &role.request));
        std::iter::once((self.tasks, &self.request)).chain(more)
    }

    /// Rejects out-of-range values; see [`InvalidInput`].
    pub fn validate(&self) -> Result<(), InvalidInput> {
        checked_name("the workload's name", self.id.as_str())?;
        if self.tasks == 0 || self.roles.iter().any(|role| role.tasks == 0) {
            return Err(InvalidInput::Zero("the number of tasks"));
        }
        limit("the number of tasks", self.task_count().into(), MAX_TASKS.into())?;
        limit("the number of roles", self.roles.len() as u64, MAX_ROLES)?;
        self.roles.iter().try_for_each(|role| role.request.validate())?;
        self.request.validate()
    }
}

/// Limit of the length of any name, in bytes.
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

fn middle() -> Priority {
    Priority(5)
}

fn yes() -> bool {
    true
}
