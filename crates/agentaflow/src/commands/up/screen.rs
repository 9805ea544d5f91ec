//! Start-up summary of `up`.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use agentaflow_server::serve::Running;
use anyhow::Result;

use super::Args;
use super::gpus::Gpus;
use crate::context::LOCAL;
use crate::output;

/// Page that redirects to the one-time link.
const REDIRECT_PAGE: &str = "open.html";

pub(super) struct Summary<'a> {
    pub(super) args: &'a Args,
    pub(super) server: &'a Running,
    pub(super) data_dir: &'a Path,
    pub(super) gpus: &'a Gpus,
    pub(super) docker: bool,
    pub(super) metrics: Option<SocketAddr>,
    /// The local context is current.
    pub(super) current: bool,
}

/// Prints the summary, and opens the browser with `--open`.
pub(super) fn show(summary: &Summary<'_>) -> Result<()> {
    output::print(&text(summary))?;
    if summary.args.open
        && let Err(error) = open_browser(summary.data_dir, summary.server.browser_link.expose())
    {
        eprintln!("Cannot open a browser ({error}); open the link above");
    }
    Ok(())
}

/// Opens a page that redirects to the link. The link must not be a command-line argument, which other users can read:
/// the first request logs in.
fn open_browser(data_dir: &Path, link: &str) -> io::Result<()> {
    let page = write_page(data_dir, link)?;
    let mut browser = Command::new("xdg-open");
    browser.arg(page).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    browser.spawn().map(drop).map_err(|_| io::Error::other("xdg-open not found"))
}

/// Writes the page with mode 0600.
fn write_page(data_dir: &Path, link: &str) -> io::Result<PathBuf> {
    let path = data_dir.join(REDIRECT_PAGE);
    // An earlier page could have other permissions.
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

pub(super) fn stopping() {
    eprintln!("Stopping; jobs become pending. Press Ctrl-C again to exit now");
}

fn text(summary: &Summary<'_>) -> String {
    let url = summary.server.url();
    let folder = summary.data_dir.display();
    let mut lines = vec![
        ("API", format!("{url}  (docs: {url}/docs)")),
        ("Browser", format!("{}  (one-time link)", summary.server.browser_link.expose())),
        ("Tokens", format!("{folder}/admin-token (admin), registration-token (agents)")),
        ("GPUs", summary.gpus.summary()),
        ("Runtimes", runtimes(summary)),
    ];
    lines.extend(summary.metrics.map(|address| ("Metrics", format!("http://{address}/metrics"))));
    lines.extend(summary.server.warnings.iter().map(|warning| ("Warning", warning.clone())));
    let line = |(name, value): &(&str, String)| format!("  {name:<9} {value}\n");
    let lines = lines.iter().map(line).collect::<Vec<_>>().concat();
    let context = if summary.current { String::new() } else { format!("--context {LOCAL} ") };
    format!(
        "\n{}\n\n{lines}\nTry:  agentaflow run {context}-- echo hello\nPress Ctrl-C to stop.\n\n",
        output::bold("agentaflow is up")
    )
}

fn runtimes(summary: &Summary<'_>) -> String {
    let args = summary.args;
    let docker = if summary.docker {
        "Docker".to_owned()
    } else {
        format!("no Docker at {}", args.docker_socket.display())
    };
    let process = match (args.no_process, rustix::process::geteuid().is_root()) {
        (true, _) => "no processes".to_owned(),
        (false, true) => {
            let user = args.process_user.as_ref().map(|user| format!("as user {user}"));
            let user = user.unwrap_or_else(|| "with a uid per owner".to_owned());
            format!("processes {user}")
        }
        (false, false) => {
            "processes as your user, which can read your files and these tokens".to_owned()
        }
    };
    format!("{docker}; {process}")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_redirect_page_is_private() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(REDIRECT_PAGE), "old").unwrap();
        let page = write_page(dir.path(), "http://127.0.0.1:1/auth/link?code=a&b=\"c").unwrap();
        assert_eq!(page.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let text = fs::read_to_string(page).unwrap();
        assert!(text.contains("url=http://127.0.0.1:1/auth/link?code=a&amp;b=&quot;c\""), "{text}");
    }
}
