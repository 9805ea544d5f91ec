//! Settings of a server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use agentaflow_alerts::Config as AlertConfig;
use agentaflow_dashboard::Dashboard;
use agentaflow_engine::{MicroDollars, Policy, Price, Span};
use agentaflow_otlp::Collector;

use ipnet::IpNet;

use crate::auth::STRANGER_TRIES;
use crate::core::WallClock;
use crate::retention::Retention;
use crate::tls::Tls;

/// Default size of the history: 30 days of 1,000 GPUs, and of as many jobs.
pub const HISTORY_BYTES: u64 = 400 << 20;

/// Settings of a server, from the command line.
#[derive(Clone, Debug)]
pub struct Settings {
    pub listen: SocketAddr,
    /// None serves plain HTTP, which beyond loopback requires `insecure`.
    pub tls: Option<Tls>,
    /// Permits plain HTTP on an address that other machines can reach.
    pub insecure: bool,
    /// Directory of the database, the secrets and the logs.
    pub data_dir: PathBuf,
    /// `postgres://…`, or none for a SQLite file in the data directory.
    pub database: Option<String>,
    /// Users may register without an invitation.
    pub open_signup: bool,
    pub policy: Policy,
    /// Prices of nodes without a price whose GPU model is not in the catalogue.
    pub default_price: Price,
    /// Time for which an agent may run leased jobs without an answered heartbeat; at least two heartbeat intervals. The
    /// server requeues the jobs of a silent node only after it.
    pub lease: Duration,
    /// Time within which a connected agent confirms a task; it does so before it pulls an image.
    pub confirmation_timeout: Duration,
    /// Time between the warning about an exhausted budget and the stop of the job.
    pub budget_grace: Span,
    /// Addresses (`host` or `host:port`) that agents may name as their push endpoint besides their own.
    pub push_allow: Vec<String>,
    /// Host names that browsers may use in addition to the listen address.
    pub public_hosts: Vec<String>,
    /// Proxies whose `X-Forwarded-For` and `Forwarded` headers name the client.
    pub trusted_proxies: Vec<IpNet>,
    /// Requests a second for each account, and the burst.
    pub rate: (u32, u32),
    /// Password tries of one user a second, and the burst, for all clients without a device or session of the user.
    pub stranger_tries: (f64, f64),
    /// Limits of stored data.
    pub retention: Retention,
    /// Maximum bytes of the history of readings; 0 keeps none.
    pub history_bytes: u64,
    /// Alert rules and sinks.
    pub alerts: AlertConfig,
    /// Notice in the state of the server, for example about simulated GPUs.
    pub notice: Option<String>,
    /// None serves the plain start page instead.
    pub dashboard: Option<Dashboard>,
    /// Receiver of traces; none exports nothing.
    pub traces: Option<Collector>,
    /// Source of the time at the start of the server.
    pub wall_clock: WallClock,
}

impl Settings {
    /// Settings for a server on one machine.
    pub fn new(listen: SocketAddr, data_dir: PathBuf) -> Self {
        Self {
            listen,
            tls: None,
            insecure: false,
            data_dir,
            database: None,
            open_signup: false,
            policy: Policy::default(),
            default_price: Price {
                gpu_hour: MicroDollars(1_000_000),
                cpu_hour: MicroDollars(10_000),
                gib_hour: MicroDollars(2_000),
            },
            lease: Duration::from_mins(5),
            confirmation_timeout: Duration::from_mins(2),
            budget_grace: Span::minutes(5),
            push_allow: Vec::new(),
            public_hosts: Vec::new(),
            trusted_proxies: Vec::new(),
            rate: (500, 2000),
            stranger_tries: STRANGER_TRIES,
            retention: Retention::default(),
            history_bytes: HISTORY_BYTES,
            alerts: AlertConfig::default(),
            notice: None,
            dashboard: None,
            traces: None,
            wall_clock: WallClock::default(),
        }
    }
}
