//! Trust of sinks, and causes of failed connections.

use std::error::Error;
use std::io;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

use super::DeliveryError;

pub(super) fn read_authority(path: &str) -> Result<Vec<u8>, DeliveryError> {
    std::fs::read(path).map_err(|_| DeliveryError::Authority(path.to_owned()))
}

/// Configuration that trusts the authorities of the system and of the file.
pub(super) fn client_config(ca_file: Option<&str>) -> Result<Arc<ClientConfig>, DeliveryError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(path) = ca_file {
        let pem = read_authority(path)?;
        let found = CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok);
        let (added, _) = roots.add_parsable_certificates(found);
        if added == 0 {
            return Err(DeliveryError::Authority(path.to_owned()));
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|_| DeliveryError::Broken)?;
    Ok(Arc::new(builder.with_root_certificates(roots).with_no_client_auth()))
}

/// Cause of a failed connection, if the error has one that can be shown.
pub(super) fn problem(error: &(dyn Error + 'static)) -> Option<String> {
    if let Some(error) = error.downcast_ref::<rustls::Error>() {
        return Some(match error {
            rustls::Error::InvalidCertificate(_) => "the certificate is not trusted".to_owned(),
            _ => "TLS failed".to_owned(),
        });
    }
    let error = error.downcast_ref::<io::Error>()?;
    // An error of rustls inside.
    if let Some(inner) = error.get_ref().and_then(|inner| problem(inner)) {
        return Some(inner);
    }
    let known = error.kind() != io::ErrorKind::Other && error.raw_os_error().is_some();
    known.then(|| error.kind().to_string())
}
