//! Shared state of the handlers.

use std::net::IpAddr;
use std::ops::Deref;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use agentaflow_api::units::Stamp;
use agentaflow_history::History;

use super::pages::Pages;
use super::streams::Streams;
use crate::alerts::AlertService;
use crate::auth::{Auth, CookieNames, Site, cookie_names};
use crate::core::Core;
use crate::logs::LogStore;
use crate::settings::Settings;

/// Handle of the server for its handlers. Cheap to clone.
#[derive(Clone)]
pub struct App(Arc<Parts>);

/// Client address of a request.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub IpAddr);

/// Shared state of all handlers.
#[derive(Debug)]
pub struct Parts {
    pub core: Core,
    pub alerts: AlertService,
    pub logs: Arc<LogStore>,
    pub auth: Auth,
    pub settings: Arc<Settings>,
    /// None if the server keeps no history.
    pub(crate) history: Option<Arc<History>>,
    /// Names and addresses of the server.
    pub site: Site,
    pub cookies: CookieNames,
    /// Cancelled when the server stops; ends all streams.
    pub stopping: CancellationToken,
    /// Start time of the server.
    pub started: Stamp,
    /// Open streams of each account.
    pub(crate) streams: Streams,
    /// Bounds the memory of job lists.
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
    /// State of a server with the names and addresses in `site`.
    pub fn new(
        core: Core,
        logs: Arc<LogStore>,
        auth: Auth,
        settings: Arc<Settings>,
        site: Site,
        history: Option<Arc<History>>,
    ) -> Self {
        let cookies = cookie_names(&site);
        let alerts = AlertService::new(core.clone(), site.certificates.clone());
        Self(Arc::new(Parts {
            core,
            alerts,
            logs,
            auth,
            settings,
            history,
            site,
            cookies,
            stopping: CancellationToken::new(),
            started: Stamp::now(),
            streams: Streams::default(),
            pages: Pages::default(),
        }))
    }
}
