//! What every handler can reach.

use std::net::IpAddr;
use std::ops::Deref;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use agentaflow_api::units::Stamp;

use super::pages::Pages;
use super::streams::Streams;
use crate::auth::{Auth, CookieNames, Site, cookie_names};
use crate::core::Core;
use crate::logs::LogStore;
use crate::settings::Settings;

/// The server as its handlers see it. Cheap to clone.
#[derive(Clone)]
pub struct App(Arc<Parts>);

/// The address that a request came from.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub IpAddr);

/// What every handler can reach.
#[derive(Debug)]
pub struct Parts {
    /// The way to the core.
    pub core: Core,
    /// Output of jobs.
    pub logs: Arc<LogStore>,
    /// Who is calling.
    pub auth: Auth,
    /// How the server is set up.
    pub settings: Arc<Settings>,
    /// What the server is called.
    pub site: Site,
    /// What its cookies are called.
    pub cookies: CookieNames,
    /// Ends all streams.
    pub stopping: CancellationToken,
    /// When the server was started.
    pub started: Stamp,
    /// Streams that each account holds open.
    pub(crate) streams: Streams,
    /// Bounds what lists of jobs take.
    pub(crate) pages: Pages,
}

impl Deref for App {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

impl std::fmt::Debug for App {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("App").field("site", &self.site).finish_non_exhaustive()
    }
}

impl App {
    /// For a server that listens at `site`.
    pub fn new(
        core: Core,
        logs: Arc<LogStore>,
        auth: Auth,
        settings: Arc<Settings>,
        site: Site,
    ) -> Self {
        let cookies = cookie_names(&site);
        Self(Arc::new(Parts {
            core,
            logs,
            auth,
            settings,
            site,
            cookies,
            stopping: CancellationToken::new(),
            started: Stamp::now(),
            streams: Streams::default(),
            pages: Pages::default(),
        }))
    }
}
