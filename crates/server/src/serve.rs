//! Start and stop of a server: port, data directory, store, core, first users and keys.

mod addresses;
mod bootstrap;
mod connections;
mod forwarded;
mod port;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use agentaflow_api::client::Fingerprint;
use agentaflow_api::units::Secret;

use connections::ConnectionContext;
use forwarded::TrustedProxies;

use crate::alerts::AlertService;
use crate::api_error::ApiError;
use crate::auth::{Auth, JwtKeys, PasswordTries, Site};
use crate::core::Core;
use crate::history;
use crate::http::{App, service};
use crate::logs::LogStore;
use crate::push;
use crate::retention;
use crate::secrets::{Keyring, SecretError};
use crate::settings::Settings;
use crate::store::{self, StoreError};
use crate::tls::{Certificates, TlsError};
use crate::traces;

#[derive(Debug, Error)]
pub enum StartError {
    /// Another process has the port. The message names it if possible.
    #[error("{0}")]
    PortInUse(String),
    #[error("cannot listen on {listen}; choose another address with `--listen ADDR:PORT`")]
    Listen { listen: SocketAddr, source: std::io::Error },
    #[error("cannot use the data directory {}; choose another with `--data-dir DIR`", path.display())]
    DataDir { path: PathBuf, source: std::io::Error },
    /// The data directory belongs to another user, who could read and replace its files.
    #[error(
        "the data directory {path} belongs to user id {owner}, not to the user of this process \
         ({us}); run `chown -R {us} {path}`, or choose another with `--data-dir DIR`",
        path = path.display()
    )]
    NotOurs {
        path: PathBuf,
        owner: u32,
        /// User id of this process.
        us: u32,
    },
    /// Tokens would cross the network in the clear.
    #[error(
        "other machines can reach {0}, and plain HTTP would show them tokens and jobs; use \
         `--tls-cert FILE --tls-key FILE` or `--tls-self-signed`, or accept it with `--insecure`, for example behind a \
         proxy with TLS"
    )]
    Plain(SocketAddr),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("cannot create the first users and keys")]
    Bootstrap(#[source] ApiError),
}

#[derive(Debug)]
pub struct Running {
    /// Listen address with the actual port.
    pub addr: SocketAddr,
    pub core: Core,
    pub alerts: AlertService,
    pub logs: Arc<LogStore>,
    /// The key in the file `admin-token`.
    pub admin_token: Secret,
    /// The token in the file `registration-token`.
    pub registration_token: Secret,
    /// One-time login of a browser.
    pub browser_link: Secret,
    /// Fingerprint for agents and users to pin; none for plain HTTP.
    pub fingerprint: Option<Fingerprint>,
    /// Warnings for the operator.
    pub warnings: Vec<String>,
    stopping: CancellationToken,
    server: JoinHandle<()>,
}

impl Running {
    pub fn address(&self) -> SocketAddr {
        self.addr
    }

    /// Address for programs on this machine: `http://127.0.0.1:8000`.
    pub fn url(&self) -> String {
        local_url(self.addr, self.fingerprint.is_some())
    }

    /// Returns when another server has taken over the database.
    pub async fn fatal(&self) {
        self.core.fatal().cancelled().await;
    }

    /// Accepts no new requests, ends streams, finishes open requests and closes the store, within a few seconds.
    pub async fn stop(self) {
        self.stopping.cancel();
        if self.server.await.is_err() {
            tracing::error!("Server panicked");
        }
        self.core.stop().await;
    }
}

/// Starts a server. It binds the port first, so that nothing changes if the port is in use.
pub async fn start(settings: Settings) -> Result<Running, StartError> {
    if settings.tls.is_none() && !settings.insecure && !settings.listen.ip().is_loopback() {
        return Err(StartError::Plain(settings.listen));
    }
    let listener = port::bind(settings.listen).await?;
    let addr = listener
        .local_addr()
        .map_err(|source| StartError::Listen { listen: settings.listen, source })?;
    let settings = Arc::new(settings);
    let data = settings.data_dir.clone();
    prepare(&data)?;
    let certificates = certificates(&settings)?;
    let tls = certificates.as_ref().map(Certificates::server_config).transpose()?;
    let store = store::open(&settings).await?;
    let secrets = Arc::new(Keyring::load(&data.join("secret-key"))?);
    let jwt = JwtKeys::new(&bootstrap::jwt_key(&data)?);
    let (core, to_push) = Core::start(settings.clone(), store, secrets.clone()).await?;
    // Without its files the server may have the wrong data directory: keys of the right one stay valid.
    let lost_key = secrets.is_new() && core.directory(|directory| !directory.users.is_empty());
    let first = bootstrap::first_keys(&core, &data, !lost_key).await?;
    let link = bootstrap::browser_code(&core, first.admin).await.map_err(StartError::Bootstrap)?;
    let logs = Arc::new(LogStore::new(data.join("logs")));
    set_aside_unknown_logs(&logs, &core);
    let public_hosts = settings.public_hosts.clone();
    let site = Site { listen: addr, public_hosts, certificates: certificates.clone() };
    let mut auth = Auth::new(jwt, settings.rate);
    auth.password_tries = PasswordTries::new(settings.stranger_tries);
    let proxies = TrustedProxies::new(settings.trusted_proxies.clone());
    let keep = settings.retention;
    let history = history::open(&data, settings.history_bytes);
    let app = App::new(core.clone(), logs.clone(), auth, settings, site, history.clone());
    let (stopping, alerts) = (app.stopping.clone(), app.alerts.clone());
    if let Some(history) = history {
        tokio::spawn(history::run(core.clone(), history, stopping.clone()));
    }
    tokio::spawn(retention::run(core.clone(), logs.clone(), keep, stopping.clone()));
    tokio::spawn(alerts.clone().run(stopping.clone()));
    tokio::spawn(push::run(core.clone(), to_push, stopping.clone()));
    if let Some(collector) = core.settings().traces.clone() {
        tokio::spawn(traces::run(core.clone(), collector, stopping.clone()));
    }
    let context = ConnectionContext {
        tls: tls.map(TlsAcceptor::from),
        proxies: Arc::new(proxies),
        site: service(app),
    };
    let fingerprint = certificates.as_ref().map(|own| own.fingerprint());
    if let Some(certificates) = certificates {
        tokio::spawn(certificates.watch(stopping.clone()));
    }
    let server = tokio::spawn(connections::serve(listener, context, stopping.clone()));
    let url = local_url(addr, fingerprint.is_some());
    Ok(Running {
        addr,
        core,
        alerts,
        logs,
        admin_token: first.admin_token,
        registration_token: first.registration_token,
        browser_link: Secret(format!("{url}/auth/link?code={}", link.expose())),
        warnings: warnings(addr, fingerprint.is_some(), lost_key.then(|| secrets.path())),
        fingerprint,
        stopping,
        server,
    })
}

