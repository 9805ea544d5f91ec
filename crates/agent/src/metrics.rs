//! Metrics of the agent: its GPUs and the use of tasks. Totals of the cluster come from the server.

use std::fmt;
use std::sync::{Arc, OnceLock};

use agentaflow_api::link::TaskUse;
use agentaflow_metrics::MetricType::{Counter, Gauge};
use agentaflow_metrics::{
    DeviceReading, Exposition, JOB_NAMES, MetricSource, write_dcgm, write_devices, write_workloads,
};

use crate::gpus::GpuWatch;
use crate::session::Sessions;
use crate::tasks::Tasks;

/// Limit of series per metric of tasks: labels must not grow without bound.
const MOST_TASKS: usize = 500;

/// Metrics of an agent; empty until [`run`](crate::run) has started its parts.
#[derive(Clone, Default)]
pub struct AgentMetrics {
    parts: Arc<OnceLock<Parts>>,
    /// Also export the names of `dcgm-exporter`.
    dcgm_names: bool,
}

struct Parts {
    node: String,
    gpus: Arc<GpuWatch>,
    sessions: Sessions,
    tasks: Tasks,
}

impl fmt::Debug for AgentMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentMetrics").field("dcgm_names", &self.dcgm_names).finish_non_exhaustive()
    }
}

impl AgentMetrics {
    pub fn new(dcgm_names: bool) -> Self {
        Self { parts: Arc::default(), dcgm_names }
    }

    pub(crate) fn start(
        &self,
        node: String,
        gpus: Arc<GpuWatch>,
        sessions: Sessions,
        tasks: Tasks,
    ) {
        // A second agent with the same metrics would be a defect of the caller; the first one stays.
        let _ = self.parts.set(Parts { node, gpus, sessions, tasks });
    }
}

impl AgentMetrics {
    /// Readings of the GPUs of this node.
    pub fn device_readings(&self) -> Vec<DeviceReading> {
        self.parts.get().map_or_else(Vec::new, |parts| parts.gpus.device_readings(&parts.node))
    }
}

impl MetricSource for AgentMetrics {
    fn write(&self, text: &mut Exposition) {
        let Some(Parts { node, gpus, sessions, tasks }) = self.parts.get() else { return };
        let connected = f64::from(u8::from(sessions.is_ready()));
        let values = [
            ("agentaflow_agent_connected", "1 if the agent receives messages.", connected),
            ("agentaflow_agent_tasks", "Live tasks.", tasks.live().len() as f64),
        ];
        for (name, help, value) in values {
            text.series(name, Gauge, help, [([("node", node)], value)]);
        }
        let devices = gpus.device_readings(node);
        write_devices(&devices, text);
        write_workloads(JOB_NAMES, &gpus.task_readings(node, MOST_TASKS), text);
        write_tasks(node, &tasks.uses(), text);
        if self.dcgm_names {
            write_dcgm(&devices, text);
        }
    }
}

/// CPU time and memory of at most `MOST_TASKS` tasks.
fn write_tasks(node: &str, uses: &[TaskUse], text: &mut Exposition) {
    let labelled: Vec<_> = uses
        .iter()
        .take(MOST_TASKS)
        .map(|entry| (entry.key.job.to_string(), entry.key.task.to_string(), entry))
        .collect();
    let each = |value: fn(&TaskUse) -> Option<f64>| {
        labelled.iter().filter_map(move |(job, task, entry)| {
            let labels = [("job_id", job.as_str()), ("task", task), ("node", node)];
            Some((labels, value(entry)?))
        })
    };
    text.series(
        "agentaflow_job_cpu_seconds_total",
        Counter,
        "CPU time of a task since its start.",
        each(|entry| Some(entry.cpu_ms? as f64 / 1e3)),
    );
    text.series(
        "agentaflow_job_memory_bytes",
        Gauge,
        "Memory of a task without page cache.",
        each(|entry| Some(entry.memory? as f64 * 1_048_576.0)),
    );
}
