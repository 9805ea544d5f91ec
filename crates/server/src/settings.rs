//! How a server is set up.

use std::net::SocketAddr;
use std::path::PathBuf;

use agentaflow_engine::{MicroDollars, Policy, Price, Span};

/// Settings of a server. The command line fills them in.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where to listen.
    pub listen: SocketAddr,
    /// Where the database, the secrets and the logs are.
    pub data_dir: PathBuf,
    /// `postgres://…`, or none for a SQLite file in the data directory.
    pub database: Option<String>,
    /// Anybody may sign up.
    pub open_signup: bool,
    /// How work is placed.
    pub policy: Policy,
    /// Prices of nodes that name none and whose model is not in the catalogue.
    pub default_price: Price,
    /// How long a job whose owner's money is used up may go on after the warning.
    pub budget_grace: Span,
    /// Addresses (`host` or `host:port`) that agents may name as their push endpoint besides their own.
    pub push_allow: Vec<String>,
    /// Names under which browsers may reach the server, besides the address it listens on.
    pub public_hosts: Vec<String>,
    /// Requests a second for each account, and the burst.
    pub rate: (u32, u32),
    /// A notice shown with the state of the server, such as that GPUs are simulated.
    pub notice: Option<String>,
}

impl Settings {
    /// Settings for a server on one machine.
    pub fn new(listen: SocketAddr, data_dir: PathBuf) -> Self {
        Self {
            listen,
            data_dir,
            database: None,
            open_signup: false,
            policy: Policy::default(),
            default_price: Price {
                gpu_hour: MicroDollars(1_000_000),
                cpu_hour: MicroDollars(10_000),
                gib_hour: MicroDollars(2_000),
            },
            budget_grace: Span::minutes(5),
            push_allow: Vec::new(),
            public_hosts: Vec::new(),
            rate: (500, 2000),
            notice: None,
        }
    }
}
