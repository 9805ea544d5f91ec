//! Money, GPU time and energy.

use super::{DECIDERS, Dashboard, NODES, Panel, SERVER, Section, View, leading, of, rare};

pub(super) const DASHBOARD: Dashboard = Dashboard {
    name: "cost",
    title: "AgentaFlow cost",
    about: "Costs, budgets, and GPU time that was allocated and used.",
    has_nodes: false,
    sections: &[
        Section { title: "Now", panels: &NOW },
        Section { title: "Cost", panels: &COST },
        Section { title: "GPU time and energy", panels: &TIME },
    ],
};

const NOW: [Panel; 3] = [
    Panel {
        title: "Running, per hour",
        about: "Cost of the running workloads.",
        unit: "currencyUSD",
        view: View::Stat,
        queries: &[of(DECIDERS, leading!("agentaflow_running_cost_dollars_per_hour"), "")],
    },
    Panel {
        title: "Booked today",
        about: "Costs that a server booked in the last 24 hours.",
        unit: "currencyUSD",
        view: View::Stat,
        queries: &[of(SERVER, "sum(increase(agentaflow_billed_dollars_total[1d]))", "")],
    },
    Panel {
        title: "Used share",
        about: "Part of the allocated GPU time of the last hour in which a kernel ran.",
        unit: "percentunit",
        view: View::Stat,
        queries: &[of(
            DECIDERS,
            "sum(rate(agentaflow_gpu_used_seconds_total[1h])) / (sum(rate(agentaflow_gpu_allocated_seconds_total[1h])) > 0)",
            "",
        )],
    },
];

const COST: [Panel; 4] = [
    Panel {
        title: "Cost per hour",
        about: "Cost of the running workloads, and booked costs.",
        unit: "currencyUSD",
        view: View::Half,
        queries: &[
            of(DECIDERS, leading!("agentaflow_running_cost_dollars_per_hour"), "running"),
            of(
                SERVER,
                "sum(increase(agentaflow_billed_dollars_total[1h]))",
                "booked in the last hour",
            ),
        ],
    },
    Panel {
        title: "Cost of idle GPUs",
        about: "Cost of the running workloads times the share of GPU time without a kernel.",
        unit: "currencyUSD",
        view: View::Half,
        queries: &[of(
            DECIDERS,
            concat!(
                leading!("agentaflow_running_cost_dollars_per_hour"),
                " * (1 - sum(rate(agentaflow_gpu_used_seconds_total[1h])) / ",
                "(sum(rate(agentaflow_gpu_allocated_seconds_total[1h])) > 0))"
            ),
            "per hour",
        )],
    },
    Panel {
        title: "Budgets",
        about: "Spending of the month divided by the limit.",
        unit: "percentunit",
        view: View::Half,
        // Users without a limit have no series.
        queries: &[rare(
            SERVER,
            "agentaflow_account_spent_dollars / (agentaflow_account_limit_dollars > 0)",
            "{{user}}",
        )],
    },
    Panel {
        title: "Spending",
        about: "Spending of the month by users with a limit.",
        unit: "currencyUSD",
        view: View::Half,
        queries: &[rare(SERVER, "agentaflow_account_spent_dollars", "{{user}}")],
    },
];

const TIME: [Panel; 2] = [
    Panel {
        title: "GPU time",
        about: "Allocated GPUs, and the part in which a kernel ran.",
        unit: "short",
        view: View::Half,
        queries: &[
            of(
                DECIDERS,
                "sum(rate(agentaflow_gpu_allocated_seconds_total[$__rate_interval]))",
                "allocated",
            ),
            of(DECIDERS, "sum(rate(agentaflow_gpu_used_seconds_total[$__rate_interval]))", "used"),
        ],
    },
    Panel {
        title: "Energy per day",
        about: "Energy of all GPUs in a day at the present power draw.",
        unit: "kwatth",
        view: View::Half,
        queries: &[of(NODES, "sum(agentaflow_gpu_power_watts) * 24 / 1000", "energy")],
    },
];
