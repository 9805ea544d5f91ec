//! Key and certificate that the server creates for itself.
//!
//! Clients pin the public key. The key therefore stays when the certificate is renewed.

use std::path::Path;

use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan as _};
use rcgen::{CertificateParams, DnType, KeyPair};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use zeroize::Zeroizing;

use agentaflow_api::client::not_after;

use super::{MARGIN, TlsError};
use crate::secrets::{create_secret_file, read_secret_file, write_secret_file};

/// Lifetime of a certificate in days.
const VALID: i32 = 365;

#[derive(Debug)]
pub(super) struct SelfSigned {
    /// Names and addresses of the server.
    pub(super) names: Vec<String>,
}

impl SelfSigned {
    /// Creates the missing files, and a new certificate if the old one expires within the margin.
    pub(super) fn keep(
        &self,
        certificate: &Path,
        key: &Path,
        now: Timestamp,
    ) -> Result<(), TlsError> {
        if !key.exists() {
            let fresh = Zeroizing::new(KeyPair::generate()?.serialize_pem());
            create_secret_file(key, fresh.as_bytes())?;
        }
        if key.exists() && is_current(certificate, now) {
            return Ok(());
        }
        let Some(pem) = read_secret_file(key)? else { return Ok(()) };
        let made = self.certificate(&KeyPair::from_pem(&pem)?, now)?;
        write_secret_file(certificate, made.as_bytes())?;
        tracing::info!(certificate = %certificate.display(), "Certificate created");
        Ok(())
    }

    fn certificate(&self, key: &KeyPair, now: Timestamp) -> Result<String, TlsError> {
        let today = now.to_zoned(TimeZone::UTC).date();
        let day = |date: jiff::civil::Date| {
            rcgen::date_time_ymd(date.year().into(), date.month() as u8, date.day() as u8)
        };
        let mut params = CertificateParams::new(self.names.clone())?;
        params.distinguished_name.push(DnType::CommonName, "agentaflow server");
        params.not_before = day(today.saturating_sub(1.day()));
        params.not_after = day(today.saturating_add(VALID.days()));
        Ok(params.self_signed(key)?.pem())
    }
}

fn is_current(certificate: &Path, now: Timestamp) -> bool {
    let read = std::fs::read(certificate).ok();
    let expires = read
        .and_then(|pem| CertificateDer::from_pem_slice(&pem).ok())
        .and_then(|der| not_after(&der));
    expires.is_some_and(|expires| expires.duration_since(now) > MARGIN)
}
