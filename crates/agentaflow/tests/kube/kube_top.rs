//! `agentaflow top` for a cluster, on a pseudo-terminal.

use tokio::runtime::Handle;
use tokio::task::block_in_place;

use crate::lab::Lab;
use crate::plans::alone;
use crate::pty::Terminal;

const TAB: &str = "\t";

/// A node with two GPUs, the running job `runs` on both, and the pending job `waits`.
async fn busy(name: &str) -> Lab {
    let mut lab = Lab::start(name).await;
    for order in [&["node", "a", "2"][..], &["monitored", "a"]] {
        lab.carry_out(order).await;
    }
    submit(&lab, "runs", "2");
    lab.carry_out(&["wait", "runs", "Running"]).await;
    lab.carry_out(&["later"]).await;
    submit(&lab, "waits", "1");
    lab.carry_out(&["wait", "waits", "because", "NoRoom"]).await;
    lab
}

fn submit(lab: &Lab, name: &str, gpus: &str) {
    let words = ["submit", "--name", name, "--gpus", gpus, "registry.example/train:1"];
    let output = block_in_place(|| lab.command(&words).output().expect("the program starts"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn top_shows_a_cluster_and_cancels_a_job() {
    let _alone = alone().await;
    let mut lab = busy("top").await;
    block_in_place(|| {
        let command = lab.command(&["top", "--interval", "300ms"]);
        let mut terminal = Terminal::start(&command, 80, 24);
        for part in ["lab-top-a", "92%", "lab-top-a:0,1", "runs", "waits"] {
            terminal.wait_for(part);
        }
        terminal.press(TAB);
        terminal.press(TAB);
        terminal.press("c");
        terminal.press("y");
        Handle::current().block_on(lab.carry_out(&["gone", "waits"]));
        terminal.press("q");
        assert_eq!(terminal.end().code(), Some(0));
        terminal.assert_restored();
    });
    lab.leave_nothing().await;
}
