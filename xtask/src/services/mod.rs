//! Services for tests: PostgreSQL, a Docker engine, a Kubernetes control plane and a Kubernetes node, each with a temporary
//! folder. `cargo xtask test` starts the services that skipped tests need; `cargo xtask services` starts all of them.

mod daemon;
mod docker;
mod kinds;
mod kubernetes;
mod node;
mod postgres;

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::output::out;
use crate::{CommandError, no_arguments};
use daemon::Daemon;

pub(crate) const HELP: &str = "\
Start PostgreSQL, a Docker engine and Kubernetes for tests until Ctrl-C.

Usage: cargo xtask services

Prints the variables that name the services. Paste them into a second terminal and run
  cargo test --workspace -- --ignored postgres_ docker_ userns_ kube_ kubelet_ kinds_
or one of these tests by name. A service whose variable is already set is not started.
Docker and the Kubernetes node need root; Kubernetes needs Go.";

#[derive(Debug)]
pub(crate) struct ServiceKind {
    name: &'static str,
    /// Prefix of the names of its tests or of their modules.
    pub(crate) prefix: &'static str,
    /// Environment variable with its address.
    variable: &'static str,
    /// Gets the services started before.
    start: fn(&[Service]) -> Result<RunningService>,
}

const KINDS: [ServiceKind; 6] = [
    ServiceKind {
        name: "PostgreSQL",
        prefix: "postgres_",
        variable: "AGENTAFLOW_TEST_POSTGRES",
        start: |_| postgres::start(),
    },
    ServiceKind {
        name: "Docker engine",
        prefix: "docker_",
        variable: "AGENTAFLOW_TEST_DOCKER",
        start: |_| docker::start(),
    },
    ServiceKind {
        name: "Docker engine with user-namespace remapping",
        prefix: "userns_",
        variable: "AGENTAFLOW_TEST_USERNS",
        start: |_| docker::start_remapped(),
    },
    ServiceKind {
        name: "Kubernetes control plane",
        prefix: "kube_",
        variable: "AGENTAFLOW_TEST_KUBE",
        start: |_| kubernetes::start(),
    },
    ServiceKind {
        name: "Kubernetes node",
        prefix: "kubelet_",
        variable: "AGENTAFLOW_TEST_KUBELET",
        start: node::start,
    },
    ServiceKind {
        name: "definition of the KEDA and Karpenter kinds",
        prefix: "kinds_",
        variable: "AGENTAFLOW_TEST_KINDS",
        start: kinds::start,
    },
];

/// A running service, stopped on drop.
pub(crate) struct RunningService {
    /// Value of the variable of its kind.
    address: String,
    more_variables: Vec<(&'static str, String)>,
    /// `None` if xtask did not start the service.
    daemon: Option<Daemon>,
}

/// A service, or the error of its start.
pub(crate) struct Service {
    pub(crate) kind: &'static ServiceKind,
    running: Result<RunningService>,
}

impl Service {
    pub(crate) fn is_running(&self) -> bool {
        self.running.is_ok()
    }

    /// Variables for its tests; empty unless the service runs.
    pub(crate) fn variables(&self) -> Vec<(&'static str, &str)> {
        let Ok(running) = &self.running else { return Vec::new() };
        let more = running.more_variables.iter().map(|(name, value)| (*name, value.as_str()));
        std::iter::once((self.kind.variable, running.address.as_str())).chain(more).collect()
    }

    #[cfg(test)]
    pub(crate) fn failed(prefix: &str, reason: &'static str) -> Self {
        let kind = KINDS.iter().find(|kind| kind.prefix == prefix).expect("a known prefix");
        Self { kind, running: Err(anyhow::anyhow!(reason)) }
    }

