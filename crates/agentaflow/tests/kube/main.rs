//! The program on a Kubernetes control plane and on a real node.

mod bursts;
mod command_line;
mod controllers;
#[path = "../commands/golden.rs"]
mod golden;
mod kinds_jobs;
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
mod kube_manifests;
mod kube_node_loss;
mod kube_outage;
mod kube_owners;
mod kube_permissions;
mod kube_policies;
mod kube_preemption;
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
#[path = "../../../../tests/promtool.rs"]
mod promtool;
#[allow(dead_code, reason = "a part of it is for other tests")]
#[path = "../../../console/tests/support/pty.rs"]
mod pty;
#[path = "../standalone/http.rs"]
mod rest;
mod service;
#[path = "../../../../tests/skip.rs"]
mod skip;
#[path = "../../../kube-scheduler/tests/support/mod.rs"]
mod support;
mod view;
mod workers;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_agentaflow");
