//! The part that decides, and its dependencies.

use super::{
    DECIDERS, Dashboard, MONITOR, Panel, SCHEDULER, SERVER, Section, View, leading, of, quantile,
    rare,
};

pub(super) const DASHBOARD: Dashboard = Dashboard {
    name: "scheduler",
    title: "AgentaFlow scheduler",
    about: "Decisions, latencies and errors of servers and schedulers.",
    has_nodes: false,
    sections: &[
        Section { title: "Decisions", panels: &DECISIONS },
        Section { title: "Latencies", panels: &LATENCIES },
        Section { title: "Errors", panels: &ERRORS },
    ],
};

const DECISIONS: [Panel; 4] = [
    Panel {
        title: "Decisions",
        about: "Decisions by outcome and reason.",
        unit: "ops",
        view: View::Half,
        queries: &[of(
            DECIDERS,
            "sum by (outcome, reason) (rate(agentaflow_decisions_total[$__rate_interval]))",
            "{{outcome}} {{reason}}",
        )],
    },
    Panel {
        title: "Bindings",
        about: "Bindings of pods to nodes, by result.",
        unit: "ops",
        view: View::Half,
        queries: &[of(
            SCHEDULER,
            "sum by (result) (rate(agentaflow_bindings_total[$__rate_interval]))",
            "{{result}}",
        )],
    },
    Panel {
        title: "Preemptions and evictions",
        about: "Preempted workloads by reason, and evictions by result.",
        unit: "ops",
        view: View::Half,
        queries: &[
            of(
                DECIDERS,
                "sum by (reason) (rate(agentaflow_preemptions_total[$__rate_interval]))",
                "preempted: {{reason}}",
            ),
            of(
                SCHEDULER,
                "sum by (result) (rate(agentaflow_evictions_total[$__rate_interval]))",
                "eviction: {{result}}",
            ),
        ],
    },
    Panel {
        title: "Leader",
        about: "1 for the part that decides.",
        unit: "short",
        view: View::Half,
        queries: &[of(DECIDERS, "agentaflow_leader", "{{instance}}")],
    },
];

const LATENCIES: [Panel; 8] = [
    Panel {
        title: "Scheduling passes",
        about: "Duration of one pass over all pending workloads.",
        unit: "s",
        view: View::Half,
        queries: &[
            of(DECIDERS, quantile!("0.5", "agentaflow_scheduling_duration"), "median"),
            of(
                DECIDERS,
                quantile!("0.99", "agentaflow_scheduling_duration_seconds"),
                "99th percentile",
            ),
        ],
    },
    Panel {
        title: "Passes",
        about: "Scheduling passes per second.",
        unit: "ops",
        view: View::Half,
        queries: &[of(
            DECIDERS,
            "sum(rate(agentaflow_scheduling_duration_seconds_count[$__rate_interval]))",
            "passes",
        )],
    },
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
        title: "Bindings",
        about: "Time from the placement of a pod to the response to its binding.",
        unit: "s",
        view: View::Half,
        queries: &[
            of(SCHEDULER, quantile!("0.5", "agentaflow_bind_duration_seconds"), "median"),
            of(SCHEDULER, quantile!("0.99", "agentaflow_bind_duration_seconds"), "99th percentile"),
        ],
    },
    Panel {
        title: "Error of ETAs",
        about: "Difference between the first ETA given and the placement.",
        unit: "s",
        view: View::Half,
        queries: &[of(
            DECIDERS,
            quantile!("0.9", "agentaflow_eta_error_seconds"),
            "90th percentile",
        )],
    },
    Panel {
        title: "API of the server",
        about: "99th percentile by route.",
        unit: "s",
        view: View::Half,
        queries: &[of(
            SERVER,
            quantile!("0.99", "agentaflow_http_request_duration_seconds", "le, route"),
            "{{route}}",
        )],
    },
    Panel {
        title: "Requests to the API server",
        about: "99th percentile of requests to the API server of the cluster, by method.",
        unit: "s",
        view: View::Half,
        queries: &[of(
            SCHEDULER,
            quantile!("0.99", "agentaflow_api_request_duration_seconds", "le, method"),
            "{{method}}",
        )],
    },
    Panel {
        title: "Store",
        about: "99th percentile of a transaction.",
        unit: "s",
        view: View::Half,
        queries: &[of(
            SERVER,
            quantile!("0.99", "agentaflow_store_commit_duration_seconds"),
            "99th percentile",
        )],
    },
];

const ERRORS: [Panel; 4] = [
    Panel {
        title: "API errors",
        about: "Failed requests to the API server of the cluster, by kind.",
        unit: "ops",
        view: View::Half,
        queries: &[of(
            SCHEDULER,
            "sum by (kind) (rate(agentaflow_api_errors_total[$__rate_interval]))",
            "{{kind}}",
        )],
    },
    Panel {
        title: "Failed operations",
        about: "Zero in normal operation.",
        unit: "ops",
        view: View::Half,
        queries: &[
            of(
                SERVER,
                "sum(rate(agentaflow_store_commit_failures_total[$__rate_interval]))",
                "failed transactions",
            ),
            of(
                SCHEDULER,
                "sum(rate(agentaflow_events_dropped_total[$__rate_interval]))",
                "events dropped",
            ),
            of(
                SCHEDULER,
                "sum(rate(agentaflow_engine_rejections_total[$__rate_interval]))",
                "events rejected by the engine",
            ),
            of(
                MONITOR,
                "sum(rate(agentaflow_monitor_failed_samples_total[$__rate_interval]))",
                "failed GPU samples",
            ),
            of(
                MONITOR,
                "sum(rate(agentaflow_monitor_failed_writes_total[$__rate_interval]))",
                "failed writes of monitors",
            ),
        ],
    },
    Panel {
        title: "Other schedulers",
        about: "GPU pods of other schedulers.",
        unit: "short",
        view: View::Half,
        queries: &[of(SCHEDULER, leading!("agentaflow_foreign_gpu_pods" by "state"), "{{state}}")],
    },
    Panel {
        title: "Kubelets",
        about: "Pods of this scheduler that kubelets rejected.",
        unit: "short",
        view: View::Half,
        queries: &[rare(
            SCHEDULER,
            "sum(increase(agentaflow_kubelet_rejections_total[$__rate_interval]))",
            "rejected",
        )],
    },
];
