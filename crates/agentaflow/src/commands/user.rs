//! `agentaflow user` and `agentaflow whoami`: users of a server.

use agentaflow_api::account::{Role, User, UserCreate, UserUpdate};
use agentaflow_api::billing::Credit;
use agentaflow_api::client::Client;
use agentaflow_api::{Dollars, Secret};
use anyhow::{Context as _, Result};

use super::get;
use crate::amount;
use crate::connect::{Connect, block_on};
use crate::failure::usage;
use crate::list::OneFormat;
use crate::nearest::not_found;
use crate::output;

/// Manage the users of a server (admins only)
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: UserCommand,
}

#[derive(Debug, clap::Subcommand)]
enum UserCommand {
    List(get::UsersArgs),
    Add(AddArgs),
    Set(SetArgs),
    Credit(CreditArgs),
    Remove(RemoveArgs),
}

/// Add a user and print an invitation, unless --password-stdin is given
#[derive(Debug, clap::Args)]
struct AddArgs {
    /// User name
    name: String,
    /// Role
    #[arg(long, value_enum, default_value = "user")]
    role: RoleName,
    /// Allow jobs without a container
    #[arg(long)]
    allow_processes: bool,
    /// Default queue
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,
    /// Spending limit per calendar month in dollars
    #[arg(long, value_name = "DOLLARS", value_parser = amount::dollars)]
    limit: Option<Dollars>,
    /// Keep jobs pending when the balance is exhausted
    #[arg(long)]
    prepaid: bool,
    /// Read the password from stdin
    #[arg(long)]
    password_stdin: bool,
    #[command(flatten)]
    connect: Connect,
}

/// Update a user
#[derive(Debug, clap::Args)]
struct SetArgs {
    /// User name
    name: String,
    /// Role
    #[arg(long, value_enum)]
    role: Option<RoleName>,
    /// Allow login and API keys
    #[arg(long, value_name = "true|false")]
    active: Option<bool>,
    /// Default queue
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,
    /// Spending limit per calendar month in dollars
    #[arg(long, value_name = "DOLLARS", value_parser = amount::dollars)]
    limit: Option<Dollars>,
    /// Keep jobs pending when the balance is exhausted
    #[arg(long, value_name = "true|false")]
    prepaid: Option<bool>,
    /// Add a grant; `process` allows jobs without a container
    #[arg(long, value_name = "GRANT", value_parser = ["process"])]
    grant: Vec<String>,
    /// Remove a grant
    #[arg(long, value_name = "GRANT", value_parser = ["process"])]
    revoke: Vec<String>,
    #[command(flatten)]
    connect: Connect,
}

/// Add credit to the balance of a user
#[derive(Debug, clap::Args)]
struct CreditArgs {
    /// User name
    name: String,
    /// Amount in dollars
    #[arg(value_parser = amount::dollars)]
    amount: Dollars,
    /// Note for the ledger
    #[arg(long)]
    note: Option<String>,
    #[command(flatten)]
    connect: Connect,
}

/// Deactivate a user; jobs and costs stay on record
#[derive(Debug, clap::Args)]
struct RemoveArgs {
    /// User name
    name: String,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum RoleName {
    /// Full access
    Admin,
    /// Own jobs; nodes and queues read-only
    User,
    /// Read-only
    Viewer,
}

impl RoleName {
    fn role(self) -> Role {
        match self {
            Self::Admin => Role::Admin,
            Self::User => Role::User,
            Self::Viewer => Role::Viewer,
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.command {
        UserCommand::List(args) => get::users(args),
        UserCommand::Add(args) => add(args),
        UserCommand::Set(args) => set(args),
        UserCommand::Credit(args) => credit(args),
        UserCommand::Remove(args) => remove(args),
    }
}

fn add(args: &AddArgs) -> Result<()> {
    let client = args.connect.client()?;
    let password =
        if args.password_stdin { Some(Secret(super::login::from_stdin()?)) } else { None };
    let new = UserCreate {
        username: args.name.clone(),
        password,
        role: Some(args.role.role()),
        grants: if args.allow_processes { vec!["process".to_owned()] } else { Vec::new() },
        default_queue: args.queue.clone(),
        spending_limit: args.limit,
        prepaid: args.prepaid,
        ..UserCreate::default()
    };
    let user: User = block_on(async { Ok(client.post("/users").body(&new).json().await?) })
        .with_context(|| format!("cannot add user {}", args.name))?;
    if user.invite.is_some() {
        let address = client.base().as_str().trim_end_matches('/');
        eprintln!("To sign up: agentaflow login {address} --invitation");
    }
    output::print(&match &user.invite {
        Some(invite) => format!(
            "user {} added; invitation, shown only once:\n{}\n",
            user.username,
            invite.expose()
        ),
        None => format!("user {} added\n", user.username),
    })
}

fn set(args: &SetArgs) -> Result<()> {
    let client = args.connect.client()?;
    let mut update = UserUpdate {
        role: args.role.map(RoleName::role),
        active: args.active,
        default_queue: args.queue.clone(),
        spending_limit: args.limit,
        prepaid: args.prepaid,
        ..UserUpdate::default()
    };
    let grants_change = !args.grant.is_empty() || !args.revoke.is_empty();
    if update == UserUpdate::default() && !grants_change {
        return Err(usage("nothing to update: use an option such as --limit 50 or --role viewer"));
    }
    block_on(async {
        let User { id, mut grants, .. } = find(&client, &args.name).await?;
        if grants_change {
            grants.extend(args.grant.iter().cloned());
            grants.sort();
            grants.dedup();
            grants.retain(|grant| !args.revoke.contains(grant));
            update.grants = Some(grants);
        }
        let user: User = client.put(&format!("/users/{id}")).body(&update).json().await?;
        output::print(&format!("user {} updated\n", user.username))
    })
}

fn credit(args: &CreditArgs) -> Result<()> {
    let client = args.connect.client()?;
    let credit = Credit { amount: args.amount, note: args.note.clone() };
    block_on(async {
        let id = find(&client, &args.name).await?.id;
        let user: User = client.post(&format!("/users/{id}/credit")).body(&credit).json().await?;
        output::print(&format!("user {} updated, balance {}\n", user.username, user.balance))
    })
}

fn remove(args: &RemoveArgs) -> Result<()> {
    let client = args.connect.client()?;
    block_on(async {
        let id = find(&client, &args.name).await?.id;
        let user: User = client.delete(&format!("/users/{id}")).json().await?;
        output::print(&format!("user {} deactivated\n", user.username))
    })
}

async fn find(client: &Client, name: &str) -> Result<User> {
    let users: Vec<User> = client.get("/users").json().await?;
    let found = users.iter().find(|user| user.username == name).cloned();
    found.ok_or_else(|| {
        let names: Vec<_> = users.iter().map(|user| user.username.clone()).collect();
        not_found("user", name, &names).into()
    })
}

/// Show the current user
#[derive(Debug, clap::Args)]
pub(crate) struct WhoAmIArgs {
    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "text")]
    output: OneFormat,
    #[command(flatten)]
    connect: Connect,
}

pub(crate) fn who_am_i(args: &WhoAmIArgs) -> Result<()> {
    let client = args.connect.client()?;
    let user: User = block_on(async { Ok(client.get("/auth/me").json().await?) })?;
    let role = format!("{:?}", user.role).to_lowercase();
    args.output.print(&user, |user| Ok(format!("{} ({role})\n", user.username)))
}
