//! Protocol between agent and guardian: one JSON object per line.
//!
//! Changes must stay compatible: after an upgrade of the program, the guardian of the old version runs until its tasks
//! end.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use agentaflow_api::end::StartFailure;
use agentaflow_api::link::{StopCause, TaskKey};
use agentaflow_api::units::{Secret, Stamp};

use super::device_rule::{DeviceControl, DeviceRule};

/// Peers with another version are incompatible.
pub(crate) const PROTOCOL: u32 = 1;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    /// Repeated in the response.
    pub(crate) id: u64,
    #[serde(flatten)]
    pub(crate) command: Command,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub(crate) enum Command {
    /// Starts a session. The lease lasts two heartbeat intervals; an interval of 0 means the default.
    Hello {
        #[serde(default)]
        interval_ms: u64,
    },
    Start(Box<ProcessSpec>),
    /// Sends TERM now and KILL after the grace.
    Stop {
        key: TaskKey,
        cause: StopCause,
        grace_ms: u64,
    },
    /// Extends the lease to a moment of the boot-time clock.
    Renew {
        until_ms: u64,
    },
    List,
    /// Lists all tasks, and sends [`Message::Ended`] for every later end.
    Watch,
    Usage {
        key: TaskKey,
    },
    Pids {
        key: TaskKey,
    },
    /// Exits as soon as no task is left.
    Leave,
    /// Drops an ended task.
    Forget {
        key: TaskKey,
    },
    /// Registers a leased container, which the guardian stops when the lease expires.
    Protect {
        key: TaskKey,
        docker_socket: PathBuf,
    },
}

/// Complete description of a process to start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ProcessSpec {
    pub(crate) key: TaskKey,
    pub(crate) argv: Vec<String>,
    /// Complete environment.
    pub(crate) env: BTreeMap<String, Secret>,
    pub(crate) working_dir: PathBuf,
    /// uid and gid. Default: the guardian's.
    pub(crate) user: Option<(u32, u32)>,
    /// Only processes of tasks have this user.
    #[serde(default)]
    pub(crate) exclusive_user: bool,
    /// MiB; 0 means no limit.
    pub(crate) memory: u64,
    /// Thousandths of a core; 0 means no limit.
    pub(crate) cpu_milli: u64,
    /// Processes and threads; 0 means no limit.
    pub(crate) pids: u64,
    /// 0 means the guardian's limit.
    #[serde(default)]
    pub(crate) open_files: u64,
    /// Device files that the process may not open.
    #[serde(default)]
    pub(crate) denied_devices: Vec<DeviceRule>,
    /// Time between TERM and KILL when the lease expires.
    pub(crate) grace_ms: u64,
    /// The guardian stops the process when the lease expires.
    pub(crate) leased: bool,
    /// Bytes of output to keep.
    pub(crate) log_limit: u64,
    /// Ignored by a guardian that cannot separate them.
    #[serde(default)]
    pub(crate) temporary_files: Option<TemporaryFiles>,
}

/// Temporary files of one task.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TemporaryFiles {
    /// Replaces `/tmp` and `/var/tmp`.
    pub(crate) folder: PathBuf,
    /// MiB of `/dev/shm`; 0 means the default of the kernel.
    pub(crate) shared_memory: u64,
    /// Pipe folder of the Multi-Process Service (MPS). Its clients also need `/dev/shm` of the host.
    pub(crate) mps_pipes: Option<PathBuf>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case")]
pub(crate) enum Message {
    Response {
        id: u64,
        response: Response,
    },
    /// Sent only to agents that watch.
    Ended {
        task: TaskState,
    },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum Response {
    Done,
    Hello {
        protocol: u32,
        pid: u32,
        /// Absent from a guardian of an older version.
        #[serde(default)]
        device_control: Option<DeviceControl>,
        /// Tasks have their own temporary files.
        #[serde(default)]
        private_tmp: bool,
    },
    Started {
        at: Stamp,
    },
    Failed {
        fault: StartFault,
    },
    Tasks {
        tasks: Vec<TaskState>,
    },
    Usage(UsageRecord),
    Pids {
        pids: Vec<u32>,
    },
}

/// Use of a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UsageRecord {
    pub(crate) cpu_ms: u64,
    /// Peak memory in MiB.
    pub(crate) memory: u64,
    /// Present memory in MiB; absent from a guardian of an older version.
    #[serde(default)]
    pub(crate) memory_now: u64,
}

/// Reason for which a process did not start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "of", rename_all = "snake_case")]
pub(crate) enum StartFault {
    /// The job would fail on every node.
    Job(StartFailure),
    Node {
        detail: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TaskState {
    pub(crate) key: TaskKey,
    pub(crate) started_at: Stamp,
    pub(crate) ended: Option<ExitRecord>,
}

/// End of a process; content of `exit.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ExitRecord {
    /// Exit code, or 128 plus the signal number.
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) out_of_memory: bool,
    pub(crate) stopped: Option<StopCause>,
    pub(crate) started_at: Stamp,
    /// Measured with a monotonic clock.
    /// `None` after a reboot of the host.
    pub(crate) ran_ms: Option<u64>,
    pub(crate) cpu_ms: u64,
    /// Peak in MiB; 0 if the process ended before the first sample.
    pub(crate) memory: u64,
}

impl ExitRecord {
    /// Use until the end.
    pub(crate) fn usage(&self) -> UsageRecord {
        UsageRecord { cpu_ms: self.cpu_ms, memory: self.memory, memory_now: 0 }
    }
}
