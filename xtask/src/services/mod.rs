//! The real services that tests need: a PostgreSQL, a Docker engine, a Kubernetes control plane and a node of it, each
//! in a folder of its own that is gone afterwards. `cargo xtask test` starts them by itself, `cargo xtask services` for work by hand.

mod daemon;
mod docker;
mod kubernetes;
mod node;
mod postgres;

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::Failure;
use daemon::Daemon;

pub(crate) const HELP: &str = "\
Start the services that some tests need, and hold them until Ctrl-C.

Usage: cargo xtask services

Prints the variables that name them. Paste these into another terminal, and there run
  cargo test --workspace -- --ignored postgres_ docker_ kube_ kubelet_
or one of these tests by its name. A variable that is set already is taken as it is,
and that service is not started. Docker and the Kubernetes node need root, Kubernetes
needs Go.";

/// A kind of service: how its tests are told from others, and how it is started.
#[derive(Debug)]
pub(crate) struct Kind {
    name: &'static str,
    /// The names of its tests, or of their modules, begin like this.
    pub(crate) prefix: &'static str,
    /// Tells its tests where it is.
    variable: &'static str,
    /// Is told of those that were started before.
    start: fn(&[Service]) -> Result<Started>,
}

const KINDS: [Kind; 4] = [
    Kind {
        name: "PostgreSQL",
        prefix: "postgres_",
        variable: "AGENTAFLOW_TEST_POSTGRES",
        start: |_| postgres::start(),
    },
    Kind {
        name: "Docker engine",
        prefix: "docker_",
        variable: "AGENTAFLOW_TEST_DOCKER",
        start: |_| docker::start(),
    },
    Kind {
        name: "Kubernetes control plane",
        prefix: "kube_",
        variable: "AGENTAFLOW_TEST_KUBE",
        start: |_| kubernetes::start(),
    },
    Kind {
        name: "Kubernetes node",
        prefix: "kubelet_",
        variable: "AGENTAFLOW_TEST_KUBELET",
        start: node::start,
    },
];

/// A running service and what its variable says. It is stopped when this is dropped.
pub(crate) struct Started {
    place: String,
    /// More variables for its tests.
    others: Vec<(&'static str, String)>,
    /// None: somebody else's.
    daemon: Option<Daemon>,
}

/// A service, or why there is none.
pub(crate) struct Service {
    pub(crate) kind: &'static Kind,
    started: Result<Started>,
}

impl Service {
    pub(crate) fn runs(&self) -> bool {
        self.started.is_ok()
    }

    /// The variables for its tests; none when it does not run.
    pub(crate) fn variables(&self) -> Vec<(&'static str, &str)> {
        let Ok(started) = &self.started else { return Vec::new() };
        let others = started.others.iter().map(|(name, value)| (*name, value.as_str()));
        std::iter::once((self.kind.variable, started.place.as_str())).chain(others).collect()
    }

    /// One that could not be started.
    #[cfg(test)]
    pub(crate) fn broken(prefix: &str, reason: &'static str) -> Self {
        let kind = KINDS.iter().find(|kind| kind.prefix == prefix).expect("a known prefix");
        Self { kind, started: Err(anyhow::anyhow!(reason)) }
    }

    /// Why it does not run.
    pub(crate) fn problem(&self) -> Option<String> {
        let error = self.started.as_ref().err()?;
        Some(format!("no {} could be started: {error:#}", self.kind.name))
    }
}

/// The kinds of service that one of these tests needs. A test may carry the path of its module in front.
pub(crate) fn needed_by(tests: &[&str]) -> Vec<&'static Kind> {
    let is_needed = |kind: &&Kind| tests.iter().any(|test| belongs(test, kind));
    KINDS.iter().filter(is_needed).collect()
}

/// True when the test needs this kind of service: its name, or that of a module around it, says so.
pub(crate) fn belongs(test: &str, kind: &Kind) -> bool {
    test.split([' ', ':']).any(|part| part.starts_with(kind.prefix))
}

/// Starts services, but for those that a variable names already.
pub(crate) fn start(kinds: impl IntoIterator<Item = &'static Kind>) -> Vec<Service> {
    let mut services = Vec::new();
    for kind in kinds {
        let started = match given(kind.variable) {
            Some(place) => Ok(Started::elsewhere(place)),
            None => (kind.start)(&services),
        };
        services.push(Service { kind, started });
    }
    services
}

impl Started {
    /// Somebody else's.
    fn elsewhere(place: String) -> Self {
        Self { place, others: Vec::new(), daemon: None }
    }
}

fn given(variable: &str) -> Option<String> {
    env::var(variable).ok().filter(|place| !place.is_empty())
}

/// `cargo xtask services`.
pub(crate) fn run() -> Result<ExitCode, Failure> {
    let services = start(&KINDS);
    for problem in services.iter().filter_map(Service::problem) {
        eprintln!("warning: {problem}");
    }
    let mut any = false;
    for (name, place) in services.iter().flat_map(Service::variables) {
        println!("export {name}={place}");
        any = true;
    }
    if !any {
        return Ok(ExitCode::FAILURE);
    }
    println!("# Ctrl-C stops them.");
    // Ctrl-C ends us, and that ends them: see `daemon.rs`.
    loop {
        thread::sleep(Duration::from_hours(1));
    }
}

/// A fresh folder for one service; removed when the service is stopped.
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
    fn a_test_is_told_by_the_beginning_of_its_name() {
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
    fn a_node_needs_a_control_plane_that_may_be_added_to() {
        let without = node::start(&[Service::broken("kube_", "no Go")]).err().unwrap();
        assert!(without.to_string().contains("no control plane"), "{without}");
        let kind = KINDS.iter().find(|kind| kind.prefix == "kube_").unwrap();
        let started = Ok(Started::elsewhere("/nowhere/at/all/config".to_owned()));
        let of_others = node::start(&[Service { kind, started }]).err().unwrap();
        assert!(of_others.to_string().contains("somebody else's"), "{of_others}");
    }

    #[test]
    fn a_service_that_does_not_run_has_a_reason_instead_of_a_place() {
        let service = Service::broken("docker_", "not root");
        assert!(service.variables().is_empty());
        assert_eq!(service.problem().unwrap(), "no Docker engine could be started: not root");
    }
}
