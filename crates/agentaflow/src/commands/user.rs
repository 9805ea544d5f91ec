//! `agentaflow user`: who may use a server.

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
use crate::nearest::not_there;
use crate::output;

/// Manage the users of a server; only its admins may
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    List(get::UsersArgs),
    Add(AddArgs),
    Set(SetArgs),
    Credit(CreditArgs),
    Remove(RemoveArgs),
}

/// Add a user; without --password-stdin an invitation is printed
#[derive(Debug, clap::Args)]
struct AddArgs {
    /// The name to log in with
    name: String,
    /// What the user may do
    #[arg(long, value_enum, default_value = "user")]
    role: RoleName,
    /// Allow jobs that run as plain processes of a node
    #[arg(long)]
    allow_processes: bool,
    /// The queue for jobs that do not name one
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,
    /// The most that may be spent in a calendar month, in dollars
    #[arg(long, value_name = "DOLLARS", value_parser = amount::dollars)]
    limit: Option<Dollars>,
    /// Jobs wait when the balance is used up
    #[arg(long)]
    prepaid: bool,
    /// Read the password from stdin, where it is not seen and not remembered
    #[arg(long)]
    password_stdin: bool,
    #[command(flatten)]
    connect: Connect,
}

/// Change what a user may do
#[derive(Debug, clap::Args)]
struct SetArgs {
    /// The user's name
    name: String,
    /// What the user may do
    #[arg(long, value_enum)]
    role: Option<RoleName>,
    /// May log in and use keys
    #[arg(long, value_name = "true|false")]
    active: Option<bool>,
    /// The queue for jobs that do not name one
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,
    /// The most that may be spent in a calendar month, in dollars
    #[arg(long, value_name = "DOLLARS", value_parser = amount::dollars)]
    limit: Option<Dollars>,
    /// Jobs wait when the balance is used up
    #[arg(long, value_name = "true|false")]
    prepaid: Option<bool>,
    /// Give a right beyond the role: `process` allows jobs that run as plain processes of a node
    #[arg(long, value_name = "RIGHT", value_parser = ["process"])]
    grant: Vec<String>,
    /// Take such a right back
    #[arg(long, value_name = "RIGHT", value_parser = ["process"])]
    revoke: Vec<String>,
    #[command(flatten)]
    connect: Connect,
}

/// Book money that a user paid in
#[derive(Debug, clap::Args)]
struct CreditArgs {
    /// The user's name
    name: String,
    /// Dollars
    #[arg(value_parser = amount::dollars)]
    amount: Dollars,
    /// What for
    #[arg(long)]
    note: Option<String>,
    #[command(flatten)]
    connect: Connect,
}

/// Lock a user out: what ran and what it cost stays on record
#[derive(Debug, clap::Args)]
struct RemoveArgs {
    /// The user's name
    name: String,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum RoleName {
    /// Everything
    Admin,
    /// Own jobs, and look at nodes and queues
    User,
    /// Look at everything, change nothing
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
    match &args.what {
        What::List(args) => get::users(args),
        What::Add(args) => add(args),
        What::Set(args) => set(args),
        What::Credit(args) => credit(args),
        What::Remove(args) => remove(args),
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
        let place = client.base().as_str().trim_end_matches('/');
        eprintln!(
            "`agentaflow login {place} --invitation` takes it and lets them choose a password"
        );
    }
    output::print(&match &user.invite {
        Some(invite) => format!(
            "user {} may sign up with this invitation, which is shown only once:\n{}\n",
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
    let rights = !args.grant.is_empty() || !args.revoke.is_empty();
    if update == UserUpdate::default() && !rights {
        return Err(usage("nothing is changed: say what, such as --limit 50 or --role viewer"));
    }
    block_on(async {
        let User { id, mut grants, .. } = find(&client, &args.name).await?;
        if rights {
            grants.extend(args.grant.iter().cloned());
            grants.sort();
            grants.dedup();
            grants.retain(|grant| !args.revoke.contains(grant));
            update.grants = Some(grants);
        }
        let user: User = client.put(&format!("/users/{id}")).body(&update).json().await?;
        output::print(&format!("user {} changed\n", user.username))
    })
}

fn credit(args: &CreditArgs) -> Result<()> {
    let client = args.connect.client()?;
    let credit = Credit { amount: args.amount, note: args.note.clone() };
    block_on(async {
        let id = find(&client, &args.name).await?.id;
        let user: User = client.post(&format!("/users/{id}/credit")).body(&credit).json().await?;
        output::print(&format!("user {} has a balance of {}\n", user.username, user.balance))
    })
}

fn remove(args: &RemoveArgs) -> Result<()> {
    let client = args.connect.client()?;
    block_on(async {
        let id = find(&client, &args.name).await?.id;
        let user: User = client.delete(&format!("/users/{id}")).json().await?;
        output::print(&format!("user {} is locked out\n", user.username))
    })
}

async fn find(client: &Client, name: &str) -> Result<User> {
    let users: Vec<User> = client.get("/users").json().await?;
    let found = users.iter().find(|user| user.username == name).cloned();
    found.ok_or_else(|| {
        let names: Vec<_> = users.iter().map(|user| user.username.clone()).collect();
        not_there("user", name, &names).into()
    })
}

/// Show who you are to the server
#[derive(Debug, clap::Args)]
pub(crate) struct WhoAmIArgs {
    /// How to print it
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
