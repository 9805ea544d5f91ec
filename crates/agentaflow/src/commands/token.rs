//! `agentaflow token`: API keys and registration tokens.

use std::time::Duration;

use agentaflow_api::Stamp;
use agentaflow_api::account::{ApiKey, ApiKeyCreate};
use agentaflow_api::ids::CredentialId;
use agentaflow_console::format::ago;
use anyhow::Result;

use crate::amount;
use crate::connect::{Connect, block_on};
use crate::list::{ListArgs, Listing};
use crate::listing::{left, right};
use crate::output::{self, Column};

/// Manage API keys, or registration tokens of GPU hosts with --registration
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: TokenCommand,
}

#[derive(Debug, clap::Subcommand)]
enum TokenCommand {
    Create(CreateArgs),
    List(ListTokens),
    Revoke(RevokeArgs),
}

/// Create a key and print it once
#[derive(Debug, clap::Args)]
struct CreateArgs {
    /// Key name [default for a registration token: its time of creation]
    #[arg(required_unless_present = "registration")]
    name: Option<String>,
    /// Days until the key expires [default: never]
    #[arg(long, value_name = "DAYS", value_parser = amount::positive::<u32>, conflicts_with = "expires")]
    days: Option<u32>,
    /// Time until the key expires, such as 1h or 30d [default: never]
    #[arg(long, value_name = "TIME", value_parser = amount::positive_duration)]
    expires: Option<Duration>,
    /// Registration token for GPU hosts instead of an API key
    #[arg(long, alias = "worker")]
    registration: bool,
    /// Number of nodes that a registration token may register [default: unlimited]
    #[arg(long, value_name = "N", value_parser = amount::positive::<u32>, requires = "registration")]
    uses: Option<u32>,
    #[command(flatten)]
    connect: Connect,
}

/// List keys without their secrets
#[derive(Debug, clap::Args)]
struct ListTokens {
    /// Registration tokens for GPU hosts instead of API keys
    #[arg(long, alias = "worker")]
    registration: bool,
    #[command(flatten)]
    list: ListArgs,
    #[command(flatten)]
    connect: Connect,
}

/// Revoke a key
#[derive(Debug, clap::Args)]
struct RevokeArgs {
    /// Key id from `agentaflow token list`
    #[arg(value_parser = credential_id)]
    id: CredentialId,
    /// Registration token for GPU hosts instead of an API key
    #[arg(long, alias = "worker")]
    registration: bool,
    #[command(flatten)]
    connect: Connect,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.command {
        TokenCommand::Create(args) => create(args),
        TokenCommand::List(args) => {
            let client = args.connect.client()?;
            let fetch = async || Ok(client.get(path(args.registration)).json().await?);
            block_on(async { args.list.show(&KEYS, fetch).await })
        }
        TokenCommand::Revoke(args) => {
            let client = args.connect.client()?;
            let path = format!("{}/{}", path(args.registration), args.id);
            let key: ApiKey = block_on(async { Ok(client.delete(&path).json().await?) })?;
            output::print(&format!("key `{}` revoked\n", key.name))
        }
    }
}

fn create(args: &CreateArgs) -> Result<()> {
    let client = args.connect.client()?;
    let unnamed = || format!("registration, {}", Stamp::now());
    let new = ApiKeyCreate {
        name: args.name.clone().unwrap_or_else(unnamed),
        expires_in_days: args.days,
        expires_in_seconds: args.expires.map(|time| time.as_secs().max(1)),
        uses: args.uses,
    };
    let key: ApiKey =
        block_on(async { Ok(client.post(path(args.registration)).body(&new).json().await?) })?;
    let text = key.key.as_ref().map(agentaflow_api::Secret::expose).unwrap_or_default();
    eprintln!("Store the key now; it is shown only once");
    output::print(&format!("{text}\n"))
}

fn credential_id(text: &str) -> Result<CredentialId, String> {
    text.parse().map_err(|_| "use the id from `agentaflow token list`".to_owned())
}

fn path(registration: bool) -> &'static str {
    if registration { "/registration-tokens" } else { "/auth/api-keys" }
}

fn state(key: &ApiKey, now: Stamp) -> String {
    match (key.expires_at, key.uses_left) {
        _ if key.revoked => "revoked".to_owned(),
        (Some(end), _) if end <= now => "expired".to_owned(),
        (_, None) => "valid".to_owned(),
        (_, Some(0)) => "used up".to_owned(),
        (_, Some(1)) => "valid, 1 use left".to_owned(),
        (_, Some(left)) => format!("valid, {left} uses left"),
    }
}

const KEYS: Listing<ApiKey> = Listing {
    columns: &KEY_COLUMNS,
    name: |key| key.id.to_string(),
    empty: "No keys found. Run `agentaflow token create NAME` to create one.",
};

const KEY_COLUMNS: [Column<ApiKey>; 6] = [
    right("ID", 0, |key| key.id.to_string()),
    left("NAME", 0, |key| key.name.clone()),
    left("PREFIX", 2, |key| format!("{}…", key.prefix)),
    left("STATE", 1, |key| state(key, Stamp::now())),
    right("CREATED", 3, |key| ago(key.created_at)),
    right("LAST USED", 2, |key| key.last_used_at.map_or_else(|| "never".to_owned(), ago)),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_expires_at_its_end() {
        let mut key = ApiKey { expires_at: Some(Stamp(1000)), ..ApiKey::default() };
        assert_eq!([999, 1000].map(|now| state(&key, Stamp(now))), ["valid", "expired"]);
        key.revoked = true;
        assert_eq!(state(&key, Stamp(1000)), "revoked");
    }
}
