//! A call: request, response and errors.

use std::fmt::Display;
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use reqwest::{Method, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;
use url::Url;

use super::stream::{Bytes, Lines};
use super::{ClientError, UnreachableCause, shown};
use crate::error::{ErrorBody, ErrorCode};
use crate::units::Secret;

/// Default timeout of a call.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum size of an error body.
const REFUSAL_LIMIT: usize = 64 << 10;

/// A request under construction.
#[derive(Debug)]
pub struct Call {
    http: reqwest::Client,
    method: Method,
    url: Url,
    token: Option<Secret>,
    headers: Vec<(&'static str, String)>,
    body: Option<Vec<u8>>,
    timeout: Duration,
}

impl Call {
    pub(super) fn new(
        http: reqwest::Client,
        method: Method,
        url: Url,
        token: Option<Secret>,
    ) -> Self {
        Self { http, method, url, token, headers: Vec::new(), body: None, timeout: TIMEOUT }
    }

    pub fn url(&self) -> &Url {
        &self.url
    }

    /// Adds a parameter to the query.
    #[must_use]
    pub fn query(mut self, name: &str, value: impl Display) -> Self {
        self.url.query_pairs_mut().append_pair(name, &value.to_string());
        self
    }

    /// Adds an optional parameter to the query.
    #[must_use]
    pub fn maybe(self, name: &str, value: Option<impl Display>) -> Self {
        match value {
            Some(value) => self.query(name, value),
            None => self,
        }
    }

    #[must_use]
    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// Sets a JSON body.
    #[must_use]
    pub fn body(mut self, body: &impl Serialize) -> Self {
        // The types of this crate serialize without error; otherwise the server rejects the empty body.
        self.body = Some(serde_json::to_vec(body).unwrap_or_default());
        self
    }

    /// Timeout until the response is complete or, for a stream, begins.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sends the request and parses the JSON response.
    pub async fn json<T: DeserializeOwned>(self) -> Result<T, ClientError> {
        let url = self.url.clone();
        let bytes = self.answer().await?;
        serde_json::from_slice(&bytes).map_err(|error| garbled(&url, &error))
    }

    /// Sends the request; returns the body and the value of a response header.
    pub async fn json_and<T: DeserializeOwned>(
        self,
        header: &str,
    ) -> Result<(T, Option<String>), ClientError> {
        let (url, timeout) = (self.url.clone(), self.timeout);
        let response = self.send(Some(timeout)).await?;
        let value = response.headers().get(header).and_then(|value| value.to_str().ok());
        let value = value.map(str::to_owned);
        let bytes =
            response.bytes().await.map_err(|error| ClientError::unreachable(&url, &error))?;
        let read = serde_json::from_slice(&bytes).map_err(|error| garbled(&url, &error))?;
        Ok((read, value))
    }

    /// Sends the request and returns the response as text.
    pub async fn text(self) -> Result<String, ClientError> {
        Ok(String::from_utf8_lossy(&self.answer().await?).into_owned())
    }

    /// Sends the request and discards the response.
    pub async fn nothing(self) -> Result<(), ClientError> {
        self.answer().await.map(drop)
    }

    /// Sends the request and reads the response line by line. Fails if nothing, not even a ping, arrives for `idle`.
    pub async fn lines(self, idle: Option<Duration>) -> Result<Lines, ClientError> {
        Ok(Lines::new(self.bytes(idle).await?))
    }

    /// Sends the request and reads the response as a stream. Fails if nothing arrives for `idle`.
    pub async fn bytes(self, idle: Option<Duration>) -> Result<Bytes, ClientError> {
        let (url, timeout) = (self.url.clone(), self.timeout);
        let begun = tokio::time::timeout(timeout, self.send(None)).await;
        let response = begun.map_err(|_| ClientError::Unreachable {
            url: shown(&url),
            cause: UnreachableCause::Timeout,
        })??;
        Ok(Bytes::new(response, &url, idle))
    }

    async fn answer(self) -> Result<bytes::Bytes, ClientError> {
        let (url, timeout) = (self.url.clone(), self.timeout);
        let response = self.send(Some(timeout)).await?;
        response.bytes().await.map_err(|error| ClientError::unreachable(&url, &error))
    }

    async fn send(self, timeout: Option<Duration>) -> Result<Response, ClientError> {
        let url = self.url.clone();
        let mut request = self.http.request(self.method, self.url);
        if let Some(timeout) = timeout {
            request = request.timeout(timeout);
        }
        if let Some(bearer) = self.token.as_ref().and_then(bearer) {
            request = request.header(AUTHORIZATION, bearer);
        }
        for (name, value) in self.headers {
            request = request.header(name, value);
        }
        if let Some(body) = self.body {
            request = request.header(CONTENT_TYPE, "application/json").body(body);
        }
        let response =
            request.send().await.map_err(|error| ClientError::unreachable(&url, &error))?;
        if response.status().is_success() { Ok(response) } else { Err(refused(response).await) }
    }
}

/// A response with unexpected JSON. The body may hold secrets, so the error only gives the position.
fn garbled(url: &Url, error: &serde_json::Error) -> ClientError {
    let (line, column) = (error.line(), error.column());
    let cause = format!("the JSON is not as expected at line {line}, column {column}");
    ClientError::Garbled { url: shown(url), cause }
}

/// `Authorization` header of a token; none for a token with invalid characters.
fn bearer(token: &Secret) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(&format!("Bearer {}", token.expose().trim())).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Reads an error body, or makes one for a response without one.
async fn refused(response: Response) -> ClientError {
    let status = response.status();
    let url = response.url().clone();
    let mut bytes = Bytes::new(response, &url, Some(TIMEOUT));
    let mut read = Vec::new();
    while let Ok(Some(piece)) = bytes.next().await {
        read.extend_from_slice(&piece);
        if read.len() > REFUSAL_LIMIT {
            break;
        }
    }
    let body = serde_json::from_slice(&read).unwrap_or_else(|_| {
        ErrorBody::new(ErrorCode::Unknown, format!("{} answered {status}", shown(&url)))
    });
    ClientError::Refused { status: status.as_u16(), body: Box::new(body) }
}
