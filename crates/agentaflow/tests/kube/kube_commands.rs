//! All commands with a cluster: scripts in `golden/` run in a real shell, as in
//! `tests/commands`. The scheduler is real; KWOK simulates nodes and pods.
//!
//! * `@node NAME GPUS` adds a node, `@bare NAME` a node with GPU labels that offers no GPU. `@monitored NODE` publishes the
//!   report of a monitor. `@install` installs all components except the scheduler, which runs outside the cluster.
//! * `@later` waits for the next second, so that later objects are younger.
//! * `@wait JOB PHASE`, `@wait JOB because REASON`, `@wait JOB event REASON`, `@wait JOB on NODE` and `@gone JOB` wait.
//! * `@account NAME ROLE…` creates a user with these roles in the namespace, and a context of that name;
//!   `@everywhere NAME ROLE` adds a role for the whole cluster.
//! * `@unreachable` sets `$UNREACHABLE` to the kubeconfig of a cluster that does not respond.

use std::path::PathBuf;

use tokio::task::block_in_place;

use crate::PROGRAM;
use crate::golden;
use crate::lab::Lab;
use crate::plans::alone;

macro_rules! scripts {
    ($($test:ident: $name:literal,)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        #[ignore = "needs a Kubernetes control plane"]
        async fn $test() {
            check($name).await;
        }
    )*};
}

scripts! {
    jobs_from_submission_to_end: "work",
    lists_are_filtered_sorted_and_formatted: "lists",
    jobs_and_nodes_are_described_and_explained: "one",
    nodes_queues_and_strategy_are_managed: "fleet",
    errors_have_a_remedy_and_an_exit_code: "errors",
    server_commands_are_rejected: "servers-only",
    doctor_finds_faults_and_remedies: "doctor",
    roles_limit_commands: "roles",
}

/// Runs `golden/NAME.txt` in its own lab.
async fn check(name: &str) {
    let _alone = alone().await;
    let mut lab = Lab::start(name).await;
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/kube/golden");
    let path = folder.join(format!("{name}.txt"));
    block_in_place(|| golden::check(&path, PROGRAM, &mut lab));
    lab.leave_nothing().await;
}
