//! Trust in the certificate of a server: system authorities, a private authority, or a pinned public key.

use std::error::Error;
use std::fmt;
use std::fmt::Write as _;
use std::io;
use std::str::FromStr;
use std::sync::Arc;

use hmac::{Hmac, KeyInit as _, Mac as _};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, OtherError, SignatureScheme};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use crate::units::Secret;

/// Accepted certificates of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// Certificates signed by an authority of the system.
    #[default]
    System,
    /// Certificates signed by one of these authorities, as PEM; authorities of the system do not count.
    Authority(Vec<u8>),
    /// Certificates with this public key, regardless of names and dates.
    Pinned(Fingerprint),
    /// No certificate: the error has the fingerprint of the server.
    Nothing,
}

/// SHA-256 of the public key (`SubjectPublicKeyInfo`) of a certificate. A renewed certificate with the same key has the
/// same fingerprint.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Fingerprint([u8; 32]);

/// Text that is not a fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a fingerprint is `sha256:` and 64 hexadecimal digits; the server logs it at its start")]
pub struct NotAFingerprint;

impl Fingerprint {
    /// Fingerprint of a certificate in DER.
    pub fn of_certificate(certificate: &CertificateDer<'_>) -> Result<Self, rustls::Error> {
        let key = ParsedCertificate::try_from(certificate)?.subject_public_key_info();
        Ok(Self(Sha256::digest(key.as_ref()).into()))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sha256:")?;
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Fingerprint {
    type Err = NotAFingerprint;

    /// Also accepts upper case, colons between the bytes, and no prefix.
    fn from_str(text: &str) -> Result<Self, NotAFingerprint> {
        let text = text.trim().to_ascii_lowercase();
        let digits: String =
            text.strip_prefix("sha256:").unwrap_or(&text).chars().filter(|c| *c != ':').collect();
        if digits.len() != 64 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(NotAFingerprint);
        }
        let mut bytes = [0; 32];
        for (byte, at) in bytes.iter_mut().zip((0..64).step_by(2)) {
            *byte = u8::from_str_radix(&digits[at..at + 2], 16).map_err(|_| NotAFingerprint)?;
        }
        Ok(Self(bytes))
    }
}

impl From<Fingerprint> for String {
    fn from(fingerprint: Fingerprint) -> Self {
        fingerprint.to_string()
    }
}

impl TryFrom<String> for Fingerprint {
    type Error = NotAFingerprint;

    fn try_from(text: String) -> Result<Self, NotAFingerprint> {
        text.parse()
    }
}

/// Cause of a rejected certificate.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CertificateProblem {
    /// No trusted authority signed the certificate.
    #[error("no trusted authority signed it")]
    UnknownIssuer,
    /// The public key differs from the pinned one.
    #[error("its fingerprint is {found}, expected {expected}")]
    OtherKey { expected: Fingerprint, found: Fingerprint },
    /// Nothing is trusted; the fingerprint is the one of the server.
    #[error("its fingerprint {found} is not trusted yet")]
    NotPinned { found: Fingerprint },
    #[error("it has expired")]
    Expired,
    /// For another name, not valid yet, or malformed.
    #[error("{0}")]
    Invalid(String),
}

/// Proof that the holder of the hash of a registration token serves with this public key.
///
/// The agent sends a random nonce before it sends the token; only the real server can compute the answer, and the
/// answer holds for one public key only. `token_hash` is the SHA-256 of the token in hexadecimal.
pub fn server_proof(token_hash: &str, nonce: &str, fingerprint: &Fingerprint) -> String {
    let key = token_hash.as_bytes();
    // HMAC accepts keys of any length.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else { return String::new() };
    mac.update(format!("agentaflow server proof\n{nonce}\n{fingerprint}").as_bytes());
    hex(&mac.finalize().into_bytes())
}

/// Hash of a registration token for [`server_proof`].
pub fn token_hash(token: &Secret) -> String {
    hex(&Sha256::digest(token.expose().trim().as_bytes()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(64), |mut text, byte| {
        // Writing to a string never fails.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// TLS configuration that accepts one public key, or none.
pub(super) fn pinned_config(pin: Option<Fingerprint>) -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let algorithms = provider.signature_verification_algorithms;
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(PinVerifier { pin, algorithms }))
        .with_no_client_auth())
}

/// The TLS error among the causes of an error.
pub(super) fn certificate_problem(error: &(dyn Error + 'static)) -> Option<CertificateProblem> {
    let mut cause = Some(error);
    while let Some(current) = cause {
        if let Some(found) = tls_error(current) {
            return problem(found);
        }
        cause = current.source();
    }
    None
}

/// An `io::Error` hides the error that it wraps from `source`.
pub(super) fn tls_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    if let Some(found) = error.downcast_ref::<rustls::Error>() {
        return Some(found);
    }
    let inner: &'a (dyn Error + 'static) = error.downcast_ref::<io::Error>()?.get_ref()?;
    tls_error(inner)
}

fn problem(error: &rustls::Error) -> Option<CertificateProblem> {
    let rustls::Error::InvalidCertificate(cause) = error else { return None };
    Some(match cause {
        CertificateError::UnknownIssuer => CertificateProblem::UnknownIssuer,
        CertificateError::Other(OtherError(other)) => other
            .downcast_ref::<CertificateProblem>()
            .cloned()
            // A self-signed certificate that the verifier of the system takes for an authority.
            .unwrap_or(CertificateProblem::UnknownIssuer),
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            CertificateProblem::Expired
        }
        other => CertificateProblem::Invalid(other.to_string()),
    })
}

#[derive(Debug)]
struct PinVerifier {
    pin: Option<Fingerprint>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for PinVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let found = Fingerprint::of_certificate(certificate)?;
        let problem = match self.pin {
            Some(expected) if expected == found => return Ok(ServerCertVerified::assertion()),
            Some(expected) => CertificateProblem::OtherKey { expected, found },
            None => CertificateProblem::NotPinned { found },
        };
        Err(CertificateError::Other(OtherError(Arc::new(problem))).into())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_is_read_in_the_usual_spellings_and_written_in_one() {
        let digits = "ab".repeat(32);
        let written = format!("sha256:{digits}");
        let colons = vec!["AB"; 32].join(":");
        for text in [&written, &digits, &colons, &format!("SHA256:{colons}")] {
            assert_eq!(text.parse::<Fingerprint>().unwrap().to_string(), written);
        }
        for text in
            ["", "sha256:", "sha1:ab", &digits[1..], &format!("{digits}0"), &"xy".repeat(32)]
        {
            assert_eq!(text.parse::<Fingerprint>(), Err(NotAFingerprint), "{text}");
        }
    }

    #[test]
    fn a_proof_holds_for_one_token_one_nonce_and_one_key() {
        let key = |digit: &str| digit.repeat(64).parse::<Fingerprint>().unwrap();
        let (one, other) = (token_hash(&"afr_1".into()), token_hash(&"afr_2".into()));
        let proof = server_proof(&one, "nonce", &key("a"));
        assert_eq!(proof, server_proof(&one, "nonce", &key("a")));
        for forged in [
            server_proof(&other, "nonce", &key("a")),
            server_proof(&one, "another", &key("a")),
            server_proof(&one, "nonce", &key("b")),
        ] {
            assert_ne!(proof, forged);
        }
    }
}
