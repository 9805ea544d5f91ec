//! Streamed responses.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use reqwest::Response;
use reqwest::header::HeaderMap;
use url::Url;

use super::{ClientError, UnreachableCause, shown};

/// Maximum length of a line: longer than any assignment.
const LINE_LIMIT: usize = 64 << 20;

/// Bytes of a streamed response.
pub struct Bytes {
    inner: BoxStream<'static, Result<bytes::Bytes, reqwest::Error>>,
    url: Url,
    headers: HeaderMap,
    idle: Option<Duration>,
}

impl Bytes {
    pub(super) fn new(response: Response, url: &Url, idle: Option<Duration>) -> Self {
        let headers = response.headers().clone();
        Self { inner: response.bytes_stream().boxed(), url: url.clone(), headers, idle }
    }

    /// Value of a response header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Returns the next chunk; none at the end. Cancel-safe: dropping the future loses no data.
    pub async fn next(&mut self) -> Result<Option<bytes::Bytes>, ClientError> {
        let next = match self.idle {
            None => self.inner.next().await,
            Some(idle) => tokio::time::timeout(idle, self.inner.next())
                .await
                .map_err(|_| self.silent(idle))?,
        };
        next.transpose().map_err(|error| ClientError::unreachable(&self.url, &error))
    }

    fn silent(&self, idle: Duration) -> ClientError {
        let cause = UnreachableCause::Silence(idle);
        ClientError::Unreachable { url: shown(&self.url), cause }
    }
}

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bytes")
            .field("url", &shown(&self.url))
            .field("idle", &self.idle)
            .finish_non_exhaustive()
    }
}

/// Lines of a streamed response.
#[derive(Debug)]
pub struct Lines {
    bytes: Bytes,
    buffer: Vec<u8>,
    /// Length of the buffer already searched for the end of a line.
    searched: usize,
}

impl Lines {
    pub(super) fn new(bytes: Bytes) -> Self {
        Self { bytes, buffer: Vec::new(), searched: 0 }
    }

    /// Returns the next line without its end; an empty line is a ping. None at the end of the stream. Cancel-safe:
    /// dropping the future loses no data.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, ClientError> {
        loop {
            if let Some(line) = self.take_line() {
                return Ok(Some(line));
            }
            if self.buffer.len() > LINE_LIMIT {
                let url = shown(&self.bytes.url);
                return Err(ClientError::Garbled { url, cause: "a line has no end".to_owned() });
            }
            match self.bytes.next().await? {
                Some(piece) => self.buffer.extend_from_slice(&piece),
                None if self.buffer.is_empty() => return Ok(None),
                // A last line without its end may be truncated, so it is dropped.
                None => {
                    self.buffer.clear();
                    return Ok(None);
                }
            }
        }
    }

    fn take_line(&mut self) -> Option<Vec<u8>> {
        let Some(at) = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') else {
            self.searched = self.buffer.len();
            return None;
        };
        let end = self.searched + at;
        let rest = self.buffer.split_off(end + 1);
        let mut line = std::mem::replace(&mut self.buffer, rest);
        self.searched = 0;
        line.pop();
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        Some(line)
    }
}
