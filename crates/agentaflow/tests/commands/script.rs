//! Runs a script and compares what comes out with what is written below each command.
//!
//! * `$ line` is typed into bash, `> line` continues it. What comes out stands below, indented: stdout, then stderr
//!   with `!` before each line, then the exit code in brackets unless it is 0.
//! * `# text` is for readers.
//! * `@server` starts a server, `@agent NAME` adds a node with two simulated GPUs, `@wait JOB STATUS` waits for a job.

use std::fmt::Write as _;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};

use crate::harness::{Cluster, PROGRAM, Ran, eventually};
use crate::normal::Normal;

/// No command takes longer, however busy the machine is.
const LIMIT: Duration = Duration::from_secs(20);

/// Runs `golden/NAME.txt`.
#[track_caller]
pub(crate) fn check(name: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/commands/golden")
        .join(format!("{name}.txt"));
    let written = fs::read_to_string(&path).unwrap();
    let mut shell = Shell::new();
    let mut told = String::new();
    for step in steps(&written) {
        told.push_str(&shell.carry_out(&step));
    }
    if std::env::var_os("UPDATE").is_some_and(|value| !value.is_empty()) {
        fs::write(&path, told).unwrap();
    } else if told != written {
        panic!("{name}.txt is not what comes out:\n{}", difference(&written, &told));
    }
}

/// What a script says to do.
enum Step {
    /// For readers.
    Remark(String),
    /// For this harness.
    Order(String),
    /// For the shell, a line or several.
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

/// Somebody's terminal.
struct Shell {
    home: tempfile::TempDir,
    cluster: Option<Cluster>,
}

impl Shell {
    fn new() -> Self {
        let home = tempfile::Builder::new().prefix("agentaflow-").tempdir().unwrap();
        for folder in ["bin", "work"] {
            fs::create_dir(home.path().join(folder)).unwrap();
        }
        symlink(PROGRAM, home.path().join("bin/agentaflow")).unwrap();
        Self { home, cluster: None }
    }

    /// The step as it stands in a script, with what came of it.
    fn carry_out(&mut self, step: &Step) -> String {
        match step {
            Step::Remark(text) => format!("{text}\n"),
            Step::Order(order) => {
                self.obey(order);
                format!("@{order}\n")
            }
            Step::Typed(lines) => {
                let mut text = format!("\n$ {}\n", lines[0]);
                for more in &lines[1..] {
                    let _ = writeln!(text, "{}", format!("> {more}").trim_end());
                }
                text + &self.normal().text(&shown(&self.run(&lines.join("\n"))))
            }
        }
    }

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
            _ => panic!("there is no order `{order}`"),
        }
    }

    fn run(&self, line: &str) -> Ran {
        let mut command = Command::new("bash");
        let home = self.home.path();
        let path = std::env::var("PATH").unwrap_or_default();
        command
            .args(["--noprofile", "--norc", "-c", line])
            .current_dir(home.join("work"))
            .env_clear()
            .env("PATH", format!("{}:{path}", home.join("bin").display()))
            .env("HOME", home)
            .env("LC_ALL", "C.UTF-8");
        if let Some(cluster) = &self.cluster {
            command
                .env("AGENTAFLOW_SERVER", format!("http://127.0.0.1:{}", cluster.port))
                .env("AGENTAFLOW_TOKEN", cluster.token())
                .env("DATA", cluster.path("data"));
        }
        within_limit(command, line)
    }

    fn normal(&self) -> Normal {
        let mut normal = Normal::default();
        if let Some(cluster) = &self.cluster {
            normal.hide(&cluster.path("").display().to_string(), "DATA/");
            normal.hide(&format!("127.0.0.1:{}", cluster.port), "127.0.0.1:PORT");
        }
        normal.hide(&self.home.path().display().to_string(), "HOME");
        normal
    }
}

/// Runs a command to its end; one that does not end in time is ended with all that it started.
fn within_limit(mut command: Command, line: &str) -> Ran {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().unwrap();
    let group = Pid::from_child(&child);
    let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        err.read_to_end(&mut text).unwrap();
        text
    });
    let guard = std::thread::spawn(move || {
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            eventually("the command ends", LIMIT, || child.try_wait().unwrap())
        }));
        let _ = kill_process_group(group, Signal::KILL);
        ended.ok()
    });
    let mut text = Vec::new();
    out.read_to_end(&mut text).unwrap();
    let status = guard.join().unwrap();
    let status = status.unwrap_or_else(|| panic!("`{line}` does not end within {LIMIT:?}"));
    let words = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ran { code: status.code(), out: words(text), err: words(reader.join().unwrap()) }
}

/// What came of a command, as scripts show it.
fn shown(ran: &Ran) -> String {
    let mut text = String::new();
    let mut add = |line: &str| {
        let _ = writeln!(text, "{}", format!("    {line}").trim_end());
    };
    ran.out.lines().for_each(&mut add);
    for line in ran.err.lines() {
        // Whether a job lasts long enough for this to be said depends on the machine.
        let passing = line.starts_with("job ")
            && (line.contains(" starts on ") || line.contains(" runs on "));
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

/// The lines that differ, with some around them.
fn difference(written: &str, told: &str) -> String {
    let (written, told): (Vec<_>, Vec<_>) = (written.lines().collect(), told.lines().collect());
    let same = written.iter().zip(&told).take_while(|(a, b)| a == b).count();
    let from = same.saturating_sub(6);
    let part = |lines: &[&str], mark: &str| {
        let upto = (same + 12).min(lines.len());
        lines[from.min(upto)..upto].iter().fold(String::new(), |mut text, line| {
            let _ = writeln!(text, "{mark} {line}");
            text
        })
    };
    let (written, told) = (part(&written, "-"), part(&told, "+"));
    format!("from line {}\n{written}\n{told}\nUPDATE=1 writes it anew", from + 1)
}
