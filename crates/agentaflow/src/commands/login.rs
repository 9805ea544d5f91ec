//! `agentaflow login`: creates a context with an API key.

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
use crate::trust::TrustArgs;

/// Maximum length of a password or token.
const MAX_SECRET_BYTES: u64 = 64 << 10;

/// Log in to a server or cluster, and make it the current context
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  agentaflow login https://gpus.example.com --user ada
  agentaflow login https://gpus.example.com --invitation
  agentaflow login https://gpus.example.com --token-stdin < token
  agentaflow login https://head:8000 --user ada --server-fingerprint sha256:…
  agentaflow login --kubernetes --namespace team-a --name lab")]
pub(crate) struct Args {
    /// Server URL
    #[arg(value_name = "URL", required_unless_present = "kubernetes")]
    server: Option<String>,
    /// User name; the password is read from the terminal or stdin
    #[arg(long, value_name = "NAME", conflicts_with = "token_stdin")]
    user: Option<String>,
    /// Read an API key (`agentaflow token create`) from stdin
    #[arg(long)]
    token_stdin: bool,
    /// Sign up with an invitation (`agentaflow user add`) and a new password, read from the terminal, or from two lines
    /// of stdin
    #[arg(long, conflicts_with_all = ["user", "token_stdin"])]
    invitation: bool,
    /// Use a Kubernetes cluster: the current context of the kubeconfig, or --kube-context
    #[arg(long, conflicts_with_all = ["server", "user", "token_stdin", "invitation"])]
    kubernetes: bool,
    /// Context of the kubeconfig
    #[arg(long, value_name = "NAME", requires = "kubernetes")]
    kube_context: Option<String>,
    /// Namespace of jobs
    #[arg(short, long, value_name = "NAME", requires = "kubernetes")]
    namespace: Option<String>,
    /// Scheduler URL [default: through the API server]
    #[arg(long, value_name = "URL", requires = "kubernetes")]
    scheduler: Option<String>,
    /// Context name [default: the host of the server, or `kubernetes`]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    #[command(flatten)]
    trust: TrustArgs,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if args.kubernetes {
        // By name, since the current context of the kubeconfig may change.
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
        return save_context(name, Target::cluster(kubernetes));
    }
    let Some(server) = &args.server else { return Err(usage("missing server URL")) };
    let trust = args.trust.chosen()?.confirm(server)?;
    let mut target = Target::new(server.clone(), None).trusting(trust);
    let client = target.client()?;
    let host = client.base().host_str().unwrap_or("server").to_owned();
    let token = if args.token_stdin {
        Secret(from_stdin()?)
    } else if args.invitation {
        let (invite, password) = invitation()?;
        block_on(sign_up(&client, invite, password)).context("cannot sign up")?
    } else {
        let Some(user) = &args.user else {
            return Err(usage(
                "missing credentials: use --user NAME, --invitation or --token-stdin",
            ));
        };
        let password = Secret(password(user)?);
        // An earlier token, even an expired one, tells the server that the user logged in from here before.
        let known = earlier_token(server)?.map(|token| client.with_token(token));
        let client = known.as_ref().unwrap_or(&client);
        block_on(create_key(client, user, password)).context("cannot log in")?
    };
    let me = client.with_token(token.clone());
    let me: User =
        block_on(async { Ok(me.get("/auth/me").json().await?) }).context("cannot log in")?;
    eprintln!("Logged in to {host} as {}", me.username);
    target.token = Some(token);
    save_context(args.name.as_ref().unwrap_or(&host), target)
}

/// Token of a context of this server.
fn earlier_token(server: &str) -> Result<Option<Secret>> {
    let contexts = Contexts::read(&context::file()?)?;
    let mut of_server = contexts.known.values().filter(|target| target.server == server);
    Ok(of_server.find_map(|target| target.token.clone()))
}

/// Registers the invited user and creates a key.
async fn sign_up(client: &Client, invite: Secret, password: Secret) -> Result<Secret> {
    let invite = Some(invite);
    let new = Register { password: password.clone(), invite, ..Register::default() };
    let user: User = client.post("/auth/register").body(&new).json().await?;
    create_key(client, &user.username, password).await
}

/// Logs in and creates an API key, which outlives the access token.
async fn create_key(client: &Client, user: &str, password: Secret) -> Result<Secret> {
    let login = Login { username: user.to_owned(), password, ..Login::default() };
    let tokens: Tokens = client.post("/auth/login").body(&login).json().await?;
    let client = client.with_token(tokens.access_token);
    let new = ApiKeyCreate {
        name: format!("command line, {}", Stamp::now()),
        expires_in_days: Some(365),
        ..ApiKeyCreate::default()
    };
    let key: ApiKey = client.post("/auth/api-keys").body(&new).json().await?;
    key.key.context("the server did not return the new key")
}

fn save_context(name: &str, target: Target) -> Result<()> {
    let path = context::file()?;
    let mut contexts = Contexts::read(&path)?;
    let description = target.description();
    contexts.known.insert(name.to_owned(), target);
    contexts.current = Some(name.to_owned());
    contexts.write(&path)?;
    output::print(&format!("Switched to context `{name}`: {description}\n"))
}

/// Reads a secret from stdin.
pub(super) fn from_stdin() -> Result<String> {
    let mut text = String::new();
    let read = io::stdin().take(MAX_SECRET_BYTES).read_to_string(&mut text);
    read.context("cannot read stdin")?;
    let text = text.trim();
    if text.is_empty() { Err(usage("stdin is empty")) } else { Ok(text.to_owned()) }
}

/// Reads the invitation code and the new password from the terminal without echo, or from two lines of stdin.
fn invitation() -> Result<(Secret, Secret)> {
    if !io::stdin().is_terminal() {
        let text = from_stdin()?;
        let Some((invite, password)) = text.split_once('\n') else {
            return Err(usage("stdin must have two lines: the invitation and the new password"));
        };
        return Ok((Secret(invite.trim().to_owned()), Secret(password.trim().to_owned())));
    }
    let invite = hidden("Invitation: ").context("cannot read the invitation")?;
    let password = hidden("New password: ").context("cannot read the password")?;
    let again = hidden("Repeat password: ").context("cannot read the password")?;
    if password != again {
        return Err(usage("the passwords differ"));
    }
    Ok((Secret(invite.trim().to_owned()), Secret(password)))
}

/// Reads a password from the terminal without echo, or from stdin.
fn password(user: &str) -> Result<String> {
    if !io::stdin().is_terminal() {
        return from_stdin();
    }
    hidden(&format!("Password of {user}: ")).context("cannot read the password")
}

/// Prompts for a line without echo.
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
