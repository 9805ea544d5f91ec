//! Server with simulated GPUs for a script: `@server` starts the server, `@agent NAME` adds a node with two simulated GPUs,
//! `@wait JOB STATUS [on NODE]` waits.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::golden::{self, Stage};
use crate::harness::{Cluster, PROGRAM};
use crate::normal::Normal;

/// Runs `golden/NAME.txt`.
#[track_caller]
pub(crate) fn check(name: &str) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/commands/golden");
    golden::check(&folder.join(format!("{name}.txt")), PROGRAM, &mut Standalone::default());
}

#[derive(Default)]
struct Standalone {
    cluster: Option<Cluster>,
}

impl Stage for Standalone {
    fn obey(&mut self, order: &str) {
        let words: Vec<_> = order.split(' ').collect();
        match words.as_slice() {
            ["server"] => self.cluster = Some(Cluster::server(&[])),
            ["agent", name, options @ ..] => {
                let cluster = self.cluster.as_mut().unwrap();
                cluster.agent(name, options);
                let count = cluster.agents.len();
                cluster.wait_for_nodes(count);
            }
            ["wait", job, status] => {
                let cluster = self.cluster.as_ref().unwrap();
                cluster.wait_for_status(job.parse().unwrap(), status);
            }
            ["wait", job, status, "on", node] => {
                let cluster = self.cluster.as_ref().unwrap();
                cluster.wait_for(job.parse().unwrap(), order, |job| {
                    job["status"] == *status && job["tasks"][0]["node_name"] == *node
                });
            }
            _ => panic!("there is no order `{order}`"),
        }
    }

    fn prepare(&self, command: &mut Command) {
        if let Some(cluster) = &self.cluster {
            command
                .env("AGENTAFLOW_SERVER", format!("http://127.0.0.1:{}", cluster.port))
                .env("AGENTAFLOW_TOKEN", cluster.token())
                .env("DATA", cluster.path("data"));
        }
    }

    fn normal(&self, home: &Path) -> Normal {
        let mut normal = Normal::default();
        if let Some(cluster) = &self.cluster {
            normal.hide(&cluster.path("").display().to_string(), "DATA/");
            normal.hide(&format!("127.0.0.1:{}", cluster.port), "127.0.0.1:PORT");
        }
        normal.hide(&home.display().to_string(), "HOME");
        normal
    }
}
