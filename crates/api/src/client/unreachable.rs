//! Causes of failed connections.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::trust::tls_error;

/// Cause of a missing response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnreachableCause {
    #[error("no answer in time")]
    Timeout,
    /// Nothing, not even a ping, arrived on a stream.
    #[error("nothing came for {} seconds", .0.as_secs())]
    Silence(Duration),
    #[error("unknown host")]
    UnknownHost,
    /// The server answered a TLS handshake with another protocol.
    #[error("the server does not use TLS")]
    NotTls,
    #[error("the server does not use HTTP")]
    NotHttp,
    /// Message of the innermost cause.
    #[error("{0}")]
    Other(String),
}

impl UnreachableCause {
    pub(super) fn of(error: &reqwest::Error) -> Self {
        if error.is_timeout() {
            return Self::Timeout;
        }
        let mut text = None;
        let mut cause = error.source();
        while let Some(current) = cause {
            if let Some(known) = Self::known(current) {
                return known;
            }
            text = Some(current.to_string());
            cause = current.source();
        }
        Self::Other(text.unwrap_or_else(|| "the request failed".to_owned()))
    }

    fn known(error: &(dyn Error + 'static)) -> Option<Self> {
        use rustls::InvalidMessage::InvalidContentType;
        if error.is::<LookupError>() {
            return Some(Self::UnknownHost);
        }
        if error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_parse) {
            return Some(Self::NotHttp);
        }
        let not_tls = rustls::Error::InvalidMessage(InvalidContentType);
        (tls_error(error) == Some(&not_tls)).then_some(Self::NotTls)
    }
}

/// Failed lookup of a host name. The resolver of the HTTP client gives it no type of its own.
#[derive(Debug, thiserror::Error)]
#[error("cannot look up the host")]
struct LookupError(#[source] std::io::Error);

struct SystemResolver;

impl Resolve for SystemResolver {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await.map_err(LookupError)?;
            let addresses: Addrs = Box::new(found.collect::<Vec<_>>().into_iter());
            Ok(addresses)
        })
    }
}

/// Resolver of the system with a typed error.
pub(super) fn resolver() -> Arc<impl Resolve + 'static> {
    Arc::new(SystemResolver)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;
    use crate::client::{Client, ClientError};

    async fn cause(address: &str) -> UnreachableCause {
        let client = Client::new(address, None).unwrap();
        match client.get("/healthz").nothing().await {
            Err(ClientError::Unreachable { cause, .. }) => cause,
            other => panic!("{other:?}"),
        }
    }

    /// Port of a server that answers every connection with this text.
    async fn server(answer: &'static str) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let _ = stream.read(&mut [0; 1024]).await;
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        port
    }

    #[tokio::test]
    async fn a_server_of_another_protocol_is_recognised_by_the_type_of_the_error() {
        let http = server("HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n").await;
        assert_eq!(cause(&format!("https://127.0.0.1:{http}")).await, UnreachableCause::NotTls);
        let other = server("SSH-2.0-OpenSSH_9.6\r\n").await;
        assert_eq!(cause(&format!("http://127.0.0.1:{other}")).await, UnreachableCause::NotHttp);
    }

    #[tokio::test]
    async fn an_unknown_host_is_recognised_by_the_type_of_the_error() {
        // The resolver refuses a label of more than 63 characters without asking a server.
        let host = "a".repeat(64);
        assert_eq!(cause(&format!("http://{host}:1")).await, UnreachableCause::UnknownHost);
    }
}
