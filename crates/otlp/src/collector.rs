//! Address of the receiver of exports.

use std::fmt;
use std::str::FromStr;

use agentaflow_api::units::Secret;
use thiserror::Error;
use url::Url;

/// Receiver of OTLP over HTTP.
#[derive(Clone)]
pub struct Collector {
    /// Ends with a slash.
    base: Url,
    /// Headers of each request; may hold credentials.
    headers: Vec<(String, Secret)>,
}

/// The error repeats no value: it may hold credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InvalidCollector {
    #[error("not a URL of the form http://HOST:PORT or https://HOST:PORT")]
    Url,
    #[error("headers are not of the form NAME=VALUE,NAME=VALUE")]
    Headers,
}

impl Collector {
    /// Adds headers in the form of `OTEL_EXPORTER_OTLP_HEADERS`: `NAME=VALUE` pairs, separated by commas.
    pub fn with_headers(mut self, list: &str) -> Result<Self, InvalidCollector> {
        for pair in list.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').ok_or(InvalidCollector::Headers)?;
            let name = name.trim();
            let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            let printable = |byte: u8| (b' '..=b'~').contains(&byte);
            if name.is_empty() || !name.bytes().all(is_token) || !value.bytes().all(printable) {
                return Err(InvalidCollector::Headers);
            }
            self.headers.push((name.to_ascii_lowercase(), value.trim().to_owned().into()));
        }
        Ok(self)
    }

    /// Address of a signal: `traces` or `metrics`.
    pub(crate) fn address(&self, signal: &str) -> Url {
        let mut address = self.base.clone();
        address.set_path(&format!("{}v1/{signal}", self.base.path()));
        address
    }

    pub(crate) fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.headers.iter().map(|(name, value)| (name.as_str(), value.expose()))
    }

    pub(crate) fn is_plain(&self) -> bool {
        self.base.scheme() == "http"
    }
}

impl FromStr for Collector {
    type Err = InvalidCollector;

    fn from_str(text: &str) -> Result<Self, InvalidCollector> {
        let mut base: Url = text.trim().parse().map_err(|_| InvalidCollector::Url)?;
        if !matches!(base.scheme(), "http" | "https") || !base.has_host() {
            return Err(InvalidCollector::Url);
        }
        base.set_query(None);
        base.set_fragment(None);
        let path = format!("{}/", base.path().trim_end_matches('/'));
        base.set_path(&path);
        Ok(Self { base, headers: Vec::new() })
    }
}

impl fmt::Display for Collector {
    /// Without credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = self.base.host_str().unwrap_or_default();
        write!(f, "{}://{host}", self.base.scheme())?;
        self.base.port().map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

impl fmt::Debug for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_addresses_below_the_endpoint() {
        for (endpoint, expected) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("https://collector/otlp/", "https://collector/otlp/v1/traces"),
        ] {
            let collector: Collector = endpoint.parse().unwrap();
            assert_eq!(collector.address("traces").as_str(), expected);
        }
        for text in ["collector:4318", "ftp://collector", "", "http://"] {
            assert_eq!(text.parse::<Collector>().err(), Some(InvalidCollector::Url), "{text}");
        }
    }

    #[test]
    fn credentials_are_never_printed() {
        let collector: Collector = "http://user:password@collector:4318/key".parse().unwrap();
        let collector = collector.with_headers("authorization=Bearer abc, x-team = gpu").unwrap();
        let headers: Vec<_> = collector.headers().collect();
        assert_eq!(headers, [("authorization", "Bearer abc"), ("x-team", "gpu")]);
        assert_eq!(
            format!("{collector} {collector:?}"),
            "http://collector:4318 http://collector:4318"
        );
        let broken = "http://collector".parse::<Collector>().unwrap().with_headers("abc");
        assert_eq!(broken.err(), Some(InvalidCollector::Headers));
    }
}
