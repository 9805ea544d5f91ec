//! All commands with a server: scripts in `golden/` run in a real shell against a server with
//! simulated GPUs, and their output is compared with the script. `UPDATE=1 cargo test --test commands`
//! rewrites the scripts; read the difference before you commit it.

#[expect(dead_code, reason = "other tests need more of it")]
#[path = "../standalone/harness.rs"]
mod harness;
#[path = "../standalone/http.rs"]
mod http;
#[path = "../../../../tests/ports.rs"]
mod ports;
#[path = "../standalone/procs.rs"]
mod procs;

#[allow(dead_code, reason = "a part of it is for other tests")]
#[path = "../../../console/tests/support/pty.rs"]
mod pty;

mod golden;
mod normal;
mod script;
mod speed;
mod terminal;

use script::check;

#[test]
fn a_job_is_submitted_and_followed() {
    check("work");
}

#[test]
fn lists_are_chosen_sorted_and_printed_in_every_format() {
    check("lists");
}

#[test]
fn one_object_is_described_and_explained() {
    check("one");
}

#[test]
fn the_pending_reason_is_the_same_everywhere() {
    check("waits");
}

#[test]
fn shared_gpus_and_odd_names_are_shown() {
    check("shared");
}

#[test]
fn the_fleet_is_looked_after() {
    check("fleet");
}

#[test]
fn users_and_their_keys_are_managed() {
    check("people");
}

#[test]
fn contexts_say_where_commands_go() {
    check("contexts");
}

#[test]
fn errors_have_advice_and_an_exit_code() {
    check("errors");
}

#[test]
fn files_with_work_are_read() {
    check("files");
}

#[test]
fn bad_files_are_refused_with_the_line_and_fast() {
    check("bad-files");
}

#[test]
fn the_program_tells_about_itself() {
    check("itself");
}

#[test]
fn a_shell_completes_real_names() {
    check("completion");
}
