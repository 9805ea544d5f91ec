//! GPUs by workload.

use super::{
    AGENT, DECIDERS, Dashboard, MONITOR, Panel, SERVER, Section, View, of, quantile, rare,
};

pub(super) const DASHBOARD: Dashboard = Dashboard {
    name: "workload",
    title: "AgentaFlow workloads",
    about: "GPUs, memory and power of pods and jobs on the selected nodes.",
    has_nodes: true,
    sections: &[
        Section { title: "Pods", panels: &PODS },
        Section { title: "Jobs of a server", panels: &JOBS },
        Section { title: "Waits and ends", panels: &LIFE },
    ],
};

const PODS: [Panel; 4] = [
    Panel {
        title: "GPUs by pod",
        about: "GPUs allocated to each pod; a slice counts as its share.",
        unit: "short",
        view: View::Half,
        queries: &[of(
            MONITOR,
            "sum by (namespace, pod) (agentaflow_pod_gpus{node=~\"$node\"})",
            "{{namespace}}/{{pod}}",
        )],
    },
    Panel {
        title: "GPU memory by pod",
        about: "GPU memory in use by each pod.",
        unit: "bytes",
        view: View::Half,
        queries: &[of(
            MONITOR,
            "sum by (namespace, pod) (agentaflow_pod_gpu_memory_bytes{node=~\"$node\"})",
            "{{namespace}}/{{pod}}",
        )],
    },
    Panel {
        title: "GPU utilization by pod",
        about: "Percent of one GPU used by each pod.",
        unit: "percent",
        view: View::Half,
        // No process uses a simulated GPU.
        queries: &[rare(
            MONITOR,
            "sum by (namespace, pod) (agentaflow_pod_gpu_utilization{node=~\"$node\"})",
            "{{namespace}}/{{pod}}",
        )],
    },
    Panel {
        title: "Power of pods",
        about: "Energy of pods over time; shared GPUs are divided.",
        unit: "watt",
        view: View::Half,
        queries: &[of(
            MONITOR,
            "sum by (namespace, pod) (rate(agentaflow_pod_gpu_energy_joules_total{node=~\"$node\"}[$__rate_interval]))",
            "{{namespace}}/{{pod}}",
        )],
    },
];

const JOBS: [Panel; 6] = [
    Panel {
        title: "GPU utilization by job",
        about: "Percent of a GPU used by each job.",
        unit: "percent",
        view: View::Half,
        // No process uses a simulated GPU.
        queries: &[rare(
            AGENT,
            "agentaflow_job_gpu_utilization{node=~\"$node\"}",
            "job {{job_id}}",
        )],
    },
    Panel {
        title: "GPU memory by job",
        about: "GPU memory in use by each job.",
        unit: "bytes",
        view: View::Half,
        queries: &[of(
            AGENT,
            "sum by (job_id) (agentaflow_job_gpu_memory_bytes{node=~\"$node\"})",
            "job {{job_id}}",
        )],
    },
    Panel {
        title: "Power of jobs",
        about: "Energy of jobs over time; shared GPUs are divided.",
        unit: "watt",
        view: View::Half,
        queries: &[of(
            AGENT,
            "sum by (job_id) (rate(agentaflow_job_gpu_energy_joules_total{node=~\"$node\"}[$__rate_interval]))",
            "job {{job_id}}",
        )],
    },
    Panel {
        title: "CPU by job",
        about: "CPU cores used by each job.",
        unit: "short",
        view: View::Half,
        // The runtime of Kubernetes reports none.
        queries: &[rare(
            AGENT,
            "sum by (job_id) (rate(agentaflow_job_cpu_seconds_total{node=~\"$node\"}[$__rate_interval]))",
            "job {{job_id}}",
        )],
    },
    Panel {
        title: "Memory by job",
        about: "Memory used by each job.",
        unit: "bytes",
        view: View::Half,
        queries: &[rare(
            AGENT,
            "sum by (job_id) (agentaflow_job_memory_bytes{node=~\"$node\"})",
            "job {{job_id}}",
        )],
    },
    Panel {
        title: "Tasks",
        about: "Live tasks by node.",
        unit: "short",
        view: View::Half,
        queries: &[of(AGENT, "agentaflow_agent_tasks{node=~\"$node\"}", "{{node}}")],
    },
];

const LIFE: [Panel; 2] = [
    Panel {
        title: "Queue wait",
        about: "Time from the submission of a workload to its placement.",
        unit: "s",
        view: View::Half,
        queries: &[
            of(DECIDERS, quantile!("0.5", "agentaflow_queue_wait_seconds"), "median"),
            of(DECIDERS, quantile!("0.99", "agentaflow_queue_wait_seconds"), "99th percentile"),
        ],
    },
    Panel {
        title: "Ended jobs",
        about: "Ended jobs of a server by status.",
        unit: "ops",
        view: View::Half,
        queries: &[of(
            SERVER,
            "sum by (status) (rate(agentaflow_jobs_ended_total[$__rate_interval]))",
            "{{status}}",
        )],
    },
];
