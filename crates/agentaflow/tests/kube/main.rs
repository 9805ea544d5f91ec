//! The program on a Kubernetes control plane and on a real node.

mod bursts;
mod command_line;
mod controllers;
#[path = "../commands/golden.rs"]
mod golden;
#[allow(dead_code, reason = "the generator uses the rest")]
#[path = "../../../../xtask/src/grafana/tables/mod.rs"]
mod grafana;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../standalone/harness.rs"]
mod harness;
#[path = "../standalone/http.rs"]
mod http;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../../../../tests/job_folder.rs"]
mod job_folder;
mod kube_alerts;
mod kube_chaos;
mod kube_coexistence;
mod kube_commands;
mod kube_conditions;
mod kube_crash;
mod kube_dashboard;
mod kube_endpoints;
mod kube_faults;
mod kube_gangs;
mod kube_guide;
mod kube_hpa;
mod kube_jobs;
mod kube_leader;
mod kube_load;
mod kube_manifests;
mod kube_node_loss;
mod kube_operators;
mod kube_outage;
mod kube_owners;
mod kube_permissions;
mod kube_policies;
mod kube_preemption;
mod kube_prometheus;
mod kube_quotas;
mod kube_settings;
mod kube_top;
mod kube_units;
mod kube_volumes;
mod kube_workloads;
mod kube_writes;
mod kubelet_node;
mod lab;
mod ledger;
mod network_policy;
#[path = "../commands/normal.rs"]
mod normal;
mod plans;
/// One counter of ports for the whole process.
mod ports {
    pub(crate) use crate::support::free_port;
}
#[path = "../standalone/procs.rs"]
mod procs;
#[path = "../../../../tests/prometheus.rs"]
mod prometheus;
#[path = "../../../../tests/promtool.rs"]
mod promtool;
#[allow(dead_code, reason = "a part of it is for other tests")]
#[path = "../../../console/tests/support/pty.rs"]
mod pty;
#[allow(dead_code, reason = "a part of it is for other tests")]
#[path = "../../../../tests/receiver.rs"]
mod receiver;
mod service;
#[path = "../../../../tests/skip.rs"]
mod skip;
#[path = "../../../kube-scheduler/tests/support/mod.rs"]
mod support;
mod view;
mod workers;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_agentaflow");
