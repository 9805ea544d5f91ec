//! Helpers of the tests with a control plane.

mod support;

use std::process::Command;
use std::time::Duration;

use support::{Program, wait_within};

#[tokio::test]
async fn a_killed_program_restarts_and_appends_to_its_log() {
    let folder = tempfile::tempdir().unwrap();
    let mut sh = Command::new("sh");
    sh.args(["-c", "trap 'echo bye; exit 3' TERM; echo life $$; while :; do sleep 0.05; done"]);
    let mut program = Program::start(sh, &folder.path().join("log"));
    let first = program.pid();
    program.says(&format!("life {first}")).await;
    program.kill();
    assert!(!program.runs());
    program.restart();
    let second = program.pid();
    program.says(&format!("life {second}")).await;
    assert_eq!(program.terminate().code(), Some(3));
    assert_eq!(program.log(), format!("life {first}\nlife {second}\nbye\n"));
}

#[tokio::test]
#[should_panic(expected = "what there is: 2 of 3")]
async fn a_timed_out_wait_reports_the_last_state() {
    wait_within(Duration::from_millis(100), "three", async || Err::<(), _>("2 of 3")).await;
}
