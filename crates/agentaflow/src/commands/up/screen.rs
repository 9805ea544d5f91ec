//! What `up` shows when everything runs.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use agentaflow_agent::runtime::user::NOBODY;
use agentaflow_server::serve::Running;
use anyhow::Result;

use super::Args;
use super::gpus::Gpus;
use crate::context::LOCAL;
use crate::output;

/// The page that leads a browser to the one-time link.
const PAGE: &str = "open.html";

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
    if facts.args.open
        && let Err(error) = open_browser(facts.data_dir, facts.server.browser_link.expose())
    {
        eprintln!("no browser could be opened ({error}); open the link above");
    }
    Ok(())
}

/// Opens the browser on a page that leads on to the link. The link itself must not be an argument: everybody on the
/// machine can read those, and whoever opens it first is in.
fn open_browser(data_dir: &Path, link: &str) -> io::Result<()> {
    let page = write_page(data_dir, link)?;
    let mut browser = Command::new("xdg-open");
    browser.arg(page).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    browser.spawn().map(drop).map_err(|_| io::Error::other("xdg-open is missing"))
}

/// Writes a page for its owner's eyes only.
fn write_page(data_dir: &Path, link: &str) -> io::Result<PathBuf> {
    let path = data_dir.join(PAGE);
    // One from an earlier start could have other rights.
    let _ = fs::remove_file(&path);
    let link = link.replace('&', "&amp;").replace('"', "&quot;").replace('<', "&lt;");
    let mut file = File::options().create_new(true).write(true).mode(0o600).open(&path)?;
    writeln!(
        file,
        "<!doctype html><meta charset=\"utf-8\"><meta name=\"referrer\" content=\"no-referrer\">\
         <meta http-equiv=\"refresh\" content=\"0;url={link}\"><title>agentaflow</title>\
         <a href=\"{link}\">agentaflow</a>"
    )?;
    Ok(path)
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
        (false, true) => {
            let user = args.process_user.as_deref().unwrap_or(NOBODY);
            format!("as processes of the user {user}")
        }
        (false, false) => {
            "as processes of yours, which can read your files and these tokens".to_owned()
        }
    };
    format!("{docker}; {process}")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_page_that_leads_to_the_link_is_for_its_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(PAGE), "old").unwrap();
        let page = write_page(dir.path(), "http://127.0.0.1:1/auth/link?code=a&b=\"c").unwrap();
        assert_eq!(page.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let text = fs::read_to_string(page).unwrap();
        assert!(text.contains("url=http://127.0.0.1:1/auth/link?code=a&amp;b=&quot;c\""), "{text}");
    }
}
