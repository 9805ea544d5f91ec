//! Mail by SMTP (RFC 5321), with STARTTLS or TLS, and PLAIN or LOGIN authentication.

use std::io;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::ServerName;
use tokio::io::BufReader;
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _,
};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::{DeliveryError, tls};
use crate::config::{EmailConfig, EmailTls};
use crate::message::Message;
use crate::secret::Secrets;
use crate::sink::{Origin, email};

/// Limit of a whole delivery.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Longest response of a server.
const MOST_RESPONSE: u64 = 64 * 1024;

trait Connection: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Connection for T {}

/// A session with a mail server.
struct Session {
    stream: BufReader<Box<dyn Connection>>,
    /// Extensions in upper case.
    extensions: Vec<String>,
}

pub(super) async fn send(
    config: &EmailConfig,
    message: &Message,
    secrets: &Secrets,
    origin: Origin<'_>,
) -> Result<(), DeliveryError> {
    let mail = email::mail(config, message, origin);
    let sent = tokio::time::timeout(TIMEOUT, deliver(config, &mail, secrets)).await;
    sent.map_err(|_| DeliveryError::Timeout(TIMEOUT))?
}

async fn deliver(config: &EmailConfig, mail: &str, secrets: &Secrets) -> Result<(), DeliveryError> {
    let mut session = open(config).await?;
    authenticate(&mut session, config, secrets).await?;
    session.command("MAIL", &format!("MAIL FROM:<{}>", config.from), &[250]).await?;
    for to in &config.to {
        session.command("RCPT", &format!("RCPT TO:<{to}>"), &[250, 251]).await?;
    }
    session.command("DATA", "DATA", &[354]).await?;
    session.command("DATA", &dotted(mail), &[250]).await?;
    // The mail is accepted: an error of this command changes nothing.
    let _ = session.command("QUIT", "QUIT", &[221]).await;
    Ok(())
}

/// Connects, greets, and encrypts the connection as configured.
async fn open(config: &EmailConfig) -> Result<Session, DeliveryError> {
    let host = config.host.as_str();
    let tcp = TcpStream::connect((host, config.port)).await.map_err(|error| connect(&error))?;
    let stream: Box<dyn Connection> = match config.tls {
        EmailTls::Implicit => Box::new(encrypt(config, tcp).await?),
        EmailTls::Starttls | EmailTls::None => Box::new(tcp),
    };
    let mut session = Session { stream: BufReader::new(stream), extensions: Vec::new() };
    session.response("the connection", &[220]).await?;
    session.greet().await?;
    if config.tls != EmailTls::Starttls {
        return Ok(session);
    }
    if !session.offers("STARTTLS") {
        return Err(DeliveryError::Missing("STARTTLS"));
    }
    session.command("STARTTLS", "STARTTLS", &[220]).await?;
    // Bytes before the handshake would be read as if they were encrypted.
    if !session.stream.buffer().is_empty() {
        return Err(DeliveryError::Broken);
    }
    let stream = encrypt(config, session.stream.into_inner()).await?;
    let mut session = Session { stream: BufReader::new(Box::new(stream)), extensions: Vec::new() };
    session.greet().await?;
    Ok(session)
}

async fn encrypt<S: Connection>(
    config: &EmailConfig,
    stream: S,
) -> Result<tokio_rustls::client::TlsStream<S>, DeliveryError> {
    let name = ServerName::try_from(config.host.clone()).map_err(|_| DeliveryError::Url)?;
    let connector = TlsConnector::from(tls::client_config(config.ca_file.as_deref())?);
    connector.connect(name, stream).await.map_err(|error| connect(&error))
}

fn connect(error: &io::Error) -> DeliveryError {
    let problem = tls::problem(error).unwrap_or_else(|| "the host is not known".to_owned());
    DeliveryError::Connect(problem)
}

async fn authenticate(
    session: &mut Session,
    config: &EmailConfig,
    secrets: &Secrets,
) -> Result<(), DeliveryError> {
    let (Some(user), Some(password)) = (&config.user, &config.password) else { return Ok(()) };
    let password = secrets.read(password)?;
    let offered = session.extensions.iter().find(|line| line.starts_with("AUTH"));
    let offers = |method: &str| {
        offered.is_some_and(|line| line.split([' ', '=']).any(|word| word == method))
    };
    if offers("PLAIN") {
        let secret = STANDARD.encode(format!("\0{user}\0{}", password.expose()));
        return session.command("AUTH", &format!("AUTH PLAIN {secret}"), &[235]).await;
    }
    if !offers("LOGIN") {
        return Err(DeliveryError::Missing("AUTH PLAIN or AUTH LOGIN"));
    }
    session.command("AUTH", "AUTH LOGIN", &[334]).await?;
    session.command("AUTH", &STANDARD.encode(user), &[334]).await?;
    session.command("AUTH", &STANDARD.encode(password.expose()), &[235]).await
}

/// The mail as DATA sends it: lines that start with a dot get another one, and a dot ends the mail.
fn dotted(mail: &str) -> String {
    let mut text = String::with_capacity(mail.len() + 8);
    for line in mail.trim_end_matches("\r\n").split("\r\n") {
        if line.starts_with('.') {
            text.push('.');
        }
        text.push_str(line);
        text.push_str("\r\n");
    }
    text.push('.');
    text
}

impl Session {
    async fn greet(&mut self) -> Result<(), DeliveryError> {
        self.write("EHLO localhost").await?;
        let lines = self.response("EHLO", &[250]).await?;
        self.extensions = lines.into_iter().skip(1).map(|line| line.to_ascii_uppercase()).collect();
        Ok(())
    }

    fn offers(&self, extension: &str) -> bool {
        self.extensions.iter().any(|line| line.split(' ').next() == Some(extension))
    }

    async fn command(
        &mut self,
        name: &'static str,
        text: &str,
        expected: &[u16],
    ) -> Result<(), DeliveryError> {
        self.write(text).await?;
        self.response(name, expected).await.map(drop)
    }

    async fn write(&mut self, text: &str) -> Result<(), DeliveryError> {
        let line = format!("{text}\r\n");
        let written = async {
            self.stream.write_all(line.as_bytes()).await?;
            self.stream.flush().await
        };
        written.await.map_err(|_| DeliveryError::Broken)
    }

    /// Text of the lines of a response with an expected code.
    async fn response(
        &mut self,
        command: &'static str,
        expected: &[u16],
    ) -> Result<Vec<String>, DeliveryError> {
        let mut lines = Vec::new();
        let mut limited = (&mut self.stream).take(MOST_RESPONSE);
        loop {
            let mut bytes = Vec::new();
            let read = limited.read_until(b'\n', &mut bytes).await;
            if read.map_err(|_| DeliveryError::Broken)? == 0 {
                return Err(DeliveryError::Broken);
            }
            let line = String::from_utf8_lossy(&bytes);
            let line = line.trim_end();
            let (code, rest) = line.split_at_checked(3).ok_or(DeliveryError::Broken)?;
            let code: u16 = code.parse().map_err(|_| DeliveryError::Broken)?;
            lines.push(rest.get(1..).unwrap_or_default().to_owned());
            if rest.starts_with('-') {
                continue;
            }
            if expected.contains(&code) {
                return Ok(lines);
            }
            return Err(DeliveryError::Mail { command, code });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_start_with_a_dot_do_not_end_the_mail() {
        assert_eq!(dotted("a\r\n.\r\n..b\r\n"), "a\r\n..\r\n...b\r\n.");
    }
}
