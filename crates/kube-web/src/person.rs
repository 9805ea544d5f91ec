//! The reader of a request: a cookie with the token, or a bearer token.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, Uri, header};

use agentaflow_kube_client::Cluster;
use agentaflow_kube_serve::User;

use super::answer::Problem;
use super::router::App;

/// The prefix lets browsers accept the cookie only over HTTPS, for this host and all paths.
const COOKIE: &str = "__Host-agentaflow-token";
/// Longest token that fits into a cookie with its attributes.
pub(crate) const MAX_TOKEN: usize = 3900;

/// Authenticated reader.
#[derive(Clone, Debug)]
pub(crate) struct Person {
    pub(crate) user: User,
    pub(crate) token: String,
}

impl FromRequestParts<App> for Person {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let token = if let Some(token) = bearer(&parts.headers) {
            token
        } else {
            let token = cookie(&parts.headers);
            let token = token.ok_or_else(|| Problem::unauthenticated("Log in first"))?;
            if !parts.method.is_safe() {
                check_origin(&parts.method, &parts.headers)?;
            }
            token
        };
        let user = app.sessions.user(token).await?;
        let user = user.ok_or_else(|| {
            Problem::unauthenticated("The API server does not accept the token any more")
        })?;
        Ok(Self { user, token: token.to_owned() })
    }
}

impl Person {
    /// The cluster with the credentials of this reader.
    pub(crate) fn cluster(&self, app: &App) -> Result<Cluster, Problem> {
        let mut config = app.cluster.clone();
        let token = serde_json::json!({"token": self.token});
        config.auth_info = serde_json::from_value(token).unwrap_or_default();
        config.default_retry = false;
        let client = kube::Client::try_from(config);
        let client = client.map_err(|error| Problem::unavailable(error.to_string()))?;
        Ok(Cluster {
            client,
            namespace: "default".to_owned(),
            everywhere: true,
            system: app.system.clone(),
            scheduler: None,
        })
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let text = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    text.strip_prefix("Bearer ").filter(|token| !token.is_empty())
}

fn cookie(headers: &HeaderMap) -> Option<&str> {
    let all = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = all.flat_map(|text| text.split(';')).filter_map(|pair| pair.split_once('='));
    let found = pairs.find(|(name, _)| name.trim() == COOKIE);
    found.map(|(_, token)| token.trim()).filter(|token| !token.is_empty())
}

/// Cookie with a token, or one that deletes it.
pub(crate) fn set_cookie(token: Option<&str>) -> String {
    let age = if token.is_some() { "" } else { "; Max-Age=0" };
    let token = token.unwrap_or_default();
    format!("{COOKIE}={token}; Path=/; Secure; HttpOnly; SameSite=Strict{age}")
}

/// Requests that change something must come from pages of this host.
pub(crate) fn check_origin(method: &Method, headers: &HeaderMap) -> Result<(), Problem> {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let origin = text(header::ORIGIN).and_then(|origin| origin.parse::<Uri>().ok());
    let host = origin.as_ref().and_then(Uri::authority).map(Authority::as_str);
    if host.is_some() && host == text(header::HOST) {
        return Ok(());
    }
    Err(Problem::forbidden(format!("{method} with a cookie must come from a page of this host")))
}

/// A token that fits into a header and a cookie unchanged.
pub(crate) fn is_token(text: &str) -> bool {
    let plain =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | '~' | '+' | '/' | '=');
    !text.is_empty() && text.len() <= MAX_TOKEN && text.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| ((*name).try_into().unwrap(), value.parse().unwrap()))
            .collect()
    }

    #[test]
    fn a_cookie_changes_something_only_from_a_page_of_the_same_host() {
        let check = |pairs: &[(&'static str, &str)]| check_origin(&Method::POST, &headers(pairs));
        assert!(
            check(&[("host", "gpu.example:8443"), ("origin", "https://gpu.example:8443")]).is_ok()
        );
        for origin in ["https://gpu.example", "https://other.example:8443", "null", ""] {
            assert!(
                check(&[("host", "gpu.example:8443"), ("origin", origin)]).is_err(),
                "{origin}"
            );
        }
        assert!(check(&[("host", "gpu.example:8443")]).is_err());
        assert!(check(&[("origin", "https://gpu.example")]).is_err());
    }

    #[test]
    fn the_token_is_read_from_its_own_cookie_and_no_other() {
        let both = headers(&[("cookie", "a=b; __Host-agentaflow-token=x.y-z==; c=d")]);
        assert_eq!(cookie(&both), Some("x.y-z=="));
        assert_eq!(cookie(&headers(&[("cookie", "x__Host-agentaflow-token=x")])), None);
        assert_eq!(cookie(&headers(&[("cookie", "__Host-agentaflow-token=")])), None);
        for attribute in ["Secure", "HttpOnly", "SameSite=Strict", "Path=/"] {
            assert!(set_cookie(Some("t")).split("; ").any(|part| part == attribute), "{attribute}");
        }
        assert!(is_token("eyJ.abc_-~+/=") && !is_token("a b") && !is_token("a;b") && !is_token(""));
    }
}
