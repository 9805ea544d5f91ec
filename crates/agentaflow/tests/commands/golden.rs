//! Golden scripts: each line runs in a real shell, and its output is compared with the text
//! below.
//!
//! * `$ line` runs in bash, `> line` continues it. The output follows, indented: stdout, then stderr
//!   with `!` before each line, then the exit code in brackets unless it is 0.
//! * `# text` is a comment.
//! * `@directive` sets up the environment.

use std::fmt::Write as _;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use similar::TextDiff;

use crate::normal::Normal;

/// Timeout of a command on a busy machine.
const LIMIT: Duration = Duration::from_secs(20);

/// Environment of a script.
pub(crate) trait Stage {
    /// Executes a line that starts with `@`.
    fn obey(&mut self, order: &str);

    /// Sets the environment of a command.
    fn prepare(&self, command: &mut Command);

    /// Normalization of the output.
    fn normal(&self, home: &Path) -> Normal;
}

/// Runs a script and compares; `UPDATE=1` rewrites it. `program` is the path of `agentaflow`.
#[track_caller]
pub(crate) fn check(path: &Path, program: &str, stage: &mut impl Stage) {
    let written = fs::read_to_string(path).unwrap();
    let home = tempfile::Builder::new().prefix("agentaflow-").tempdir().unwrap();
    for folder in ["bin", "work"] {
        fs::create_dir(home.path().join(folder)).unwrap();
    }
    symlink(program, home.path().join("bin/agentaflow")).unwrap();
    let mut output = String::new();
    for step in steps(&written) {
        output.push_str(&carry_out(&step, stage, home.path()));
    }
    if std::env::var_os("UPDATE").is_some_and(|value| !value.is_empty()) {
        fs::write(path, output).unwrap();
    } else if output != written {
        let name = path.display().to_string();
        let diff = TextDiff::from_lines(&*written, &*output);
        let diff = diff.unified_diff().header(&name, "actual output").to_string();
        panic!("{name} differs; UPDATE=1 writes it anew\n{diff}");
    }
}

enum Step {
    Remark(String),
    Order(String),
    Typed(Vec<String>),
}

fn steps(script: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    for line in script.lines() {
        if let Some(typed) = line.strip_prefix("$ ") {
            steps.push(Step::Typed(vec![typed.to_owned()]));
        } else if let (Some(more), Some(Step::Typed(lines))) =
            (line.strip_prefix('>'), steps.last_mut())
        {
            lines.push(more.strip_prefix(' ').unwrap_or(more).to_owned());
        } else if let Some(order) = line.strip_prefix('@') {
            steps.push(Step::Order(order.to_owned()));
        } else if line.starts_with('#') {
            steps.push(Step::Remark(line.to_owned()));
        }
    }
    steps
}

/// The step with its output.
fn carry_out(step: &Step, stage: &mut impl Stage, home: &Path) -> String {
    match step {
        Step::Remark(text) => format!("{text}\n"),
        Step::Order(order) => {
            stage.obey(order);
            format!("@{order}\n")
        }
        Step::Typed(lines) => {
            let mut text = format!("\n$ {}\n", lines[0]);
            for more in &lines[1..] {
                let _ = writeln!(text, "{}", format!("> {more}").trim_end());
            }
            text + &stage.normal(home).text(&shown(&run(&lines.join("\n"), stage, home)))
        }
    }
}

fn run(line: &str, stage: &impl Stage, home: &Path) -> Came {
    let mut command = Command::new("bash");
    let path = std::env::var("PATH").unwrap_or_default();
    command
        .args(["--noprofile", "--norc", "-c", line])
        .current_dir(home.join("work"))
        .env_clear()
        .env("PATH", format!("{}:{path}", home.join("bin").display()))
        .env("HOME", home)
        .env("COLUMNS", "80")
        .env("LC_ALL", "C.UTF-8");
    stage.prepare(&mut command);
    within_limit(command, line)
}

/// Result of a command.
struct Came {
    code: Option<i32>,
    out: String,
    err: String,
}

/// Runs a command; kills its process group after the timeout.
fn within_limit(mut command: Command, line: &str) -> Came {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().unwrap();
    let group = Pid::from_child(&child);
    let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let reader = spawn(move || {
        let mut text = Vec::new();
        err.read_to_end(&mut text).unwrap();
        text
    });
    let guard = spawn(move || -> Option<ExitStatus> {
        let since = Instant::now();
        let mut ended = child.try_wait().unwrap();
        while ended.is_none() && since.elapsed() < LIMIT {
            sleep(Duration::from_millis(10));
            ended = child.try_wait().unwrap();
        }
        let _ = kill_process_group(group, Signal::KILL);
        ended
    });
    let mut text = Vec::new();
    out.read_to_end(&mut text).unwrap();
    let status = guard.join().unwrap();
    let status = status.unwrap_or_else(|| panic!("`{line}` does not end within {LIMIT:?}"));
    let words = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Came { code: status.code(), out: words(text), err: words(reader.join().unwrap()) }
}

/// Result of a command in the format of a script.
fn shown(ran: &Came) -> String {
    let mut text = String::new();
    let mut add = |line: &str| {
        let _ = writeln!(text, "{}", format!("    {line}").trim_end());
    };
    ran.out.lines().for_each(&mut add);
    for line in ran.err.lines() {
        // These lines appear only if the job runs long enough.
        let passing = line.starts_with("Job ")
            && (line.contains(" starting on ") || line.contains(" running on "));
        if !passing {
            add(&format!("! {line}"));
        }
    }
    if ran.code != Some(0) {
        let code = ran.code.map_or_else(|| "a signal".to_owned(), |code| code.to_string());
        add(&format!("[{code}]"));
    }
    text
}
