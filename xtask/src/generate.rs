//! Generated files that are committed: one command writes them, and a phase of the tests compares them.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};

use crate::output::out;
use crate::report::Report;
use crate::{CommandError, process, repo};

/// Contents by path relative to the root of the repository.
pub(crate) type Files = BTreeMap<String, String>;

/// A command of xtask that generates files, and the phase of the tests that compares them.
pub(crate) struct Generator {
    /// Name of the command and of the phase.
    pub(crate) name: &'static str,
    /// Source of the files, for messages: `the code`.
    pub(crate) source: &'static str,
    pub(crate) generate: fn() -> Result<Files>,
}

impl Generator {
    /// `cargo xtask NAME [--check]`.
    pub(crate) fn run(&self, arguments: &[String]) -> Result<ExitCode, CommandError> {
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
                return Err(CommandError::Usage(format!(
                    "unknown argument `{unknown}`; see `cargo xtask {name} --help`"
                )));
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    pub(crate) fn check(&self) -> Result<Report> {
        Ok(match self.problem()? {
            None => Report::passed(),
            Some(problem) => Report::failed(self.name, problem),
        })
    }

    fn write(&self) -> Result<()> {
        for (path, text) in (self.generate)()? {
            let file = repo::root().join(&path);
            let folder = file.parent().context("the path of a file has no parent")?;
            fs::create_dir_all(folder)
                .with_context(|| format!("cannot create the folder of `{path}`"))?;
            fs::write(file, text).with_context(|| format!("cannot write `{path}`"))?;
            out!("wrote {path}");
        }
        Ok(())
    }

    fn problem(&self) -> Result<Option<String>> {
        let generated = (self.generate)()?;
        let mut committed = Files::new();
        for path in generated.keys() {
            match fs::read_to_string(repo::root().join(path)) {
                Ok(text) => {
                    committed.insert(path.clone(), text);
                }
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(error).with_context(|| format!("cannot read `{path}`")),
            }
        }
        Ok(self.compare(&committed, &generated))
    }

    fn compare(&self, committed: &Files, generated: &Files) -> Option<String> {
        let advice = format!("run `cargo xtask {}`", self.name);
        generated.iter().find_map(|(path, text)| match committed.get(path) {
            None => Some(format!("`{path}` is missing; {advice}")),
            Some(committed) if committed != text => {
                Some(format!("`{path}` does not match {}; {advice}", self.source))
            }
            Some(_) => None,
        })
    }
}

/// Set after the `tests` phase has built every program. `cargo run` for one program would build some dependencies again
/// with fewer features, which takes minutes.
pub(crate) static PROGRAMS_BUILT: AtomicBool = AtomicBool::new(false);

/// Standard output of `cargo ARGUMENTS -- ARGUMENT`; `built` is the path of the built program beside xtask.
pub(crate) fn stdout_of(cargo: &[&str], built: &str, argument: Option<&str>) -> Result<String> {
    let xtask = env::current_exe().context("cannot find the path of xtask")?;
    let program = xtask.with_file_name(built);
    let mut command = if PROGRAMS_BUILT.load(Ordering::Relaxed) && program.is_file() {
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
    String::from_utf8(output.stdout).context("the output is not UTF-8")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_or_different_file_is_named_with_the_command_that_writes_it() {
        let generated = Files::from([("docs/openapi.json".to_owned(), "{}".to_owned())]);
        let generator =
            Generator { name: "openapi", source: "the code", generate: || Ok(Files::new()) };
        assert_eq!(generator.compare(&generated, &generated), None);
        let other = Files::from([("docs/openapi.json".to_owned(), "{ }".to_owned())]);
        for committed in [Files::new(), other] {
            let problem = generator.compare(&committed, &generated).unwrap();
            assert!(problem.starts_with("`docs/openapi.json` "), "{problem}");
            assert!(problem.ends_with("run `cargo xtask openapi`"), "{problem}");
        }
    }
}
