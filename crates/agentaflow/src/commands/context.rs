//! `agentaflow context`: which servers are known, and which one is meant.

use anyhow::Result;
use clap_complete::engine::ArgValueCandidates;

use crate::candidates;
use crate::context::{self, Contexts, Target};
use crate::output;

/// Show or choose the server that commands speak to
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: Option<What>,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// List the contexts; the current one is marked
    List,
    /// Make a context the current one
    Use {
        /// Its name
        #[arg(add = ArgValueCandidates::new(candidates::contexts))]
        name: String,
    },
    /// Show which server commands speak to, and why
    Show,
    /// Forget a context and its token; nothing of the server or the cluster changes
    #[command(visible_alias = "remove")]
    Delete {
        /// Its name
        #[arg(add = ArgValueCandidates::new(candidates::contexts))]
        name: String,
    },
}

pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.what {
        None | Some(What::List) => list(),
        Some(What::Use { name }) => choose(name),
        Some(What::Show) => show(),
        Some(What::Delete { name }) => delete(name),
    }
}

fn list() -> Result<()> {
    let contexts = Contexts::read(&context::file()?)?;
    if contexts.known.is_empty() {
        return output::print("There are no contexts yet; `agentaflow up` makes one.\n");
    }
    let line = |(name, target): (&String, &Target)| {
        let mark = if contexts.current.as_ref() == Some(name) { '*' } else { ' ' };
        format!("{mark} {name:<16} {}\n", target.place())
    };
    output::print(&contexts.known.iter().map(line).collect::<Vec<_>>().concat())
}

fn choose(name: &str) -> Result<()> {
    let path = context::file()?;
    let mut contexts = Contexts::read(&path)?;
    let server = contexts.named(name)?.place();
    contexts.current = Some(name.to_owned());
    contexts.write(&path)?;
    output::print(&format!("`{name}` is the current context: {server}\n"))
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
        "; `agentaflow context use NAME` makes another the current one"
    } else {
        ""
    };
    output::print(&format!("`{name}` is forgotten{next}\n"))
}

fn show() -> Result<()> {
    let target = context::target(None)?;
    let why =
        match (context::variable("AGENTAFLOW_SERVER"), context::variable("AGENTAFLOW_CONTEXT")) {
            (Some(_), _) => "AGENTAFLOW_SERVER is set".to_owned(),
            (None, Some(name)) => format!("AGENTAFLOW_CONTEXT is `{name}`"),
            (None, None) => context::without_being_asked()?,
        };
    let token = if target.token.is_some() { " with a token" } else { " without a token" };
    let token = if target.kubernetes.is_some() { "" } else { token };
    output::print(&format!("{}{token} ({why})\n", target.place()))
}
