//! All commands with a cluster: scripts in `golden/` run in a real shell, as in
//! `tests/commands`. The scheduler is real; KWOK simulates nodes and pods.
//!
//! * `@node NAME GPUS` adds a node, `@bare NAME` a node with GPU labels that offers no GPU. `@monitored NODE` publishes the
//!   report of a monitor. `@install` installs all components except the scheduler, which runs outside the cluster.
//! * `@later` waits for the next second, so that later objects are younger.
//! * `@wait JOB PHASE`, `@wait JOB because REASON`, `@wait JOB told REASON`, `@wait JOB on NODE` and `@gone JOB` wait.
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
    a_job_is_submitted_and_followed: "work",
    lists_are_chosen_sorted_and_printed_in_every_format: "lists",
    one_thing_is_described_and_explained: "one",
    the_fleet_is_looked_after: "fleet",
    errors_have_advice_and_an_exit_code: "errors",
    what_only_a_server_can_do_says_so: "servers-only",
    a_doctor_looks_at_a_cluster_and_names_what_mends_it: "doctor",
    people_may_do_what_their_roles_say: "roles",
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
