//! What `up` shows when everything runs.

use std::path::Path;
use std::process::{Command, Stdio};

use agentaflow_server::serve::Running;
use anyhow::Result;

use super::Args;
use super::gpus::Gpus;
use crate::context::LOCAL;
use crate::output;

/// What there is to show.
pub(super) struct Facts<'a> {
    pub(super) args: &'a Args,
    pub(super) server: &'a Running,
    pub(super) data_dir: &'a Path,
    pub(super) gpus: &'a Gpus,
    /// There is a Docker engine.
    pub(super) docker: bool,
    /// The command line speaks to this server without being told.
    pub(super) current: bool,
}

/// Shows it, and opens the browser if asked to.
pub(super) fn show(facts: &Facts<'_>) -> Result<()> {
    output::print(&text(facts))?;
    if facts.args.open {
        let mut browser = Command::new("xdg-open");
        browser.arg(facts.server.browser_link.expose());
        browser.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if browser.spawn().is_err() {
            eprintln!("no browser could be opened (xdg-open is missing); open the link above");
        }
    }
    Ok(())
}

/// Says that the end has begun; jobs may need a moment.
pub(super) fn stopping() {
    eprintln!("stopping: jobs go back to waiting (Ctrl-C again ends at once)");
}

fn text(facts: &Facts<'_>) -> String {
    let url = facts.server.url();
    let folder = facts.data_dir.display();
    let mut lines = vec![
        ("API", format!("{url}  (described at {url}/docs)")),
        ("Browser", format!("{}  (works once)", facts.server.browser_link.expose())),
        ("Tokens", format!("{folder}/admin-token for you, registration-token for more workers")),
        ("GPUs", facts.gpus.summary()),
        ("Jobs run", runtimes(facts)),
    ];
    lines.extend(facts.server.warnings.iter().map(|warning| ("Careful", warning.clone())));
    let line = |(name, value): &(&str, String)| format!("  {name:<9} {value}\n");
    let lines = lines.iter().map(line).collect::<Vec<_>>().concat();
    let context = if facts.current { String::new() } else { format!("--context {LOCAL} ") };
    format!(
        "\n{}\n\n{lines}\nTry it:  agentaflow run {context}-- echo hello\nCtrl-C stops it.\n\n",
        output::bold("agentaflow is up")
    )
}

fn runtimes(facts: &Facts<'_>) -> String {
    let args = facts.args;
    let docker = if facts.docker {
        "in containers (Docker)".to_owned()
    } else {
        format!("not in containers (no Docker at {})", args.docker_socket.display())
    };
    let process = match (args.no_process, rustix::process::geteuid().is_root()) {
        (true, _) => "not as processes".to_owned(),
        (false, true) => format!("as processes of the user {}", args.process_user),
        (false, false) => "as processes of yours".to_owned(),
    };
    format!("{docker}; {process}")
}
