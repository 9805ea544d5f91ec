//! Panels of the Grafana dashboards. The tests include this module too and evaluate every expression.

mod cluster;
mod cost;
mod node;
mod scheduler;
mod workload;

/// Totals of the part that decides: a standby replica has no series about the cluster.
macro_rules! leading {
    ($metric:literal) => {
        concat!("max(", $metric, " and on (instance) (agentaflow_leader == 1))")
    };
    ($metric:literal by $labels:literal) => {
        concat!("max by (", $labels, ") (", $metric, " and on (instance) (agentaflow_leader == 1))")
    };
}

/// Quantile of a histogram, with the labels of the result.
macro_rules! quantile {
    ($quantile:literal, $metric:literal) => {
        quantile!($quantile, $metric, "le")
    };
    ($quantile:literal, $metric:literal, $labels:literal) => {
        concat!(
            "histogram_quantile(",
            $quantile,
            ", sum by (",
            $labels,
            ") (rate(",
            $metric,
            "_bucket[$__rate_interval])))"
        )
    };
}

use {leading, quantile};

/// Programs that export the metrics of an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Server,
    Scheduler,
    Agent,
    Monitor,
}

impl Source {
    /// The programs, for readers of a panel.
    pub(crate) fn programs(self) -> &'static str {
        match self {
            Self::Server => "servers",
            Self::Scheduler => "schedulers",
            Self::Agent => "agents",
            Self::Monitor => "monitors",
        }
    }
}

const SERVER: &[Source] = &[Source::Server];
const SCHEDULER: &[Source] = &[Source::Scheduler];
const AGENT: &[Source] = &[Source::Agent];
const MONITOR: &[Source] = &[Source::Monitor];
/// Exporters of totals of the cluster.
const DECIDERS: &[Source] = &[Source::Server, Source::Scheduler];
/// Exporters of series of single GPUs.
const NODES: &[Source] = &[Source::Agent, Source::Monitor];

pub(crate) struct Query {
    pub(crate) expression: &'static str,
    pub(crate) legend: &'static str,
    /// With only one of them the expression has samples.
    pub(crate) sources: &'static [Source],
    /// A healthy cluster has no sample.
    pub(crate) may_be_empty: bool,
}

/// A query that always has samples.
const fn of(sources: &'static [Source], expression: &'static str, legend: &'static str) -> Query {
    Query { expression, legend, sources, may_be_empty: false }
}

/// A query without samples while nothing happens, or on GPUs that do not report the value.
const fn rare(sources: &'static [Source], expression: &'static str, legend: &'static str) -> Query {
    Query { expression, legend, sources, may_be_empty: true }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum View {
    /// One number.
    Stat,
    /// Curves over a third or a half of the width.
    Third,
    Half,
}

pub(crate) struct Panel {
    pub(crate) title: &'static str,
    pub(crate) about: &'static str,
    /// Unit of Grafana.
    pub(crate) unit: &'static str,
    pub(crate) view: View,
    pub(crate) queries: &'static [Query],
}

pub(crate) struct Section {
    pub(crate) title: &'static str,
    pub(crate) panels: &'static [Panel],
}

pub(crate) struct Dashboard {
    /// Name of the file.
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) about: &'static str,
    /// The reader selects nodes.
    pub(crate) has_nodes: bool,
    pub(crate) sections: &'static [Section],
}

#[cfg(test)]
impl Dashboard {
    pub(crate) fn queries(&self) -> impl Iterator<Item = &Query> {
        let panels = self.sections.iter().flat_map(|section| section.panels);
        panels.flat_map(|panel| panel.queries)
    }
}

pub(crate) const DASHBOARDS: [&Dashboard; 5] = [
    &cluster::DASHBOARD,
    &node::DASHBOARD,
    &workload::DASHBOARD,
    &cost::DASHBOARD,
    &scheduler::DASHBOARD,
];
