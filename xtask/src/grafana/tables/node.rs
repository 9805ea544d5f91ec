//! GPUs of the selected nodes.

use super::{Dashboard, MONITOR, NODES, Panel, Section, View, of, rare};

pub(super) const DASHBOARD: Dashboard = Dashboard {
    name: "node",
    title: "AgentaFlow nodes",
    about: "Every GPU of the selected nodes.",
    has_nodes: true,
    sections: &[
        Section { title: "Use", panels: &USE },
        Section { title: "Heat and power", panels: &POWER },
        Section { title: "Health", panels: &HEALTH },
    ],
};

const USE: [Panel; 6] = [
    Panel {
        title: "Utilization",
        about: "Percent of time with a running kernel.",
        unit: "percent",
        view: View::Half,
        queries: &[
            of(NODES, "agentaflow_device_utilization{node=~\"$node\"}", "{{node}} {{gpu}}"),
            of(MONITOR, "avg(agentaflow_gpu_utilization_goal{node=~\"$node\"})", "goal"),
        ],
    },
    Panel {
        title: "Memory",
        about: "GPU memory in use by all processes, as a fraction of the total.",
        unit: "percentunit",
        view: View::Half,
        queries: &[of(
            NODES,
            "agentaflow_gpu_memory_used_bytes{node=~\"$node\"} / agentaflow_gpu_memory_total_bytes{node=~\"$node\"}",
            "{{node}} {{gpu}}",
        )],
    },
    Panel {
        title: "Engines, tensor cores and memory access",
        about: "Percent of time with an active engine, with active tensor cores, and with memory access.",
        unit: "percent",
        view: View::Half,
        queries: &[
            of(
                NODES,
                "agentaflow_device_engine_activity{node=~\"$node\"}",
                "{{node}} {{gpu}} engine",
            ),
            of(
                NODES,
                "agentaflow_device_tensor_activity{node=~\"$node\"}",
                "{{node}} {{gpu}} tensor",
            ),
            of(
                NODES,
                "agentaflow_device_memory_utilization{node=~\"$node\"}",
                "{{node}} {{gpu}} memory",
            ),
        ],
    },
    Panel {
        title: "GPUs by node",
        about: "Devices, allocatable units, healthy devices, and allocated GPUs.",
        unit: "short",
        view: View::Half,
        queries: &[
            of(
                MONITOR,
                "sum by (node) (agentaflow_node_gpus{node=~\"$node\"})",
                "{{node}} devices",
            ),
            of(MONITOR, "sum by (node) (agentaflow_gpu_units{node=~\"$node\"})", "{{node}} units"),
            of(
                MONITOR,
                "sum by (node) (agentaflow_node_gpus_healthy{node=~\"$node\"})",
                "{{node}} available",
            ),
            of(
                NODES,
                "sum by (node) (agentaflow_gpu_healthy{node=~\"$node\"})",
                "{{node}} healthy",
            ),
            of(
                NODES,
                "sum by (node) (agentaflow_gpu_allocated{node=~\"$node\"})",
                "{{node}} allocated",
            ),
        ],
    },
    Panel {
        title: "Processes",
        about: "Processes on each GPU.",
        unit: "short",
        view: View::Half,
        // Simulated GPUs of an agent have no processes.
        queries: &[rare(NODES, "agentaflow_gpu_processes{node=~\"$node\"}", "{{node}} {{gpu}}")],
    },
    Panel {
        title: "Nodes above the utilization goal",
        about: "1 while the mean utilization of a node is above GPU_UTILIZATION_GOAL.",
        unit: "short",
        view: View::Half,
        queries: &[of(
            MONITOR,
            "agentaflow_gpu_above_utilization_goal{node=~\"$node\"}",
            "{{node}}",
        )],
    },
];

const POWER: [Panel; 6] = [
    Panel {
        title: "Temperature",
        about: "No new work starts on a GPU from 95 °C on.",
        unit: "celsius",
        view: View::Half,
        queries: &[of(
            NODES,
            "agentaflow_gpu_temperature_celsius{node=~\"$node\"}",
            "{{node}} {{gpu}}",
        )],
    },
    Panel {
        title: "Power",
        about: "Power draw of each GPU.",
        unit: "watt",
        view: View::Half,
        queries: &[of(NODES, "agentaflow_gpu_power_watts{node=~\"$node\"}", "{{node}} {{gpu}}")],
    },
    Panel {
        title: "Power against the limit",
        about: "Power draw divided by the power limit.",
        unit: "percentunit",
        view: View::Half,
        queries: &[of(
            NODES,
            "agentaflow_gpu_power_watts{node=~\"$node\"} / agentaflow_gpu_power_limit_watts{node=~\"$node\"}",
            "{{node}} {{gpu}}",
        )],
    },
    Panel {
        title: "Energy",
        about: "Mean power by the energy counter of the driver.",
        unit: "watt",
        view: View::Half,
        // Simulated GPUs have no such counter.
        queries: &[rare(
            NODES,
            "rate(agentaflow_gpu_energy_joules_total{node=~\"$node\"}[$__rate_interval])",
            "{{node}} {{gpu}}",
        )],
    },
    Panel {
        title: "Clocks",
        about: "Clocks of the multiprocessors and of the memory.",
        unit: "hertz",
        view: View::Half,
        queries: &[
            of(NODES, "agentaflow_gpu_sm_clock_hertz{node=~\"$node\"}", "{{node}} {{gpu}} SM"),
            of(
                NODES,
                "agentaflow_gpu_memory_clock_hertz{node=~\"$node\"}",
                "{{node}} {{gpu}} memory",
            ),
        ],
    },
    Panel {
        title: "Throttling",
        about: "Limits that slow a GPU down.",
        unit: "short",
        view: View::Half,
        queries: &[
            of(NODES, "sum by (node) (agentaflow_gpu_throttled{node=~\"$node\"})", "{{node}} GPUs"),
            rare(
                NODES,
                "agentaflow_gpu_throttle_reason{node=~\"$node\"}",
                "{{node}} {{gpu}} {{reason}}",
            ),
        ],
    },
];

const HEALTH: [Panel; 3] = [
    Panel {
        title: "Memory errors",
        about: "Memory errors in the last hour.",
        unit: "short",
        view: View::Third,
        queries: &[
            of(
                NODES,
                "increase(agentaflow_gpu_ecc_uncorrected_errors_total{node=~\"$node\"}[1h])",
                "{{node}} {{gpu}} uncorrected",
            ),
            of(
                NODES,
                "increase(agentaflow_gpu_ecc_corrected_errors_total{node=~\"$node\"}[1h])",
                "{{node}} {{gpu}} corrected",
            ),
        ],
    },
    Panel {
        title: "Remapped rows",
        about: "Rows of memory that were remapped after errors.",
        unit: "short",
        view: View::Third,
        queries: &[of(
            NODES,
            "agentaflow_gpu_remapped_rows{node=~\"$node\"}",
            "{{node}} {{gpu}} {{errors}}",
        )],
    },
    Panel {
        title: "Driver errors",
        about: "Driver errors (XID) that keep a GPU out of use, and all of the last hour.",
        unit: "short",
        view: View::Third,
        queries: &[
            rare(NODES, "agentaflow_gpu_xid{node=~\"$node\"} > 0", "{{node}} {{gpu}} out of use"),
            rare(
                NODES,
                "increase(agentaflow_gpu_xid_errors_total{node=~\"$node\"}[1h]) > 0",
                "{{node}} {{gpu}} XID {{xid}}",
            ),
        ],
    },
];
