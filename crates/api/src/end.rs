//! Ends of jobs as data.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::link::StopCause;
use crate::wire::wire_enum;

wire_enum! {
    /// Reason for the end of a job.
    pub enum EndReason else Unknown {
        /// All processes exited; `exit_code` tells success from failure.
        Exited = "Exited",
        /// A signal killed the process.
        Signalled = "Signalled",
        /// The job exceeded its timeout.
        TimedOut = "TimedOut",
        /// The kernel killed the process: host memory or the job's own limit was exhausted.
        OutOfMemory = "OutOfMemory",
        /// The output shows that the memory of a GPU was exhausted.
        GpuOutOfMemory = "GpuOutOfMemory",
        /// The agent stopped the job because the job exceeded its share of GPU memory.
        GpuMemoryExceeded = "GpuMemoryExceeded",
        /// The driver reported an error of the application on its GPU, and the agent stopped the job to start it again.
        GpuApplicationError = "GpuApplicationError",
        /// The agent stopped the job because its files exceeded its disk limit.
        StorageExceeded = "StorageExceeded",
        /// The image could not be pulled.
        ImagePull = "ImagePull",
        /// The process or container could not be started.
        StartFailed = "StartFailed",
        /// A user cancelled the job.
        Cancelled = "Cancelled",
        /// A user marked the job as complete.
        Completed = "Completed",
        /// The node was lost more often than the job may be requeued, or the agent that the server calls lost the job.
        NodeLost = "NodeLost",
        /// Kubernetes evicted the pod.
        Evicted = "Evicted",
        /// The owner's budget is exhausted.
        BudgetExceeded = "BudgetExceeded",
        /// A reason that this version does not know.
        Unknown = "Unknown",
    }
}

impl EndReason {
    /// Returns true if the job's own retries apply. Stops by a user, a timeout or a budget are final.
    pub fn is_retryable(self) -> bool {
        matches!(
            self,
            Self::Exited
                | Self::Signalled
                | Self::OutOfMemory
                | Self::GpuOutOfMemory
                | Self::GpuApplicationError
                | Self::StartFailed
                | Self::ImagePull
        )
    }

    /// Returns true if the process ended by itself; its output may then tell more than the reason.
    pub fn is_own_exit(self) -> bool {
        matches!(self, Self::Exited | Self::Signalled | Self::GpuOutOfMemory)
    }
}

impl StopCause {
    /// End reason of a task that was stopped for this cause; none where the job is requeued instead.
    pub fn end_reason(self) -> Option<EndReason> {
        match self {
            Self::Cancelled => Some(EndReason::Cancelled),
            Self::TimedOut => Some(EndReason::TimedOut),
            Self::GpuMemoryExceeded => Some(EndReason::GpuMemoryExceeded),
            Self::GpuApplicationError => Some(EndReason::GpuApplicationError),
            Self::StorageExceeded => Some(EndReason::StorageExceeded),
            Self::BudgetExceeded => Some(EndReason::BudgetExceeded),
            _ => None,
        }
    }
}

wire_enum! {
    /// Cause of an end, where the job's own output or the runtime tells more than the reason.
    pub enum EndCause else Unknown {
        /// The memory of a GPU was exhausted.
        GpuOutOfMemory = "gpu_out_of_memory",
        /// Host memory was exhausted.
        HostOutOfMemory = "host_out_of_memory",
        /// The driver of the node is older than the CUDA version of the program.
        DriverTooOld = "driver_too_old",
        /// The program has no code for this GPU model.
        NoKernelImage = "no_kernel_image",
        /// The program found no GPU.
        NoGpu = "no_gpu",
        /// `/dev/shm` was exhausted.
        SharedMemory = "shared_memory",
        /// Python did not find a module.
        MissingModule = "missing_module",
        /// A disk was full.
        DiskFull = "disk_full",
        /// The program of a plain process does not exist on the node or may not be executed.
        ProgramNotFound = "program_not_found",
        /// The program of a plain process is a relative path, and jobs start in a folder of their own.
        RelativeProgram = "relative_program",
        /// A cause that this version does not know.
        Unknown = "unknown",
    }
}

/// Failure to start a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StartFailure {
    /// `ImagePull`, `StartFailed`, or `Exited` for a failure that a push agent reports.
    pub reason: EndReason,
    /// Cause, where the runtime tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<EndCause>,
    /// Message of the runtime.
    pub detail: String,
}

impl StartFailure {
    /// A failure without a known cause.
    pub fn new(reason: EndReason, detail: impl Into<String>) -> Self {
        Self { reason, cause: None, detail: detail.into() }
    }
}
