//! Totals of the cluster.

use super::{
    AGENT, DECIDERS, Dashboard, MONITOR, NODES, Panel, SCHEDULER, SERVER, Section, View, leading,
    of, rare,
};

pub(super) const DASHBOARD: Dashboard = Dashboard {
    name: "cluster",
    title: "AgentaFlow cluster",
    about: "GPUs, workloads and queues of the cluster.",
    has_nodes: false,
    sections: &[
        Section { title: "Now", panels: &NOW },
        Section { title: "GPUs and workloads", panels: &OVER_TIME },
        Section { title: "Health", panels: &HEALTH },
    ],
};

const NOW: [Panel; 6] = [
    Panel {
        title: "GPUs",
        about: "GPUs managed.",
        unit: "short",
        view: View::Stat,
        queries: &[of(DECIDERS, leading!("agentaflow_gpu_total"), "")],
    },
    Panel {
        title: "Available",
        about: "GPUs available for new workloads.",
        unit: "short",
        view: View::Stat,
        queries: &[of(DECIDERS, leading!("agentaflow_gpu_available"), "")],
    },
    Panel {
        title: "Utilization",
        about: "Mean utilization of all GPUs.",
        unit: "percent",
        view: View::Stat,
        queries: &[of(DECIDERS, leading!("agentaflow_gpu_utilization"), "")],
    },
    Panel {
        title: "Pending",
        about: "Pending workloads.",
        unit: "short",
        view: View::Stat,
        queries: &[of(DECIDERS, leading!("agentaflow_workloads_pending"), "")],
    },
    Panel {
        title: "Running",
        about: "Workloads of which every task runs.",
        unit: "short",
        view: View::Stat,
        queries: &[of(DECIDERS, leading!("agentaflow_workloads_running"), "")],
    },
    Panel {
        title: "Nodes",
        about: "Nodes managed.",
        unit: "short",
        view: View::Stat,
        queries: &[of(
            DECIDERS,
            "sum(agentaflow_nodes and on (instance) (agentaflow_leader == 1))",
            "",
        )],
    },
];

const OVER_TIME: [Panel; 8] = [
    Panel {
        title: "GPUs",
        about: "GPUs managed, available and reserved.",
        unit: "short",
        view: View::Half,
        queries: &[
            of(DECIDERS, leading!("agentaflow_gpu_total"), "total"),
            of(DECIDERS, leading!("agentaflow_gpu_available"), "available"),
            of(SCHEDULER, leading!("agentaflow_gpu_reserved"), "reserved"),
        ],
    },
    Panel {
        title: "Workloads",
        about: "Workloads by state.",
        unit: "short",
        view: View::Half,
        queries: &[
            of(DECIDERS, leading!("agentaflow_workloads_pending"), "pending"),
            of(DECIDERS, leading!("agentaflow_workloads_scheduled"), "scheduled"),
            of(DECIDERS, leading!("agentaflow_workloads_running"), "running"),
        ],
    },
    Panel {
        title: "Pending reasons",
        about: "Pending workloads by reason. More nodes help only with NoRoom.",
        unit: "short",
        view: View::Half,
        queries: &[of(
            DECIDERS,
            leading!("agentaflow_workloads_pending_by_reason" by "reason"),
            "{{reason}}",
        )],
    },
    Panel {
        title: "Pending by queue",
        about: "Pending workloads by queue; a scheduler also names the reason.",
        unit: "short",
        view: View::Half,
        queries: &[of(
            DECIDERS,
            leading!("agentaflow_queue_workloads_pending" by "queue, reason"),
            "{{queue}} {{reason}}",
        )],
    },
    Panel {
        title: "GPUs in use by queue",
        about: "GPUs allocated to each queue, children included.",
        unit: "short",
        view: View::Half,
        queries: &[of(DECIDERS, leading!("agentaflow_queue_gpus_used" by "queue"), "{{queue}}")],
    },
    Panel {
        title: "Fragmentation",
        about: "Allocated GPUs, free shares of partly allocated ones, and the most free GPUs on one node.",
        unit: "short",
        view: View::Half,
        queries: &[
            of(DECIDERS, leading!("agentaflow_gpus_allocated"), "allocated"),
            of(DECIDERS, leading!("agentaflow_gpus_fragmented"), "fragmented"),
            of(DECIDERS, leading!("agentaflow_gpus_largest_block"), "largest block"),
        ],
    },
    Panel {
        title: "Utilization",
        about: "Mean utilization of all GPUs, and the goal.",
        unit: "percent",
        view: View::Half,
        queries: &[
            of(DECIDERS, leading!("agentaflow_gpu_utilization"), "utilization"),
            of(MONITOR, "max(agentaflow_gpu_utilization_goal)", "goal"),
        ],
    },
    Panel {
        title: "Power",
        about: "Power draw of all GPUs.",
        unit: "watt",
        view: View::Half,
        queries: &[of(NODES, "sum(agentaflow_gpu_power_watts)", "power")],
    },
];

const HEALTH: [Panel; 4] = [
    Panel {
        title: "Unusable GPUs",
        about: "GPUs that are lost, failed or closed, by node.",
        unit: "short",
        view: View::Half,
        queries: &[rare(NODES, "count by (node) (agentaflow_gpu_healthy == 0)", "{{node}}")],
    },
    Panel {
        title: "Nodes",
        about: "Nodes of a server by status, and nodes whose monitor does not report.",
        unit: "short",
        view: View::Half,
        queries: &[
            of(SERVER, "max by (status) (agentaflow_nodes{status!=\"\"})", "{{status}}"),
            of(SCHEDULER, leading!("agentaflow_monitors_lost"), "monitors lost"),
        ],
    },
    Panel {
        title: "Agents",
        about: "Connected agents.",
        unit: "short",
        view: View::Half,
        queries: &[of(AGENT, "sum(agentaflow_agent_connected)", "connected")],
    },
    Panel {
        title: "Versions",
        about: "Running programs by version.",
        unit: "short",
        view: View::Half,
        queries: &[of(
            &[super::Source::Server, super::Source::Scheduler, super::Source::Monitor],
            "count by (version) (agentaflow_build_info)",
            "{{version}}",
        )],
    },
];
