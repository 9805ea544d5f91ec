//! `agentaflow login`: a context for a server, with a key of one's own.

use std::io::{self, IsTerminal as _, Read as _};

use agentaflow_api::account::{ApiKey, ApiKeyCreate, Login, Register, Tokens, User};
use agentaflow_api::client::Client;
use agentaflow_api::{Secret, Stamp};
use anyhow::{Context as _, Result};
use kube::config::Kubeconfig;

use crate::connect::{block_on, config};
use crate::context::{self, Contexts, Kubernetes, Target};
use crate::failure::usage;
use crate::output;

/// The longest password or token that is read.
const MOST: u64 = 64 << 10;

/// Remember a server or a cluster as a context, and use it from now on
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  agentaflow login https://gpus.example.com --user ada
  agentaflow login https://gpus.example.com --invitation
  agentaflow login https://gpus.example.com --token-stdin < token
  agentaflow login --kubernetes --namespace team-a --name lab")]
pub(crate) struct Args {
    /// Where the server is
    #[arg(value_name = "URL", required_unless_present = "kubernetes")]
    server: Option<String>,
    /// Log in with this name; the password is read from the terminal, or from stdin
    #[arg(long, value_name = "NAME", conflicts_with = "token_stdin")]
    user: Option<String>,
    /// Read a key (`agentaflow token create`) from stdin instead
    #[arg(long)]
    token_stdin: bool,
    /// Sign up with an invitation (`agentaflow user add`) and a password of your own: both are read from the terminal,
    /// or from stdin, each on a line
    #[arg(long, conflicts_with_all = ["user", "token_stdin"])]
    invitation: bool,
    /// A Kubernetes cluster: the current context of the kubeconfig, or --kube-context
    #[arg(long, conflicts_with_all = ["server", "user", "token_stdin", "invitation"])]
    kubernetes: bool,
    /// The context of the kubeconfig
    #[arg(long, value_name = "NAME", requires = "kubernetes")]
    kube_context: Option<String>,
    /// The namespace for work
    #[arg(short, long, value_name = "NAME", requires = "kubernetes")]
    namespace: Option<String>,
    /// Where the scheduler answers, if not through the API server
    #[arg(long, value_name = "URL", requires = "kubernetes")]
    scheduler: Option<String>,
    /// Name of the context [default: the host of the server, or `kubernetes`]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if args.kubernetes {
        // By its name: another one may be the current one tomorrow.
        let current = || Kubeconfig::read().ok()?.current_context;
        let kubernetes = Kubernetes {
            context: args.kube_context.clone().or_else(current),
            namespace: args.namespace.clone(),
            scheduler: args.scheduler.clone(),
            ..Kubernetes::default()
        };
        block_on(config(&kubernetes))?;
        let name = args.name.clone().or_else(|| args.kube_context.clone());
        let name = name.as_deref().unwrap_or("kubernetes");
        return remember(name, Target::cluster(kubernetes));
    }
    let Some(server) = &args.server else { return Err(usage("name a server's URL")) };
    let client = Client::new(server, None)?;
    let host = client.base().host_str().unwrap_or("server").to_owned();
    let token = if args.token_stdin {
        Secret(from_stdin()?)
    } else if args.invitation {
        let (invite, password) = invitation()?;
        block_on(sign_up(&client, invite, password)).context("cannot sign up")?
    } else {
        let Some(user) = &args.user else {
            return Err(usage(
                "say who you are with --user NAME, sign up with --invitation, or give a key with --token-stdin",
            ));
        };
        let password = Secret(password(user)?);
        block_on(key(&client, user, password)).context("cannot log in")?
    };
    let me = client.with_token(token.clone());
    let me: User =
        block_on(async { Ok(me.get("/auth/me").json().await?) }).context("cannot log in")?;
    eprintln!("logged in to {host} as {}", me.username);
    remember(args.name.as_ref().unwrap_or(&host), Target::new(server.clone(), Some(token)))
}

/// Becomes the user whom an invitation names, and gets a key.
async fn sign_up(client: &Client, invite: Secret, password: Secret) -> Result<Secret> {
    let invite = Some(invite);
    let new = Register { password: password.clone(), invite, ..Register::default() };
    let user: User = client.post("/auth/register").body(&new).json().await?;
    key(client, &user.username, password).await
}

/// A key that lasts, made with the tokens of a login that do not.
async fn key(client: &Client, user: &str, password: Secret) -> Result<Secret> {
    let login = Login { username: user.to_owned(), password, cookie: false };
    let tokens: Tokens = client.post("/auth/login").body(&login).json().await?;
    let client = client.with_token(tokens.access_token);
    let new = ApiKeyCreate {
        name: format!("command line, {}", Stamp::now()),
        expires_in_days: Some(365),
    };
    let key: ApiKey = client.post("/auth/api-keys").body(&new).json().await?;
    key.key.context("the server made a key and did not show it")
}

fn remember(name: &str, target: Target) -> Result<()> {
    let path = context::file()?;
    let mut contexts = Contexts::read(&path)?;
    let place = target.place();
    contexts.known.insert(name.to_owned(), target);
    contexts.current = Some(name.to_owned());
    contexts.write(&path)?;
    output::print(&format!("`{name}` is the current context: {place}\n"))
}

/// A line from stdin that is not shown.
pub(super) fn from_stdin() -> Result<String> {
    let mut text = String::new();
    let read = io::stdin().take(MOST).read_to_string(&mut text);
    read.context("cannot read stdin")?;
    let text = text.trim();
    if text.is_empty() { Err(usage("there is nothing on stdin")) } else { Ok(text.to_owned()) }
}

/// The code of an invitation and a new password: typed without being shown, or from stdin, each on a line.
fn invitation() -> Result<(Secret, Secret)> {
    if !io::stdin().is_terminal() {
        let text = from_stdin()?;
        let Some((invite, password)) = text.split_once('\n') else {
            return Err(usage("stdin must hold two lines: the invitation and the new password"));
        };
        return Ok((Secret(invite.trim().to_owned()), Secret(password.trim().to_owned())));
    }
    let invite = hidden("Invitation: ").context("cannot read the invitation")?;
    let password = hidden("New password: ").context("cannot read the password")?;
    let again = hidden("The same again: ").context("cannot read the password")?;
    if password != again {
        return Err(usage("the two passwords differ; nothing was done"));
    }
    Ok((Secret(invite.trim().to_owned()), Secret(password)))
}

/// The password of a user: typed without being shown, or from stdin.
fn password(user: &str) -> Result<String> {
    if !io::stdin().is_terminal() {
        return from_stdin();
    }
    hidden(&format!("Password of {user}: ")).context("cannot read the password")
}

/// Asks for a line that is not shown.
fn hidden(question: &str) -> io::Result<String> {
    eprint!("{question}");
    let typed = hidden_line();
    eprintln!();
    typed
}

/// Reads a line from the terminal with its echo off.
fn hidden_line() -> io::Result<String> {
    use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
    let stdin = io::stdin();
    let before = tcgetattr(&stdin)?;
    let mut quiet = before.clone();
    quiet.local_modes.remove(LocalModes::ECHO);
    tcsetattr(&stdin, OptionalActions::Now, &quiet)?;
    let mut line = String::new();
    let read = stdin.read_line(&mut line);
    tcsetattr(&stdin, OptionalActions::Now, &before)?;
    read?;
    Ok(line.trim_end_matches(['\n', '\r']).to_owned())
}