    /// Start error for the user.
    pub(crate) fn problem(&self) -> Option<String> {
        let error = self.running.as_ref().err()?;
        Some(format!("no {}: {error:#}", self.kind.name))
    }
}

/// Kinds of service that at least one of these tests needs.
pub(crate) fn needed_by(tests: &[&str]) -> Vec<&'static ServiceKind> {
    let is_needed = |kind: &&ServiceKind| tests.iter().any(|test| needs(test, kind));
    KINDS.iter().filter(is_needed).collect()
}

/// True if the name of the test, or of a module around it, has the prefix of this kind of service.
pub(crate) fn needs(test: &str, kind: &ServiceKind) -> bool {
    test.split([' ', ':']).any(|part| part.starts_with(kind.prefix))
}

/// Starts services, except the ones that a variable already names.
pub(crate) fn start(kinds: impl IntoIterator<Item = &'static ServiceKind>) -> Vec<Service> {
    let mut services = Vec::new();
    for kind in kinds {
        let running = match variable(kind.variable) {
            Some(address) => Ok(RunningService::external(address)),
            None => (kind.start)(&services),
        };
        services.push(Service { kind, running });
    }
    services
}

impl RunningService {
    /// A service that xtask did not start and does not stop.
    fn external(address: String) -> Self {
        Self { address, more_variables: Vec::new(), daemon: None }
    }
}

fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// `cargo xtask services`.
pub(crate) fn run(rest: &[String]) -> Result<ExitCode, CommandError> {
    no_arguments("services", rest)?;
    let services = start(&KINDS);
    for problem in services.iter().filter_map(Service::problem) {
        eprintln!("warning: {problem}");
    }
    let mut any = false;
    for (name, value) in services.iter().flat_map(Service::variables) {
        out!("export {name}={value}");
        any = true;
    }
    if !any {
        return Ok(ExitCode::FAILURE);
    }
    out!("# Ctrl-C stops them.");
    // The end of this process ends the services: see `daemon.rs`.
    loop {
        thread::sleep(Duration::from_hours(1));
    }
}

/// New folder of one service, removed when the service stops.
fn folder(name: &str) -> Result<PathBuf> {
    let base = env::temp_dir();
    let folder = base.join(format!("agentaflow-{name}-{}", std::process::id()));
    std::fs::create_dir(&folder)
        .with_context(|| format!("cannot create the folder `{}`", folder.display()))?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prefix_of_a_test_or_its_module_selects_the_service() {
        let prefixes = |tests: &[&str]| -> Vec<&str> {
            needed_by(tests).iter().map(|kind| kind.prefix).collect()
        };
        assert_eq!(prefixes(&["store (src/lib.rs) tests::postgres_keeps_jobs"]), ["postgres_"]);
        assert_eq!(prefixes(&["store (src/lib.rs) postgres_store::keeps_jobs"]), ["postgres_"]);
        assert_eq!(prefixes(&["docker (tests/docker.rs) docker_runs", "a_docker_x"]), ["docker_"]);
        assert_eq!(prefixes(&["kube (tests/scheduler.rs) kube_binding::binds"]), ["kube_"]);
        assert_eq!(prefixes(&["kube (tests/kube.rs) kubelet_node::runs"]), ["kubelet_"]);
        assert!(prefixes(&["docker (tests/docker.rs) it_runs_in_docker_"]).is_empty());
    }

    #[test]
    fn a_node_needs_a_control_plane_started_by_xtask() {
        let without = node::start(&[Service::failed("kube_", "no Go")]).err().unwrap();
        assert!(without.to_string().contains("no control plane is running"), "{without}");
        let kind = KINDS.iter().find(|kind| kind.prefix == "kube_").unwrap();
        let running = Ok(RunningService::external("/nowhere/at/all/config".to_owned()));
        let external = node::start(&[Service { kind, running }]).err().unwrap();
        assert!(external.to_string().contains("external control plane"), "{external}");
    }

    #[test]
    fn a_failed_service_has_a_problem_and_no_variables() {
        let service = Service::failed("docker_", "not root");
        assert!(service.variables().is_empty());
        assert_eq!(service.problem().unwrap(), "no Docker engine: not root");
    }
}
