//! The browser dashboard: builds `web/dist`, which the program embeds, and tests it in a browser.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::Ordering;
use std::time::Duration;

use agentaflow_units::hash64;
use anyhow::{Context, Result, bail};

use crate::output::out;
use crate::report::Report;
use crate::{CommandError, generate, no_arguments, process, repo, tools};

pub(crate) const HELP: &str = "\
Build the browser dashboard into web/dist. The next build of the program embeds it.

Usage: cargo xtask web

Needs Node.js 20.19 or later with npm. Packages are installed only when web/package-lock.json
has changed, and the dashboard is built only when its sources have changed. `cargo xtask run`
and `cargo xtask test` do the same.";

/// Oldest Node.js that Vite supports.
const NODE: (u32, u32) = (20, 19);

/// Browsers that the tests can drive, by preference.
const BROWSERS: [&str; 2] = ["chromium", "google-chrome"];

/// Limit of all files together, compressed, in bytes.
const SIZE_LIMIT: u64 = 150_000;

/// Folders and files of `web` that do not change the result.
const NOT_BUILT: [&str; 2] = ["web/tests/", "web/.gitignore"];

pub(crate) fn run(rest: &[String]) -> Result<ExitCode, CommandError> {
    no_arguments("web", rest)?;
    build()?;
    out!("web/dist: {} bytes compressed", compressed_size(&dist())?);
    Ok(ExitCode::SUCCESS)
}

/// Builds the dashboard if its sources have changed.
pub(crate) fn build() -> Result<()> {
    has_node()?;
    install()?;
    let inputs = fingerprint(&sources()?)?;
    let stamp = web().join("node_modules/.agentaflow-build");
    if dist().join("index.html").is_file() && holds(&stamp, &inputs) {
        return Ok(());
    }
    out!("   building the dashboard");
    npm(&["run", "--silent", "build"])?;
    fs::write(&stamp, inputs).with_context(|| format!("cannot write {}", stamp.display()))
}

/// The phase `web`: types, unit tests, size, and the tests in a browser.
pub(crate) fn check() -> Result<Report> {
    if let Err(error) = has_node() {
        return Ok(Report::skipped("web", format!("{error:#}")));
    }
    if let Err(error) = install() {
        let reachable = process::succeeds_within(&mut command(&["ping"]), Duration::from_secs(20));
        let reason = format!("{error:#}");
        return Ok(if reachable {
            Report::failed("web", reason)
        } else {
            Report::skipped("web", format!("npm cannot reach its registry: {reason}"))
        });
    }
    build()?;
    let mut report = size(compressed_size(&dist())?);
    npm(&["run", "--silent", "types"])?;
    report.add(step("web types", &mut command(&["run", "--silent", "check"]))?);
    report.add(node_tests("web unit", command(&["run", "--silent", "unit"]))?);
    report.add(browser_tests()?);
    Ok(report)
}

