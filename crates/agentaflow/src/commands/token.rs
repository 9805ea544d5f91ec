//! `agentaflow token`: keys for people's programs and for machines that join.

use agentaflow_api::Stamp;
use agentaflow_api::account::{ApiKey, ApiKeyCreate};
use agentaflow_console::format::ago;
use anyhow::Result;

use crate::amount;
use crate::connect::{Connect, block_on};
use crate::list::{Kind, ListArgs};
use crate::listing::{left, right};
use crate::output::{self, Column};

/// Make, list or revoke keys: your own, or --worker tokens with which GPU hosts join
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    Create(CreateArgs),
    List(ListTokens),
    Revoke(RevokeArgs),
}

/// Make a key and print it, once
#[derive(Debug, clap::Args)]
struct CreateArgs {
    /// What it is for
    name: String,
    /// Days until it ends [default: never]
    #[arg(long, value_name = "DAYS", value_parser = amount::some::<u32>)]
    days: Option<u32>,
    /// A registration token for GPU hosts instead of a key of your own
    #[arg(long)]
    worker: bool,
    #[command(flatten)]
    connect: Connect,
}

/// List keys, without the keys themselves
#[derive(Debug, clap::Args)]
struct ListTokens {
    /// Registration tokens for GPU hosts instead of your own keys
    #[arg(long)]
    worker: bool,
    #[command(flatten)]
    list: ListArgs,
    #[command(flatten)]
    connect: Connect,
}

/// Make a key void
#[derive(Debug, clap::Args)]
struct RevokeArgs {
    /// Its number, which `token list` shows
    #[arg(value_parser = number)]
    id: i64,
    /// A registration token for GPU hosts instead of a key of your own
    #[arg(long)]
    worker: bool,
    #[command(flatten)]
    connect: Connect,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.what {
        What::Create(args) => create(args),
        What::List(args) => {
            let client = args.connect.client()?;
            let fetch = async || Ok(client.get(path(args.worker)).json().await?);
            block_on(async { args.list.show(&KEYS, fetch).await })
        }
        What::Revoke(args) => {
            let client = args.connect.client()?;
            let path = format!("{}/{}", path(args.worker), args.id);
            let key: ApiKey = block_on(async { Ok(client.delete(&path).json().await?) })?;
            output::print(&format!("`{}` is void\n", key.name))
        }
    }
}

fn create(args: &CreateArgs) -> Result<()> {
    let client = args.connect.client()?;
    let new = ApiKeyCreate { name: args.name.clone(), expires_in_days: args.days };
    let key: ApiKey =
        block_on(async { Ok(client.post(path(args.worker)).body(&new).json().await?) })?;
    let text = key.key.as_ref().map(agentaflow_api::Secret::expose).unwrap_or_default();
    eprintln!("this is shown only once; whoever has it can do what it allows");
    output::print(&format!("{text}\n"))
}

fn number(text: &str) -> Result<i64, String> {
    text.parse().map_err(|_| "write its number, which `agentaflow token list` shows".to_owned())
}

fn path(worker: bool) -> &'static str {
    if worker { "/registration-tokens" } else { "/auth/api-keys" }
}

fn state(key: &ApiKey, now: Stamp) -> &'static str {
    match key.expires_at {
        _ if key.revoked => "revoked",
        Some(end) if end <= now => "expired",
        _ => "valid",
    }
}

const KEYS: Kind<ApiKey> = Kind {
    columns: &KEY_COLUMNS,
    name: |key| key.id.to_string(),
    none: "There are no keys; `agentaflow token create NAME` makes one.",
};

const KEY_COLUMNS: [Column<ApiKey>; 6] = [
    right("ID", 0, |key| key.id.to_string()),
    left("NAME", 0, |key| key.name.clone()),
    left("BEGINS", 2, |key| format!("{}…", key.prefix)),
    left("STATE", 1, |key| state(key, Stamp::now()).to_owned()),
    right("MADE", 3, |key| ago(key.created_at)),
    right("USED", 2, |key| key.last_used_at.map_or_else(|| "never".to_owned(), ago)),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_whose_time_is_over_is_not_called_valid() {
        let mut key = ApiKey { expires_at: Some(Stamp(1000)), ..ApiKey::default() };
        assert_eq!([999, 1000].map(|now| state(&key, Stamp(now))), ["valid", "expired"]);
        key.revoked = true;
        assert_eq!(state(&key, Stamp(1000)), "revoked");
    }
}
