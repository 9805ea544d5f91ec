//! Files that are made from something else and committed: one command writes them, the tests compare them.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};

use crate::report::Report;
use crate::{Failure, process, repo};

/// Texts by their path from the root of the repository.
pub(crate) type Files = BTreeMap<String, String>;

/// A command that makes files, which is a phase of the tests too.
pub(crate) struct Chore {
    /// Of the command and of the phase.
    pub(crate) name: &'static str,
    /// What the files are made from.
    pub(crate) source: &'static str,
    pub(crate) make: fn() -> Result<Files>,
}

impl Chore {
    /// `cargo xtask NAME [--check]`.
    pub(crate) fn run(&self, arguments: &[String]) -> Result<ExitCode, Failure> {
        match arguments {
            [] => self.write()?,
            [option] if option == "--check" => {
                if let Some(problem) = self.problem()? {
                    eprintln!("error: {problem}");
                    return Ok(ExitCode::FAILURE);
                }
            }
            [unknown, ..] => {
                let name = self.name;
                return Err(Failure::Usage(format!(
                    "unknown argument `{unknown}`; see `cargo xtask {name} --help`"
                )));
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    /// The phase of the tests.
    pub(crate) fn check(&self) -> Result<Report> {
        Ok(match self.problem()? {
            None => Report::passed(),
            Some(problem) => Report::failed(self.name, problem),
        })
    }

    fn write(&self) -> Result<()> {
        for (path, text) in (self.make)()? {
            let file = repo::root().join(&path);
            let folder = file.parent().context("a file lies in a folder")?;
            fs::create_dir_all(folder)
                .with_context(|| format!("cannot make the folder of `{path}`"))?;
            fs::write(file, text).with_context(|| format!("cannot write `{path}`"))?;
            println!("wrote {path}");
        }
        Ok(())
    }

    fn problem(&self) -> Result<Option<String>> {
        let made = (self.make)()?;
        let mut committed = Files::new();
        for path in made.keys() {
            match fs::read_to_string(repo::root().join(path)) {
                Ok(text) => {
                    committed.insert(path.clone(), text);
                }
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(error).with_context(|| format!("cannot read `{path}`")),
            }
        }
        Ok(self.compare(&committed, &made))
    }

    fn compare(&self, committed: &Files, made: &Files) -> Option<String> {
        let repair = format!("`cargo xtask {}` writes it anew", self.name);
        made.iter().find_map(|(path, text)| match committed.get(path) {
            None => Some(format!("`{path}` is missing; {repair}")),
            Some(committed) if committed != text => {
                Some(format!("`{path}` is not what {} says; {repair}", self.source))
            }
            Some(_) => None,
        })
    }
}

/// The tests have just built all programs as the code is now. Cargo would build some of their dependencies once more for
/// one program alone, which takes minutes.
pub(crate) static BUILT: AtomicBool = AtomicBool::new(false);

/// What `cargo ARGUMENTS -- ARGUMENT` prints; `built` is where the program lies beside our own.
pub(crate) fn printed_by(cargo: &[&str], built: &str, argument: Option<&str>) -> Result<String> {
    let ourselves = env::current_exe().context("cannot find ourselves")?;
    let program = ourselves.with_file_name(built);
    let mut command = if BUILT.load(Ordering::Relaxed) && program.is_file() {
        let mut command = Command::new(program);
        command.current_dir(repo::root());
        command
    } else {
        let mut command = repo::cargo(cargo);
        command.arg("--");
        command
    };
    command.args(argument);
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output =
        output.with_context(|| format!("cannot start `{}`", process::display(&command)))?;
    if !output.status.success() {
        bail!("`{}` failed; see the output above", process::display(&command));
    }
    String::from_utf8(output.stdout).context("what it printed is not text")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_missing_or_differs_is_named_with_the_repair() {
        let made = Files::from([("docs/openapi.json".to_owned(), "{}".to_owned())]);
        let chore = Chore { name: "openapi", source: "the code", make: || Ok(Files::new()) };
        assert_eq!(chore.compare(&made, &made), None);
        let other = Files::from([("docs/openapi.json".to_owned(), "{ }".to_owned())]);
        for committed in [Files::new(), other] {
            let problem = chore.compare(&committed, &made).unwrap();
            assert!(problem.contains("`docs/openapi.json` is "), "{problem}");
            assert!(problem.ends_with("`cargo xtask openapi` writes it anew"), "{problem}");
        }
    }
}
