//! The scheduler as a process for the pods and nodes of one share.

use std::path::Path;
use std::process::Command;

use super::http::get;
use super::ports::free_port;
use super::program::Program;
use super::share::Share;
use super::wait::wait_for;

/// A running `agentaflow scheduler`; killed at the end of the test.
pub(crate) struct Scheduler {
    pub(crate) program: Program,
    /// Address of health and explain endpoints.
    pub(crate) http: u16,
    pub(crate) metrics: u16,
}

impl Scheduler {
    /// Starts the scheduler as the administrator and waits until it is ready. `executable` is
    /// `env!("CARGO_BIN_EXE_agentaflow")`; `extra` overrides the default arguments.
    pub(crate) async fn start(executable: &str, share: &Share, extra: &[&str]) -> Self {
        share.apply_file("deploy/crds").await;
        let mut scheduler =
            Self::launch(executable, share, &share.cluster.kubeconfig, "scheduler", extra);
        scheduler.ready().await;
        scheduler
    }

    /// Starts the scheduler with another kubeconfig, such as the one of an account or of a proxy, without waiting. `name`
    /// names its log; several may run for one share, of which one leads.
    pub(crate) fn launch(
        executable: &str,
        share: &Share,
        kubeconfig: &Path,
        name: &str,
        extra: &[&str],
    ) -> Self {
        Self::launch_in(&[], executable, share, kubeconfig, name, extra)
    }

    /// As [`Self::launch`], with variables of the environment.
    pub(crate) fn launch_in(
        environment: &[(&str, &str)],
        executable: &str,
        share: &Share,
        kubeconfig: &Path,
        name: &str,
        extra: &[&str],
    ) -> Self {
        let (http, metrics) = (free_port(), free_port());
        let mut command = Command::new(executable);
        command.envs(environment.iter().copied());
        command.arg("scheduler").arg("--kubeconfig").arg(kubeconfig);
        command.args(["--namespace", &share.namespace]);
        command.args(["--node-selector", &share.node_selector()]);
        command.args(["--http", &format!("127.0.0.1:{http}")]);
        command.args(["--metrics", &format!("127.0.0.1:{metrics}")]);
        let own = [
            ("--scheduler-name", share.scheduler_name()),
            ("--lease-name", share.scheduler_name()),
            ("--webhook", "off".to_owned()),
        ];
        for (option, value) in own.iter().filter(|(option, _)| !extra.contains(option)) {
            command.args([*option, value]);
        }
        command.args(extra);
        let program = Program::start(command, &share.file(&format!("{name}.log")));
        Self { program, http, metrics }
    }

    /// Waits until the scheduler is ready.
    pub(crate) async fn ready(&mut self) {
        wait_for("the scheduler is ready", async || {
            assert!(self.program.runs(), "it ended:\n{}", self.program.log());
            let answer = get(self.http, "/readyz").ok_or("no answer".to_owned())?;
            if answer.status == 200 { Ok(()) } else { Err(answer.body) }
        })
        .await;
    }

    /// Kills the scheduler and starts it again.
    pub(crate) async fn crash_and_restart(&mut self) {
        self.assert_no_rejections();
        self.program.restart();
        self.ready().await;
    }

    /// Value of a metric line, including labels.
    pub(crate) fn metric(&self, name: &str) -> Option<f64> {
        let text = get(self.metrics, "/metrics")?.body;
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    }

    /// An event that the engine rejects is always a bug of the driver.
    fn assert_no_rejections(&self) {
        let rejected = self.metric("agentaflow_engine_rejections_total").unwrap_or_default();
        assert!(rejected < 1.0 || std::thread::panicking(), "rejected events: {rejected}");
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        // A stopped or killed scheduler has no metrics.
        if self.program.runs() {
            self.assert_no_rejections();
        }
    }
}
