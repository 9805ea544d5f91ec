//! A played mail server: plain, with STARTTLS, and with TLS from the first byte.

use std::sync::Arc;

use agentaflow_api::alert::Severity;
use agentaflow_api::units::Secret;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::messages::{alert, message};
use super::sinks::{decoded, mail_config};
use crate::config::{EmailConfig, EmailTls};
use crate::deliver::{DeliveryError, deliver};
use crate::sink::{Origin, email};
use crate::{Config, SecretRef, Secrets, SinkConfig, SinkKind};

/// Behaviour of the mail server.
#[derive(Clone, Copy)]
struct Played {
    tls: EmailTls,
    /// Line of the extension AUTH.
    auth: &'static str,
    offers_starttls: bool,
    /// Command that is refused, with its answer.
    refused: Option<(&'static str, &'static str)>,
}

const PLAIN: Played =
    Played { tls: EmailTls::None, auth: "AUTH PLAIN LOGIN", offers_starttls: false, refused: None };

/// Lines that the server received, and the mail.
#[derive(Debug, Default)]
struct Received {
    commands: Vec<String>,
    mail: String,
}

struct Server {
    acceptor: TlsAcceptor,
    authority: String,
}

impl Server {
    fn new() -> Self {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], PrivateKeyDer::from(key))
            .unwrap();
        Self { acceptor: TlsAcceptor::from(Arc::new(config)), authority: made.cert.pem() }
    }

    async fn serve(self, listener: TcpListener, played: Played) -> Received {
        let (tcp, _) = listener.accept().await.unwrap();
        let mut received = Received::default();
        if played.tls == EmailTls::Implicit {
            let Ok(stream) = self.acceptor.accept(tcp).await else { return received };
            talk(&mut BufReader::new(stream), played, true, &mut received).await;
            return received;
        }
        let mut plain = BufReader::new(tcp);
        if talk(&mut plain, played, true, &mut received).await {
            let Ok(stream) = self.acceptor.accept(plain.into_inner()).await else {
                return received;
            };
            talk(&mut BufReader::new(stream), played, false, &mut received).await;
        }
        received
    }
}

/// Returns true if the client asked for TLS.
async fn talk<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut BufReader<S>,
    played: Played,
    greet: bool,
    received: &mut Received,
) -> bool {
    if greet {
        stream.write_all(b"220 mail.example.com ready\r\n").await.unwrap();
    }
    let offers = played.offers_starttls && greet;
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await.unwrap_or(0) == 0 {
            return false;
        }
        let line = line.trim_end().to_owned();
        received.commands.push(line.clone());
        let word = line.split(' ').next().unwrap_or_default();
        if let Some((_, answer)) = played.refused.filter(|(refused, _)| *refused == word) {
            stream.write_all(format!("{answer}\r\n").as_bytes()).await.unwrap();
            continue;
        }
        let answer = match word {
            "EHLO" if offers => {
                "250-mail.example.com\r\n250-STARTTLS\r\n250 SIZE 1000000".to_owned()
            }
            "EHLO" => format!("250-mail.example.com\r\n250 {}", played.auth),
            "STARTTLS" => {
                stream.write_all(b"220 go ahead\r\n").await.unwrap();
                return true;
            }
            "AUTH" if line == "AUTH LOGIN" => "334 VXNlcm5hbWU6".to_owned(),
            "AUTH" => "235 ok".to_owned(),
            "DATA" => {
                stream.write_all(b"354 end with a dot\r\n").await.unwrap();
                read_mail(stream, received).await;
                "250 queued".to_owned()
            }
            "QUIT" => "221 bye".to_owned(),
            "MAIL" | "RCPT" => "250 ok".to_owned(),
            // The lines of AUTH LOGIN.
            _ if received.commands.iter().rev().nth(1).is_some_and(|line| line == "AUTH LOGIN") => {
                "334 UGFzc3dvcmQ6".to_owned()
            }
            _ => "235 ok".to_owned(),
        };
        stream.write_all(format!("{answer}\r\n").as_bytes()).await.unwrap();
        if word == "QUIT" {
            return false;
        }
    }
}

async fn read_mail<S: AsyncRead + Unpin>(stream: &mut BufReader<S>, received: &mut Received) {
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await.unwrap();
        if line == ".\r\n" {
            return;
        }
        received.mail.push_str(line.strip_prefix('.').unwrap_or(&line));
    }
}

