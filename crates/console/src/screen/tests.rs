use std::process::Command;
use std::time::Duration;

use super::Screen;
use crate::fixture::model;
use crate::view::Theme;

#[path = "../../tests/support/pty.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod pty;

const ROLE: &str = "AGENTAFLOW_TEST_ROLE";

/// The panicking program: this test, started again on a pseudo-terminal.
fn fail() {
    let mut screen = Screen::enter().unwrap();
    screen.draw(&model(80, 24), Theme { colour: true, ascii: false }).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    panic!("intentional panic");
}

#[test]
fn a_panic_leaves_the_terminal_in_order_and_is_readable() {
    if std::env::var_os(ROLE).is_some() {
        return fail();
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    let this = "a_panic_leaves_the_terminal_in_order_and_is_readable";
    command
        .args([this, "--nocapture", "--test-threads=1"])
        .env(ROLE, "fail")
        .env("RUST_BACKTRACE", "0");
    let mut terminal = pty::Terminal::start(&command, 80, 24);
    terminal.wait_for("Queue");
    assert!(terminal.is_taken(), "no alternate screen");
    terminal.end();
    terminal.wait_for("intentional panic");
    terminal.assert_restored();
    assert!(!terminal.contents().contains("Queue"), "{}", terminal.contents());
}
