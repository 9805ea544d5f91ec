//! What agent and guardian say to each other: one JSON object a line.
//!
//! Additions must not disturb an older or newer partner: after an upgrade of the program the guardian of the old
//! version goes on until its tasks are over.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use agentaflow_api::link::{StopCause, TaskKey};
use agentaflow_api::units::{Secret, Stamp};

/// The version of this language. Another number means that the two do not understand each other.
pub(crate) const PROTOCOL: u32 = 1;

/// What an agent asks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    /// Stands in the answer.
    pub(crate) id: u64,
    /// What.
    #[serde(flatten)]
    pub(crate) ask: Ask,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub(crate) enum Ask {
    /// Which protocol do you speak? A lease is two intervals long; an older agent does not say how long one is.
    Hello {
        #[serde(default)]
        interval_ms: u64,
    },
    /// Start a process.
    Start(Box<Order>),
    /// TERM now, KILL after the grace.
    Stop { key: TaskKey, cause: StopCause, grace_ms: u64 },
    /// The lease holds until this moment, in milliseconds of the boot-time clock.
    Renew { until_ms: u64 },
    /// Everything you have.
    List,
    /// The same, and from now on every end as it happens.
    Watch,
    /// What has a task used?
    Used { key: TaskKey },
    /// Which processes has a task?
    Pids { key: TaskKey },
    /// Go, as soon as nothing is left to guard.
    Leave,
    /// The end of this task is known; forget it.
    Forget { key: TaskKey },
    /// This task is a container of the engine behind this socket; stop it when the lease runs out.
    Protect { key: TaskKey, engine: PathBuf },
}

/// A process to start, with everything decided.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) key: TaskKey,
    /// Program and arguments.
    pub(crate) argv: Vec<String>,
    /// The whole environment.
    pub(crate) env: BTreeMap<String, Secret>,
    /// The folder in which it starts.
    pub(crate) working_dir: PathBuf,
    /// As whom it runs; as the guardian itself when absent.
    pub(crate) user: Option<(u32, u32)>,
    /// MiB; 0 is no limit.
    pub(crate) memory: u64,
    /// Thousandths of a core; 0 is no limit.
    pub(crate) cpu_milli: u64,
    /// Processes and threads; 0 is no limit.
    pub(crate) pids: u64,
    /// Between TERM and KILL when the lease runs out.
    pub(crate) grace_ms: u64,
    /// It must not outlive the lease.
    pub(crate) leased: bool,
    /// Output beyond this is thrown away.
    pub(crate) log_limit: u64,
}

/// What a guardian says.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "snake_case")]
pub(crate) enum Say {
    /// To a request.
    Answer { id: u64, answer: Answer },
    /// A task is over; only to those who watch.
    Ended { task: TaskState },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum Answer {
    Done,
    Hello {
        protocol: u32,
        pid: u32,
    },
    Started {
        at: Stamp,
    },
    /// It did not start; whether the job is at fault, and why.
    Failed {
        job: bool,
        detail: String,
    },
    Tasks {
        tasks: Vec<TaskState>,
    },
    Used {
        cpu_ms: u64,
        memory: u64,
    },
    Pids {
        pids: Vec<u32>,
    },
}

/// A task as the guardian knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TaskState {
    pub(crate) key: TaskKey,
    pub(crate) started_at: Stamp,
    /// How it ended, if it did.
    pub(crate) ended: Option<ExitRecord>,
}

/// How a process ended, as it is kept in `exit.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ExitRecord {
    /// Its exit code, or 128 and the number of the signal.
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) out_of_memory: bool,
    pub(crate) stopped: Option<StopCause>,
    pub(crate) started_at: Stamp,
    /// By a clock that does not jump.
    pub(crate) ran_ms: u64,
    pub(crate) cpu_ms: u64,
    /// MiB at most; 0 when it was too short to be looked at.
    pub(crate) memory: u64,
}