fn set_aside_unknown_logs(logs: &LogStore, core: &Core) {
    match logs.set_aside_after(core.last_job()) {
        Ok(0) => {}
        Ok(jobs) => tracing::warn!(
            jobs,
            "The database does not know some jobs that have logs, as after the restore of a backup; their logs are in \
             `logs/unknown-…` of the data directory"
        ),
        Err(error) => tracing::error!(%error, "Cannot move logs of unknown jobs"),
    }
}

/// Creates the data directory with access for its owner only.
fn prepare(path: &Path) -> Result<(), StartError> {
    use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
    let failed = |source| StartError::DataDir { path: path.to_owned(), source };
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
    let found = std::fs::metadata(path).map_err(failed)?;
    let us = rustix::process::geteuid().as_raw();
    if found.uid() != us {
        return Err(StartError::NotOurs { path: path.to_owned(), owner: found.uid(), us });
    }
    let mut rights = found.permissions();
    if rights.mode() & 0o077 != 0 {
        rights.set_mode(0o700);
        std::fs::set_permissions(path, rights).map_err(failed)?;
    }
    Ok(())
}

/// Reads or creates the certificate of a server with TLS.
fn certificates(settings: &Settings) -> Result<Option<Arc<Certificates>>, TlsError> {
    let Some(tls) = &settings.tls else { return Ok(None) };
    let names = names(settings);
    let loaded = Certificates::load(tls, &settings.data_dir, names)?;
    if let Some(expires) = loaded.expires() {
        tracing::info!("certificate valid until {}", expires.strftime("%Y-%m-%d"));
    }
    Ok(Some(Arc::new(loaded)))
}

/// Names and addresses of this server for its own certificate.
fn names(settings: &Settings) -> Vec<String> {
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    let host = rustix::system::uname();
    names.extend(host.nodename().to_str().map(str::to_owned));
    if !settings.listen.ip().is_unspecified() {
        names.push(settings.listen.ip().to_string());
    }
    for public in &settings.public_hosts {
        let name = public.rsplit_once(':').filter(|(name, _)| !name.contains(':'));
        names.push(name.map_or(public.as_str(), |(name, _)| name).to_owned());
    }
    names.retain(|name| rustls::pki_types::ServerName::try_from(name.as_str()).is_ok());
    names.sort();
    names.dedup();
    names
}

fn local_url(addr: SocketAddr, tls: bool) -> String {
    let ip = if addr.ip().is_unspecified() { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { addr.ip() };
    let scheme = if tls { "https" } else { "http" };
    format!("{scheme}://{}", SocketAddr::new(ip, addr.port()))
}

fn warnings(addr: SocketAddr, tls: bool, lost_key: Option<&Path>) -> Vec<String> {
    let lost_key = lost_key.map(|path| {
        format!(
            "the key file {} was missing: jobs with secrets stay pending until it is restored; no token was revoked",
            path.display()
        )
    });
    let plain = (!tls && !addr.ip().is_loopback()).then(|| format!(
        "--insecure: other machines can reach {addr}, and nothing is encrypted, tokens included; use --tls-self-signed, or \
         a proxy with TLS"
    ));
    lost_key.into_iter().chain(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_directory_of_another_user_is_rejected_and_unchanged() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        prepare(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        prepare(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        // Only root can change the owner of a directory.
        if std::os::unix::fs::chown(&path, Some(4711), None).is_ok() {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
            let words = prepare(&path).unwrap_err().to_string();
            assert!(words.contains("user id 4711"), "{words}");
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o755);
        }
    }
}
