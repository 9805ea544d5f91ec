//! `agentaflow top` for a cluster, on a pseudo-terminal.

use tokio::task::block_in_place;

use crate::lab::Lab;
use crate::plans::alone;
use crate::pty::Terminal;

const ESC: &str = "\u{1b}";
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
async fn top_shows_a_cluster_on_any_screen_size_and_cancels_a_job() {
    let _alone = alone().await;
    let lab = busy("top").await;
    block_in_place(|| {
        let command = lab.command(&["top", "--interval", "300ms"]);
        let mut terminal = Terminal::start(&command, 80, 24);
        for part in [
            "namespace test-lab-top",
            "lab-top-a",
            "92%",
            "lab-top-a:0,1",
            "1 running",
            "1 pending",
            "runs",
            "waits",
        ] {
            terminal.wait_for(part);
        }
        show(&terminal);
        terminal.press(TAB);
        terminal.press(TAB);
        terminal.wait_for("Pending reason of waits");
        show(&terminal);
        terminal.press("e");
        terminal.wait_for("Position 1 of 1");
        show(&terminal);
        terminal.press(ESC);
        terminal.resize(140, 40);
        terminal.wait("the keys in row 40", |shown| {
            shown.lines().count() == 40
                && shown.lines().last().is_some_and(|line| line.contains("quit"))
        });
        terminal.wait_for("NVIDIA A100");
        show(&terminal);
        terminal.press("c");
        terminal.wait_for("Cancel job waits");
        terminal.press("y");
        terminal.wait_for("0 pending");
        terminal.press("q");
        assert_eq!(terminal.end().code(), Some(0));
        terminal.assert_restored();
    });
    lab.leave_nothing().await;
}

/// `--nocapture` shows the screens.
fn show(terminal: &Terminal) {
    println!("{}\n", terminal.contents());
}
