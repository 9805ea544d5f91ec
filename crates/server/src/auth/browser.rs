//! Browsers: cookies, and the checks that keep other sites from using them.
//!
//! A cookie is sent by the browser no matter which page asked, so a request that carries one must show that it was
//! made for this server (`Host`, against DNS names that were turned to point here) and, if it changes anything, by a
//! page of this server (`Origin`).

use std::net::{IpAddr, SocketAddr};

use crate::api_error::ApiError;

/// What the server is called.
#[derive(Clone, Debug)]
pub struct Site {
    /// Where it listens.
    pub listen: SocketAddr,
    /// Other names, as `host` or `host:port`.
    pub public_hosts: Vec<String>,
}

/// Names of the cookies of this server. They hold the port, because browsers give cookies of one port to all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CookieNames {
    /// Holds the access token.
    pub access: String,
    /// Holds the refresh token.
    pub refresh: String,
}

/// The names of this server's cookies.
pub fn cookie_names(site: &Site) -> CookieNames {
    let port = site.listen.port();
    CookieNames {
        access: format!("agentaflow_access_{port}"),
        refresh: format!("agentaflow_refresh_{port}"),
    }
}

/// The value of a cookie in a `Cookie` header.
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

/// Whether the request was meant for this server.
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

/// Whether the request was made by a page of this server.
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
        // No DNS name can be an address, so where the server listens everywhere any address will do.
        Some(address) => {
            address.is_loopback()
                || address == site.listen.ip()
                || site.listen.ip().is_unspecified()
        }
        None => name == "localhost" || name.ends_with(".localhost"),
    }
}

/// Name and port of a `Host` header. An unreadable port is port 0, which nobody listens on.
fn split(host: &str) -> (&str, Option<u16>) {
    match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => (name, Some(port.parse().unwrap_or(0))),
        _ => (host, None),
    }
}
