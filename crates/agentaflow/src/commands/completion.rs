//! `agentaflow completion`, `man` and `reference`: what shells, `man` and readers want to know of the commands.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::{Arg, Command, CommandFactory as _};
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use clap_complete::env::Shells;

use crate::Cli;
use crate::failure::usage;
use crate::nearest::not_there;
use crate::output;

/// The variable that asks the program for completions instead of running it.
pub(crate) const VARIABLE: &str = "AGENTAFLOW_COMPLETE";

const COMPLETION_HELP: &str = "\
Names of contexts, nodes, jobs and queues are completed too: the server is asked while you type.

  bash   source <(agentaflow completion bash)      in ~/.bashrc
  zsh    source <(agentaflow completion zsh)       in ~/.zshrc
  fish   agentaflow completion fish | source       in ~/.config/fish/config.fish";

/// Print what a shell needs to complete commands
#[derive(Debug, clap::Args)]
#[command(after_help = COMPLETION_HELP)]
pub(crate) struct CompletionArgs {
    /// The shell: bash, zsh, fish, elvish or powershell
    #[arg(add = ArgValueCandidates::new(shells))]
    shell: String,
}

/// Print a manual page, or write the pages of all commands into a folder
#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// The command whose page is printed, such as `run` or `context use`; the program's own when absent
    #[arg(value_name = "COMMAND", conflicts_with = "dir")]
    command: Vec<String>,
    /// Write one page for each command into this folder
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
}

/// Print the reference of all commands as Markdown
#[derive(Debug, clap::Args)]
pub(crate) struct ReferenceArgs {}

fn shells() -> Vec<CompletionCandidate> {
    Shells::builtins().names().map(CompletionCandidate::new).collect()
}

pub(crate) fn completion(args: &CompletionArgs) -> Result<()> {
    let shells = Shells::builtins();
    let Some(shell) = shells.completer(&args.shell) else {
        let known: Vec<_> = shells.names().collect();
        return Err(usage(format!("there is no shell `{}`: {}", args.shell, known.join(", "))));
    };
    let mut script = Vec::new();
    let (name, program) = ("agentaflow", "agentaflow");
    shell
        .write_registration(VARIABLE, name, name, program, &mut script)
        .context("cannot write the script")?;
    output::print_bytes(&script)
}

pub(crate) fn man(args: &ManArgs) -> Result<()> {
    let mut root = Cli::command();
    root.build();
    let Some(dir) = &args.dir else {
        let (command, name) = named(&root, &args.command)?;
        return output::print_bytes(&page(command, &name)?);
    };
    fs::create_dir_all(dir).with_context(|| format!("cannot make `{}`", dir.display()))?;
    let mut pages = vec![(root.clone(), "agentaflow".to_owned())];
    let mut count = 0;
    while let Some((command, name)) = pages.pop() {
        let file = dir.join(format!("{name}.1"));
        fs::write(&file, page(&command, &name)?)
            .with_context(|| format!("cannot write `{}`", file.display()))?;
        count += 1;
        pages.extend(
            visible(&command).map(|sub| (sub.clone(), format!("{name}-{}", sub.get_name()))),
        );
    }
    output::print(&format!("{count} pages in {}\n", dir.display()))
}

/// The command that the words name, and the name of its page.
fn named<'a>(root: &'a Command, words: &[String]) -> Result<(&'a Command, String)> {
    let mut found = (root, root.get_name().to_owned());
    for word in words {
        let (command, name) = found;
        let sub = command.find_subcommand(word).ok_or_else(|| {
            let known: Vec<_> = visible(command).map(|sub| sub.get_name().to_owned()).collect();
            not_there("command", word, &known)
        })?;
        found = (sub, format!("{name}-{}", sub.get_name()));
    }
    Ok(found)
}

fn page(command: &Command, name: &str) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    // The name of a page is its command's, with its parents'.
    let command = command.clone().name(name.to_owned());
    clap_mangen::Man::new(command).render(&mut text).context("cannot write the page")?;
    Ok(text)
}

pub(crate) fn reference(_: &ReferenceArgs) -> Result<()> {
    let mut root = Cli::command();
    root.build();
    let mut text = String::from(
        "# Commands\n\n\
         Generated from the program by `cargo xtask reference`; every command also says this with `--help`.\n",
    );
    for command in visible(&root) {
        section(&mut text, command, "agentaflow", 2);
    }
    output::print(&text)
}

fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help")
}

fn section(text: &mut String, command: &Command, parents: &str, depth: usize) {
    let name = format!("{parents} {}", command.get_name());
    let _ = writeln!(text, "\n{} `{name}`\n", "#".repeat(depth.min(4)));
    if let Some(about) = command.get_about() {
        let _ = writeln!(text, "{about}.\n");
    }
    let subs: Vec<_> = visible(command).collect();
    if subs.is_empty() {
        let usage = command.clone().render_usage().to_string();
        let usage = usage.trim_start_matches("Usage:").trim().replace("\n       ", "\n");
        let _ = writeln!(text, "```\n{usage}\n```");
        options(text, command);
    }
    let aliases: Vec<_> = command.get_all_aliases().collect();
    if !aliases.is_empty() {
        let _ = writeln!(text, "\nAlso: `{}`.", aliases.join("`, `"));
    }
    if let Some(more) = command.get_after_help() {
        let _ = writeln!(text, "\n```text\n{}\n```", more.to_string().trim());
    }
    for sub in subs {
        section(text, sub, &name, depth + 1);
    }
}

fn options(text: &mut String, command: &Command) {
    let shown =
        |arg: &&Arg| !arg.is_hide_set() && !matches!(arg.get_id().as_str(), "help" | "version");
    let args: Vec<_> = command.get_arguments().filter(shown).collect();
    if args.is_empty() {
        return;
    }
    let _ = writeln!(text, "\n| option | meaning |\n|---|---|");
    for arg in args {
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let values: Vec<_> =
            arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
        let takes = arg.get_num_args().is_some_and(|count| count.takes_values());
        let choice = if values.is_empty() || !takes || values == ["true", "false"] {
            String::new()
        } else {
            format!(" ({})", values.join(", "))
        };
        let default: Vec<_> =
            arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
        let default = if default.is_empty() || !takes {
            String::new()
        } else {
            format!(" [default: {}]", default.join(","))
        };
        let cell = |text: &str| text.replace('|', "\\|").replace('\n', " ");
        let _ = writeln!(text, "| `{}` | {}{choice}{default} |", cell(&title(arg)), cell(&help));
    }
}

/// How an option is written.
fn title(arg: &Arg) -> String {
    let value = arg
        .get_value_names()
        .map(|names| names.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "));
    let takes = arg.get_num_args().is_some_and(|count| count.takes_values());
    let value = value.filter(|_| takes);
    let long = arg.get_long().map(|long| format!("--{long}"));
    let short = arg.get_short().map(|short| format!("-{short}"));
    let flags: Vec<_> = short.into_iter().chain(long).collect();
    match (flags.is_empty(), value) {
        (true, value) => value.unwrap_or_else(|| arg.get_id().to_string().to_uppercase()),
        (false, Some(value)) => format!("{} {value}", flags.join(", ")),
        (false, None) => flags.join(", "),
    }
}
