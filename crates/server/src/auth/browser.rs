//! Browsers: cookies, and the checks that keep other sites from using them.
//!
//! A browser sends a cookie with every request to the server, regardless of the page that made the request. A request
//! with a cookie must therefore name this server in `Host` (against DNS rebinding) and, if it changes state, come from
//! a page of this server (`Origin`).

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::api_error::ApiError;
use crate::tls::Certificates;

/// Names and addresses of the server.
#[derive(Clone, Debug)]
pub struct Site {
    pub listen: SocketAddr,
    /// Further names, as `host` or `host:port`.
    pub public_hosts: Vec<String>,
    /// Certificate; none for plain HTTP.
    pub certificates: Option<Arc<Certificates>>,
}

/// Names of the server's cookies. They contain the port, because browsers do not separate cookies by port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CookieNames {
    /// Cookie with the access token.
    pub access: String,
    /// Cookie with the refresh token.
    pub refresh: String,
    /// Cookie by which a [`super::Device`] is recognised.
    pub device: String,
}

pub fn cookie_names(site: &Site) -> CookieNames {
    let port = site.listen.port();
    CookieNames {
        access: format!("agentaflow_access_{port}"),
        refresh: format!("agentaflow_refresh_{port}"),
        device: format!("agentaflow_device_{port}"),
    }
}

/// Value of a cookie in a `Cookie` header.
pub fn cookie<'a>(header: &'a str, name: &str) -> Option<&'a str> {
    header
        .split(';')
        .filter_map(|pair| pair.trim().split_once('='))
        .find_map(|(key, value)| (key == name && !value.is_empty()).then_some(value))
}

/// A `Set-Cookie` header; an empty value removes the cookie.
pub fn set_cookie(name: &str, value: &str, path: &str, seconds: u64, secure: bool) -> String {
    let secure = if secure { "; Secure" } else { "" };
    let seconds = if value.is_empty() { 0 } else { seconds };
    format!("{name}={value}; Path={path}; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}")
}

/// Rejects a request whose `Host` header does not name this server.
pub fn check_host(site: &Site, host: Option<&str>) -> Result<(), ApiError> {
    let Some(host) = host else {
        return Err(ApiError::forbidden("a request with a cookie needs a Host header"));
    };
    if is_ours(site, host) {
        return Ok(());
    }
    Err(ApiError::forbidden(
        "the Host header names another server than this one; if browsers reach this server by that name, \
         start it with `--public-host NAME`",
    ))
}

/// Rejects a request whose `Origin` is not a page of this server.
pub fn check_origin(site: &Site, origin: Option<&str>, host: Option<&str>) -> Result<(), ApiError> {
    check_host(site, host)?;
    let from = origin
        .and_then(|origin| origin.strip_prefix("http://").or(origin.strip_prefix("https://")))
        .filter(|from| host.is_some_and(|host| from.eq_ignore_ascii_case(host)));
    if from.is_some() {
        return Ok(());
    }
    Err(ApiError::forbidden(
        "a change with a cookie must come from a page of this server (the Origin header says it does not); \
         programs use `Authorization: Bearer <token>` instead",
    ))
}

fn is_ours(site: &Site, host: &str) -> bool {
    let host = host.to_ascii_lowercase();
    let (name, port) = split(&host);
    let same = |public: &String| {
        let public = public.to_ascii_lowercase();
        host == public || name == public
    };
    if site.public_hosts.iter().any(same) {
        return true;
    }
    if port.is_some_and(|port| port != site.listen.port()) {
        return false;
    }
    let address: Option<IpAddr> = name.trim_matches(['[', ']']).parse().ok();
    match address {
        // An IP address cannot be a rebound DNS name, so a server that listens on all addresses accepts any address.
        Some(address) => {
            address.is_loopback()
                || address == site.listen.ip()
                || site.listen.ip().is_unspecified()
        }
        None => name == "localhost" || name.ends_with(".localhost"),
    }
}

/// Name and port of a `Host` header. An invalid port becomes port 0, which no server listens on.
fn split(host: &str) -> (&str, Option<u16>) {
    match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => (name, Some(port.parse().unwrap_or(0))),
        _ => (host, None),
    }
}
