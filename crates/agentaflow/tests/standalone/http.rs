//! A minimal HTTP client with one connection and JSON bodies. It shares no code with agentaflow.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: String,
}

impl Answer {
    /// Body as JSON; null if invalid.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or(Value::Null)
    }

    /// Body of a successful response as JSON.
    #[track_caller]
    pub(crate) fn ok(&self) -> Value {
        assert!((200..300).contains(&self.status), "{} {}", self.status, self.body);
        self.json()
    }
}

/// A TCP or TLS stream.
pub(crate) trait Stream: io::Read + io::Write {}

impl<T: io::Read + io::Write> Stream for T {}

pub(crate) struct Connection {
    stream: BufReader<Box<dyn Stream>>,
    token: Option<String>,
    header: String,
}

impl Connection {
    pub(crate) fn open(port: u16, token: Option<&str>) -> io::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        stream.set_nodelay(true)?;
        Ok(Self::over(Box::new(stream), token))
    }

    pub(crate) fn over(stream: Box<dyn Stream>, token: Option<&str>) -> Self {
        let token = token.map(String::from);
        Self { stream: BufReader::new(stream), token, header: String::new() }
    }

    /// Adds a header to every request.
    #[allow(dead_code, reason = "not all test programs need it")]
    pub(crate) fn with_header(mut self, header: impl Into<String>) -> Self {
        self.header = header.into() + "\r\n";
        self
    }

    pub(crate) fn call(
        &mut self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> io::Result<Answer> {
        let body = body.map(ToString::to_string).unwrap_or_default();
        let token = self.token.as_ref();
        let bearer = token.map(|token| format!("Authorization: Bearer {token}\r\n"));
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{}{}Content-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            bearer.unwrap_or_default(),
            self.header,
            body.len()
        );
        self.stream.get_mut().write_all(request.as_bytes())?;
        self.answer()
    }

    fn answer(&mut self) -> io::Result<Answer> {
        let first = self.line()?;
        let status = first.split(' ').nth(1).and_then(|word| word.parse().ok());
        let status = status.ok_or_else(|| io::Error::other(format!("not HTTP: `{first}`")))?;
        let (mut length, mut chunked) = (0, false);
        loop {
            let line = self.line()?.to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().map_err(io::Error::other)?;
            }
            chunked |= line.starts_with("transfer-encoding:") && line.contains("chunked");
        }
        let body = if chunked { self.chunks()? } else { self.exactly(length)? };
        Ok(Answer { status, body: String::from_utf8_lossy(&body).into_owned() })
    }

    fn chunks(&mut self) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let size = usize::from_str_radix(self.line()?.trim(), 16).map_err(io::Error::other)?;
            body.extend(self.exactly(size)?);
            self.line()?;
            if size == 0 {
                return Ok(body);
            }
        }
    }

    fn exactly(&mut self, length: usize) -> io::Result<Vec<u8>> {
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        Ok(body)
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end_matches(['\r', '\n']).to_owned())
    }
}
