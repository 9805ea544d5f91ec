//! Requests to the scheduler: at the URL of the context, otherwise through the service proxy of the API server.

use agentaflow_api::error::ErrorBody;
use agentaflow_kube_core::names;
use http::{Method, Request};
use kube::core::Status;
use serde_json::Value;
use std::time::Duration;

use super::{Cluster, Failure, Forbidden, Unreachable, once};

/// Timeout of a request; the scheduler itself gives up after two seconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// Ports of the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Port {
    /// Explanations and forecasts.
    Http,
    Metrics,
}

impl Port {
    fn number(self) -> u16 {
        match self {
            Self::Http => 8080,
            Self::Metrics => 9090,
        }
    }
}

impl Cluster {
    /// Sends a request to the scheduler. An error response and an unreachable scheduler are different errors.
    pub(super) async fn ask_scheduler(
        &self,
        method: &str,
        port: Port,
        path: &str,
        body: Option<&Value>,
    ) -> Result<String, Failure> {
        let (client, path) = match &self.scheduler {
            Some(url) => (direct(url, port)?, path.to_owned()),
            None => (self.client.clone(), proxied(&self.system, port, path)),
        };
        let method = Method::from_bytes(method.as_bytes()).unwrap_or(Method::GET);
        let bytes = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", "application/json")
            .body(bytes)
            .map_err(|error| Failure::Other(error.to_string()))?;
        let asked = async {
            let answer = once::send(&client, request).await;
            let (status, text) = answer.map_err(|failure| self.unreachable(failure, port))?;
            if (200..300).contains(&status) {
                Ok(text)
            } else {
                Err(error_response(&self.system, status, &text))
            }
        };
        tokio::time::timeout(PATIENCE, asked).await.unwrap_or_else(|_| {
            let message = "the scheduler does not answer in time".to_owned();
            Err(Failure::Unreachable(Unreachable::Other(message)))
        })
    }

    fn unreachable(&self, failure: Failure, port: Port) -> Failure {
        match (failure, &self.scheduler) {
            (Failure::Unreachable(Unreachable::ApiServer(why)), Some(url)) => {
                silent(url, port, &why)
            }
            (failure, _) => failure,
        }
    }
}

/// Error response of the scheduler or of the API server in front of it.
fn error_response(system: &str, status: u16, text: &str) -> Failure {
    let (from_api_server, message) = match serde_json::from_str::<ErrorBody>(text) {
        Ok(body) => (false, body.detail),
        Err(_) => (serde_json::from_str::<Status>(text).is_ok(), once::message(text)),
    };
    match status {
        403 if from_api_server => Failure::Forbidden(Forbidden::Other(format!(
            "you may not ask the scheduler through the API server: ask for a RoleBinding to the ClusterRole `{}` in \
             namespace {}",
            names::ASKER_ROLE,
            system
        ))),
        401 | 403 => Failure::Forbidden(Forbidden::Other(message)),
        502..=504 if !from_api_server => Failure::Unreachable(Unreachable::Other(format!(
            "the scheduler is not ready: {message}"
        ))),
        _ if from_api_server => Failure::Unreachable(Unreachable::Scheduler(format!(
            "no answer through service {} in namespace {}: {message}",
            names::SCHEDULER_SERVICE,
            system
        ))),
        _ => Failure::of_status(status, message),
    }
}

/// Client for a scheduler URL of a context. Sends no credentials of the cluster.
fn direct(url: &str, port: Port) -> Result<kube::Client, Failure> {
    let uri = address(url, port).ok_or_else(|| wrong(url))?;
    let mut config = kube::Config::new(uri);
    config.default_retry = false;
    kube::Client::try_from(config).map_err(|_| wrong(url))
}

/// URL of a port: the context names the HTTP port; metrics have their own port.
fn address(url: &str, port: Port) -> Option<http::Uri> {
    let uri: http::Uri = url.trim().trim_end_matches('/').parse().ok()?;
    let (scheme, host) = (uri.scheme_str()?, uri.host()?);
    match port {
        Port::Http => Some(uri),
        Port::Metrics => format!("{scheme}://{host}:{}", port.number()).parse().ok(),
    }
}

/// Error for a scheduler that does not respond. The URL of metrics differs from the context.
fn silent(url: &str, port: Port, why: &str) -> Failure {
    let asked = address(url, port).map_or_else(|| url.to_owned(), |uri| uri.to_string());
    let why = why.split(" (os error").next().unwrap_or_default();
    let asked = asked.trim_end_matches('/');
    Failure::Unreachable(Unreachable::Other(format!(
        "the scheduler at {asked} does not answer: {why}"
    )))
}

fn wrong(url: &str) -> Failure {
    let url: String = url.chars().take(200).collect();
    Failure::refused(format!("`{url}` is not the URL of a scheduler: write http://HOST:PORT"))
}

/// Path of the API server's service proxy.
fn proxied(system: &str, port: Port, path: &str) -> String {
    let (service, port) = (names::SCHEDULER_SERVICE, port.number());
    format!("/api/v1/namespaces/{system}/services/{service}:{port}/proxy{path}")
}

#[cfg(test)]
mod tests {
    use agentaflow_api::error::ErrorCode;

    use super::*;

    #[test]
    fn questions_go_where_the_context_says_and_metrics_to_their_own_port() {
        for (url, questions, metrics) in [
            ("http://10.0.0.1:8080/", "http://10.0.0.1:8080/", "http://10.0.0.1:9090/"),
            ("https://gpu.example", "https://gpu.example/", "https://gpu.example:9090/"),
            ("http://[::1]:80", "http://[::1]:80/", "http://[::1]:9090/"),
        ] {
            assert_eq!(address(url, Port::Http).unwrap().to_string(), questions);
            assert_eq!(address(url, Port::Metrics).unwrap().to_string(), metrics);
        }
        let why = "Connection refused (os error 111)";
        assert_eq!(
            silent("http://10.0.0.1:8080", Port::Metrics, why).to_string(),
            "the scheduler at http://10.0.0.1:9090 does not answer: Connection refused"
        );
        for url in ["", "here", "10.0.0.1:8080", "http://", "/x"] {
            assert_eq!(address(url, Port::Http), None, "{url}");
        }
        assert_eq!(
            proxied("agentaflow", Port::Metrics, "/metrics"),
            "/api/v1/namespaces/agentaflow/services/agentaflow-scheduler-service:9090/proxy/metrics"
        );
    }

    #[test]
    fn errors_of_the_scheduler_and_of_the_api_server_differ_by_their_body() {
        let scheduler = |code| ErrorBody::new(code, "from the scheduler");
        let body = |code| serde_json::to_string(&scheduler(code)).unwrap();
        let api_server = r#"{"kind":"Status","status":"Failure","message":"from the API server"}"#;
        let check = |status, text: &str| error_response("agentaflow", status, text);
        let missing = check(404, &body(ErrorCode::NotFound));
        assert!(matches!(&missing, Failure::NotFound(why) if why == "from the scheduler"));
        let standby = check(503, &body(ErrorCode::Unavailable));
        assert!(matches!(standby, Failure::Unreachable(Unreachable::Other(_))), "{standby}");
        let no_endpoint = check(503, api_server);
        let is_service = matches!(no_endpoint, Failure::Unreachable(Unreachable::Scheduler(_)));
        assert!(is_service, "{no_endpoint}");
        let forbidden = check(403, api_server);
        assert!(matches!(forbidden, Failure::Forbidden(Forbidden::Other(_))), "{forbidden}");
        assert!(matches!(check(404, "404 page not found\n"), Failure::NotFound(_)));
    }
}
