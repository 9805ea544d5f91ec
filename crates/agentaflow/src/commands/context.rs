//! `agentaflow context`: lists, selects and deletes contexts.

use anyhow::Result;
use clap_complete::engine::ArgValueCandidates;

use crate::candidates;
use crate::context::{self, Contexts, Target};
use crate::output;

/// Manage contexts: the servers and clusters that commands connect to
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<ContextCommand>,
}

#[derive(Debug, clap::Subcommand)]
enum ContextCommand {
    /// List contexts; `*` marks the current one
    List,
    /// Set the current context
    Use {
        /// Context name
        #[arg(add = ArgValueCandidates::new(candidates::contexts))]
        name: String,
    },
    /// Show the current target and its origin
    Show,
    /// Delete a context and its token; the server or cluster is not affected
    #[command(visible_alias = "remove")]
    Delete {
        /// Context name
        #[arg(add = ArgValueCandidates::new(candidates::contexts))]
        name: String,
    },
}

pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.command {
        None | Some(ContextCommand::List) => list(),
        Some(ContextCommand::Use { name }) => set_current(name),
        Some(ContextCommand::Show) => show(),
        Some(ContextCommand::Delete { name }) => delete(name),
    }
}

fn list() -> Result<()> {
    let contexts = Contexts::read(&context::file()?)?;
    if contexts.known.is_empty() {
        return output::print(
            "No contexts found. Run `agentaflow up` or `agentaflow login URL` to create one.\n",
        );
    }
    let line = |(name, target): (&String, &Target)| {
        let mark = if contexts.current.as_ref() == Some(name) { '*' } else { ' ' };
        format!("{mark} {name:<16} {}\n", target.description())
    };
    output::print(&contexts.known.iter().map(line).collect::<Vec<_>>().concat())
}

fn set_current(name: &str) -> Result<()> {
    let path = context::file()?;
    let mut contexts = Contexts::read(&path)?;
    let server = contexts.named(name)?.description();
    contexts.current = Some(name.to_owned());
    contexts.write(&path)?;
    output::print(&format!("Switched to context `{name}`: {server}\n"))
}

fn delete(name: &str) -> Result<()> {
    let path = context::file()?;
    let mut contexts = Contexts::read(&path)?;
    contexts.named(name)?;
    contexts.known.remove(name);
    let current = contexts.current.as_deref() == Some(name);
    if current {
        contexts.current = None;
    }
    contexts.write(&path)?;
    let next = if current && !contexts.known.is_empty() {
        "; select another one with `agentaflow context use NAME`"
    } else {
        ""
    };
    output::print(&format!("Deleted context `{name}`{next}\n"))
}

fn show() -> Result<()> {
    let target = context::target(None)?;
    let origin =
        match (context::variable("AGENTAFLOW_SERVER"), context::variable("AGENTAFLOW_CONTEXT")) {
            (Some(_), _) => "AGENTAFLOW_SERVER is set".to_owned(),
            (None, Some(name)) => format!("AGENTAFLOW_CONTEXT is `{name}`"),
            (None, None) => context::default_origin()?,
        };
    let token = if target.token.is_some() { " with a token" } else { " without a token" };
    let token = if target.kubernetes.is_some() { "" } else { token };
    let trust = match (&target.server_fingerprint, &target.ca_cert) {
        (Some(pin), _) => format!(", fingerprint {pin}"),
        (None, Some(file)) => format!(", authority {}", file.display()),
        (None, None) => String::new(),
    };
    output::print(&format!("{}{token}{trust} ({origin})\n", target.description()))
}