async fn deliver_to(
    played: Played,
    change: impl FnOnce(&mut EmailConfig, &str),
) -> (Result<(), DeliveryError>, Received) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = Server::new();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.pem");
    std::fs::write(&file, &server.authority).unwrap();
    let mut config = EmailConfig {
        port: listener.local_addr().unwrap().port(),
        tls: played.tls,
        user: Some("gpu".into()),
        password: Some(SecretRef::Key("password".into())),
        ca_file: Some(file.display().to_string()),
        ..mail_config()
    };
    change(&mut config, &file.display().to_string());
    let conversation = tokio::spawn(server.serve(listener, played));
    let sink = SinkConfig {
        name: "mail".into(),
        kind: SinkKind::Email(config),
        min_severity: Severity::Info,
    };
    let secrets = Secrets([("password".to_owned(), Secret("pass word".into()))].into());
    let sent = message(vec![alert("0")], Vec::new());
    let result = deliver(&Config::default(), &sink, &sent, &secrets).await;
    (result, conversation.await.unwrap())
}

fn expected_mail() -> String {
    let sent = message(vec![alert("0")], Vec::new());
    email::mail(&mail_config(), &sent, Origin::default())
}

#[tokio::test]
async fn a_mail_is_sent_whole_with_each_kind_of_encryption() {
    for tls in [EmailTls::None, EmailTls::Starttls, EmailTls::Implicit] {
        let played = Played { tls, offers_starttls: tls == EmailTls::Starttls, ..PLAIN };
        let (result, received) = deliver_to(played, |_, _| ()).await;
        result.unwrap();
        assert_eq!(received.mail, expected_mail());
        let secret = STANDARD.encode("\0gpu\0pass word");
        let mut expected = vec!["EHLO localhost".to_owned()];
        if tls == EmailTls::Starttls {
            expected.extend(["STARTTLS".to_owned(), "EHLO localhost".to_owned()]);
        }
        expected.extend([
            format!("AUTH PLAIN {secret}"),
            "MAIL FROM:<gpu@example.com>".to_owned(),
            "RCPT TO:<ops@example.com>".to_owned(),
            "RCPT TO:<ana@example.com>".to_owned(),
            "DATA".to_owned(),
            "QUIT".to_owned(),
        ]);
        assert_eq!(received.commands, expected, "{tls:?}");
        let (headers, body) = decoded(&received.mail);
        assert!(headers.contains("Message-ID: <0123456789abcdef.agentaflow@example.com>"));
        assert!(body.contains("warning: GPU 0 on a is at 91 °C"), "{body}");
    }
}

#[tokio::test]
async fn the_login_method_is_used_if_the_server_offers_no_other() {
    let played = Played { auth: "AUTH=LOGIN", ..PLAIN };
    let (result, received) = deliver_to(played, |_, _| ()).await;
    result.unwrap();
    let expected = ["AUTH LOGIN".to_owned(), STANDARD.encode("gpu"), STANDARD.encode("pass word")];
    assert_eq!(received.commands[1..4], expected);
}

#[tokio::test]
async fn a_server_without_starttls_gets_neither_password_nor_mail() {
    let played = Played { tls: EmailTls::Starttls, ..PLAIN };
    let (result, received) = deliver_to(played, |_, _| ()).await;
    assert_eq!(result, Err(DeliveryError::Missing("STARTTLS")));
    assert_eq!(received.commands, ["EHLO localhost"]);
}

#[tokio::test]
async fn a_certificate_that_is_not_trusted_gets_neither_password_nor_mail() {
    for tls in [EmailTls::Starttls, EmailTls::Implicit] {
        let played = Played { tls, offers_starttls: true, ..PLAIN };
        let (result, received) = deliver_to(played, |config, _| config.ca_file = None).await;
        let untrusted = DeliveryError::Connect("the certificate is not trusted".into());
        assert_eq!(result, Err(untrusted));
        assert!(received.commands.iter().all(|line| !line.starts_with("AUTH")), "{received:?}");
        assert!(received.mail.is_empty());
    }
}

#[tokio::test]
async fn a_refusal_has_its_code_and_not_its_text() {
    for (command, answer, code) in [
        ("AUTH", "535 wrong password of topsecret", 535),
        ("RCPT", "550 no such user topsecret", 550),
    ] {
        let played = Played { refused: Some((command, answer)), ..PLAIN };
        let (result, received) = deliver_to(played, |_, _| ()).await;
        assert_eq!(result, Err(DeliveryError::Mail { command, code }));
        assert!(received.mail.is_empty());
    }
}