fn browser_tests() -> Result<Report> {
    let browser = match browser() {
        Ok(path) => path,
        Err(error) => return Ok(Report::skipped("web browser", format!("{error:#}"))),
    };
    // A development build reads the dashboard from disk.
    if !generate::PROGRAMS_BUILT.load(Ordering::Relaxed) {
        let built = process::run(&mut repo::cargo(&["build", "--package", "agentaflow"]))?;
        if !built.succeeded() {
            built.show_output();
            return Ok(Report::failed("web browser", "the program does not build; see the output"));
        }
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or("target".into(), PathBuf::from);
    let mut tests = command(&["run", "--silent", "browser"]);
    tests.env("AGENTAFLOW_PROGRAM", repo::root().join(target).join("debug/agentaflow"));
    tests.env("AGENTAFLOW_BROWSER", browser);
    node_tests("web browser", tests)
}

/// Path of an installed browser, or of Chromium after its installation.
fn browser() -> Result<PathBuf> {
    let installed = BROWSERS.iter().find_map(|name| tools::on_path(name));
    if let Some(path) = installed {
        return Ok(path);
    }
    tools::ensure_program("chromium")?;
    tools::on_path("chromium").context("the package chromium has no program `chromium`")
}

fn size(bytes: u64) -> Report {
    if bytes <= SIZE_LIMIT {
        return Report::passed();
    }
    Report::failed("web size", format!("{bytes} bytes compressed; the limit is {SIZE_LIMIT}"))
}

fn step(name: &str, command: &mut Command) -> Result<Report> {
    let finished = process::run(command)?;
    if finished.succeeded() {
        return Ok(Report::passed());
    }
    finished.show_output();
    Ok(Report::failed(name, format!("`{}` failed", process::display(command))))
}

/// Runs tests that report in the Test Anything Protocol.
fn node_tests(name: &str, mut command: Command) -> Result<Report> {
    let finished = process::run(&mut command)?;
    let mut report = counted(name, &finished.output);
    if !finished.succeeded() && !report.is_failure() {
        report.fail(name, "the test program failed; see the output above");
    }
    if report.is_failure() {
        finished.show_output();
    }
    Ok(report)
}

fn counted(name: &str, output: &str) -> Report {
    let passed = output.lines().rev().find_map(|line| line.strip_prefix("# pass ")?.parse().ok());
    let mut report = Report { passed: passed.unwrap_or(0), ..Report::default() };
    for line in output.lines().filter_map(|line| line.trim_start().strip_prefix("not ok ")) {
        let test = line.split_once(" - ").map_or(line, |(_, test)| test);
        report.fail(format!("{name}: {test}"), "see the output above");
    }
    report
}

/// Installs packages if the lock file has changed since the last installation.
fn install() -> Result<()> {
    let lock = fingerprint(&["web/package-lock.json".to_owned(), "web/package.json".to_owned()])?;
    let stamp = web().join("node_modules/.agentaflow-lock");
    if holds(&stamp, &lock) {
        return Ok(());
    }
    out!("   installing the packages of the dashboard");
    npm(&["ci", "--no-fund", "--no-audit"])?;
    fs::write(&stamp, lock).with_context(|| format!("cannot write {}", stamp.display()))
}

fn has_node() -> Result<()> {
    let advice = format!("the dashboard needs Node.js {}.{} or later with npm", NODE.0, NODE.1);
    if !tools::is_on_path("npm") {
        bail!("npm is missing: {advice}");
    }
    let output = Command::new("node").arg("--version").output().context(advice.clone())?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    match version(&text) {
        Some(version) if version >= NODE => Ok(()),
        _ => bail!("Node.js `{text}` is too old: {advice}"),
    }
}

/// Major and minor version of `v20.19.5`.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.strip_prefix('v')?.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn npm(arguments: &[&str]) -> Result<()> {
    let mut command = command(arguments);
    let finished = process::run(&mut command)?;
    if finished.succeeded() {
        return Ok(());
    }
    finished.show_output();
    bail!("`{}` failed in web", process::display(&command))
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new("npm");
    command.args(arguments).current_dir(web());
    command
}

/// Files that change the result of a build.
fn sources() -> Result<Vec<String>> {
    let is_source = |file: &String| {
        file.starts_with("web/") && !NOT_BUILT.iter().any(|other| file.starts_with(other))
    };
    Ok(repo::files()?.into_iter().filter(is_source).collect())
}

/// Hash of the names and contents of files.
fn fingerprint(files: &[String]) -> Result<String> {
    let mut hashes = String::new();
    for file in files {
        let content = fs::read(repo::root().join(file));
        let content = content.with_context(|| format!("cannot read {file}"))?;
        let _ = writeln!(hashes, "{file} {:016x}", hash64(&content));
    }
    Ok(format!("{:016x}", hash64(hashes.as_bytes())))
}

fn holds(stamp: &Path, value: &str) -> bool {
    fs::read_to_string(stamp).is_ok_and(|found| found == value)
}

/// Bytes of all compressed files of a folder.
fn compressed_size(folder: &Path) -> Result<u64> {
    let read = || format!("cannot read {}", folder.display());
    let mut bytes = 0;
    for entry in fs::read_dir(folder).with_context(read)? {
        let path = entry.with_context(read)?.path();
        if path.is_dir() {
            bytes += compressed_size(&path)?;
        } else if path.extension().is_some_and(|extension| extension == "gz") {
            bytes += path.metadata().with_context(read)?.len();
        }
    }
    Ok(bytes)
}

fn web() -> PathBuf {
    repo::root().join("web")
}

fn dist() -> PathBuf {
    web().join("dist")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_run_is_counted_and_failures_are_named() {
        let output = "TAP version 13\nok 1 - a\nnot ok 2 - the page loads\n# pass 1\n# fail 1\n";
        let report = counted("web browser", output);
        assert_eq!(report.passed, 1);
        assert_eq!(report.failed[0].name, "web browser: the page loads");
        assert!(!counted("web unit", "ok 1 - a\n# pass 3\n").is_failure());
    }

    #[test]
    fn versions_of_node_compare_as_numbers() {
        assert_eq!(version("v20.19.5"), Some((20, 19)));
        assert!(version("v9.99.0") < Some(NODE) && version("v22.1.0") > Some(NODE));
        assert_eq!(version("20"), None);
    }

    #[test]
    fn a_dashboard_beyond_the_limit_fails() {
        assert!(!size(SIZE_LIMIT).is_failure());
        assert!(size(SIZE_LIMIT + 1).is_failure());
    }

    #[test]
    fn tests_of_the_dashboard_are_not_sources_of_it() {
        let files = sources().unwrap();
        assert!(files.iter().any(|file| file == "web/src/main.ts"));
        assert!(files.iter().all(|file| !file.starts_with("web/tests/")));
    }
}
