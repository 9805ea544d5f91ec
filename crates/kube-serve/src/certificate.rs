//! Serving certificate of the scheduler's HTTPS ports.
//!
//! All ports of all replicas serve the same certificate from a Secret: the first replica creates it, and any replica renews it
//! before it expires. The new authority is trusted beside the old one, so that replicas can switch at different
//! times.

use std::io;
use std::path::PathBuf;

use base64::Engine as _;
use jiff::{SignedDuration, Timestamp, ToSpan, tz::TimeZone};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, ResourceExt};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::NoServerSessionStorage;
use rustls::{RootCertStore, ServerConfig};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::FrontProxy;

/// Secret shared by the replicas.
pub const SECRET: &str = "agentaflow-webhook-certs";

/// Lifetime of a certificate in days.
const VALID: i32 = 365;
/// Remaining lifetime at which it is renewed.
const MARGIN: SignedDuration = SignedDuration::from_hours(30 * 24);
/// Annotation of the Secret: end of the certificate's validity.
const EXPIRES: &str = "agentaflow.io/expires";
/// Annotation of the Secret: DNS names of the certificate.
const NAMES: &str = "agentaflow.io/names";

/// Names and source of the certificate.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// Namespace of agentaflow, with the Secret.
    pub namespace: String,
    /// Service of the scheduler.
    pub service: String,
    /// Address such as `https://127.0.0.1:9443` that an API server uses in place of the service.
    pub url: Option<String>,
    pub source: CertificateSource,
}

/// Source of the certificate.
#[derive(Clone, Debug)]
pub enum CertificateSource {
    /// Created by the scheduler and shared among the replicas in a Secret.
    SelfMade,
    /// PEM files maintained externally; read again after a change.
    Files {
        /// Certificate chain.
        certificate: PathBuf,
        key: PathBuf,
        /// Trusted authority; without it no API server trusts the certificate.
        authority: Option<PathBuf>,
    },
}

/// No usable certificate.
#[derive(Debug, thiserror::Error)]
pub(super) enum CertificateError {
    #[error("cannot read or write the Secret `{SECRET}`")]
    Secret(#[source] Box<kube::Error>),
    #[error("cannot create a certificate")]
    Make(#[from] rcgen::Error),
    #[error("cannot read `{path}`")]
    File { path: String, source: io::Error },
    #[error("the certificate or its key is not PEM")]
    Pem(#[from] rustls::pki_types::pem::Error),
    #[error("the certificate is unusable")]
    Tls(#[from] rustls::Error),
}

/// A certificate with its key, as PEM.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Identity {
    certificate: Vec<u8>,
    key: Vec<u8>,
    /// Certificate authority for the API server.
    authority: Option<Vec<u8>>,
}

impl Identity {
    /// CA bundle for objects that name the port, such as webhook configurations.
    pub(super) fn bundle(&self) -> Option<String> {
        let authority = self.authority.as_ref()?;
        Some(base64::engine::general_purpose::STANDARD.encode(authority))
    }

    /// Verifies the certificate like the API server; `None` unless it is trusted under all names at time `then`.
    fn is_trusted(&self, names: &BTreeSet<String>, then: UnixTime) -> Option<()> {
        let mut roots = RootCertStore::empty();
        for authority in CertificateDer::pem_slice_iter(self.authority.as_ref()?) {
            roots.add(authority.ok()?).ok()?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().ok()?;
        let leaf = CertificateDer::from_pem_slice(&self.certificate).ok()?;
        for name in names {
            let name = ServerName::try_from(name.as_str()).ok()?;
            verifier.verify_server_cert(&leaf, &[], &name, &[], then).ok()?;
        }
        Some(())
    }

    /// TLS settings of a port; with a front proxy only for its connections.
    pub(super) fn server(
        &self,
        front_proxy: Option<&FrontProxy>,
    ) -> Result<Arc<ServerConfig>, CertificateError> {
        let chain: Vec<_> =
            CertificateDer::pem_slice_iter(&self.certificate).collect::<Result<_, _>>()?;
        let key = PrivateKeyDer::from_pem_slice(&self.key)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder =
            ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let mut config = match front_proxy {
            None => builder.with_no_client_auth().with_single_cert(chain, key)?,
            Some(proxy) => {
                let builder = builder.with_client_cert_verifier(proxy.verifier());
                let mut config = builder.with_single_cert(chain, key)?;
                // A resumed session would outlive the authority of its client.
                config.session_storage = Arc::new(NoServerSessionStorage {});
                config.send_tls13_tickets = 0;
                config
            }
        };
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

/// The certificate to serve now.
pub(super) async fn current(
    options: &Certificate,
    client: &Client,
) -> Result<Identity, CertificateError> {
    match &options.source {
        CertificateSource::SelfMade => shared(options, client).await,
        CertificateSource::Files { certificate, key, authority } => {
            let read = async |path: &std::path::Path| {
                tokio::fs::read(path).await.map_err(|source| CertificateError::File {
                    path: path.display().to_string(),
                    source,
                })
            };
            let authority = match authority {
                Some(path) => Some(read(path).await?),
                None => None,
            };
            Ok(Identity { certificate: read(certificate).await?, key: read(key).await?, authority })
        }
    }
}

/// Reads the Secret; creates or renews it if necessary. If several replicas write, one succeeds and the rest read
/// again.
async fn shared(options: &Certificate, client: &Client) -> Result<Identity, CertificateError> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &options.namespace);
    let failed = |error| CertificateError::Secret(Box::new(error));
    let parameters = PostParams::default();
    loop {
        let found = secrets.get_opt(SECRET).await.map_err(failed)?;
        let now = Timestamp::now();
        let names = wanted(options, found.as_ref());
        if let Some(found) = found.as_ref().filter(|found| is_good(found, &names, now))
            && let Some(identity) = identity(found)
        {
            return Ok(identity);
        }
        let next = make(&names, found.as_ref(), now)?;
        let written = match &found {
            Some(_) => secrets.replace(SECRET, &parameters, &next).await,
            None => secrets.create(&parameters, &next).await,
        };
        match written {
            Ok(made) => {
                tracing::info!("created a serving certificate");
                if let Some(identity) = identity(&made) {
                    return Ok(identity);
                }
            }
            // Another replica was first, or the Secret was deleted. A missing namespace is an error.
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(kube::Error::Api(status)) if status.code == 404 && found.is_some() => {}
            Err(error) => return Err(failed(error)),
        }
    }
}

/// DNS names for the API server, with the names requested by other replicas.
fn wanted(options: &Certificate, found: Option<&Secret>) -> BTreeSet<String> {
    let Certificate { namespace, service, url, .. } = options;
    let mut names: BTreeSet<_> =
        [format!("{service}.{namespace}.svc"), format!("{service}.{namespace}.svc.cluster.local")]
            .into();
    let host = url.as_ref().and_then(|url| url.parse::<http::Uri>().ok());
    let host = host.as_ref().and_then(http::Uri::host);
    names.extend(host.map(|host| host.trim_matches(['[', ']']).to_owned()));
    names.extend(found.into_iter().flat_map(names_of));
    // A name that is invalid in a certificate would cause endless renewals.
    names.retain(|name| ServerName::try_from(name.as_str()).is_ok());
    names
}

fn names_of(secret: &Secret) -> Vec<String> {
    let names = secret.annotations().get(NAMES).map(String::as_str).unwrap_or_default();
    names.split(',').filter(|name| !name.is_empty()).map(ToOwned::to_owned).collect()
}

/// True if the certificate is valid under every name at the end of the margin. Decided by the certificate itself, not
/// by annotations.
fn is_good(secret: &Secret, names: &BTreeSet<String>, now: Timestamp) -> bool {
    let then = now.checked_add(MARGIN).ok().and_then(|then| u64::try_from(then.as_second()).ok());
    let then = then.map(|seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds)));
    let Some((then, identity)) = then.zip(identity(secret)) else { return false };
    identity.is_trusted(names, then).is_some()
}

fn identity(secret: &Secret) -> Option<Identity> {
    let data = secret.data.as_ref()?;
    let get = |key: &str| data.get(key).map(|bytes| bytes.0.clone());
    let identity = Identity {
        certificate: get("tls.crt")?,
        key: get("tls.key")?,
        authority: Some(get("ca.crt")?),
    };
    // A corrupt certificate is replaced.
    identity.server(None).is_ok().then_some(identity)
}

/// Secret with a new authority and a certificate signed by it. The authority's key is discarded.
fn make(
    names: &BTreeSet<String>,
    found: Option<&Secret>,
    now: Timestamp,
) -> Result<Secret, CertificateError> {
    let today = now.to_zoned(TimeZone::UTC).date();
    let (start, end) = (today.saturating_sub(1.day()), today.saturating_add(VALID.days()));
    let day = |date: jiff::civil::Date| {
        rcgen::date_time_ymd(date.year().into(), date.month() as u8, date.day() as u8)
    };
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.distinguished_name.push(DnType::CommonName, format!("agentaflow scheduler {now}"));
    authority.not_before = day(start);
    authority.not_after = day(end);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
    let key = KeyPair::generate()?;
    let mut leaf = CertificateParams::new(names.iter().cloned().collect::<Vec<_>>())?;
    leaf.distinguished_name.push(DnType::CommonName, "agentaflow scheduler");
    leaf.not_before = day(start);
    leaf.not_after = day(end);
    let leaf = leaf.signed_by(&key, &authority)?;

    let mut trusted = authority.pem();
    trusted.extend(found.and_then(newest_authority));
    let data = [
        ("ca.crt".to_owned(), ByteString(trusted.into_bytes())),
        ("tls.crt".to_owned(), ByteString(leaf.pem().into_bytes())),
        ("tls.key".to_owned(), ByteString(key.serialize_pem().into_bytes())),
    ];
    let names: Vec<_> = names.iter().cloned().collect();
    let expires = end.to_zoned(TimeZone::UTC).map_or(now, |end| end.timestamp());
    let annotations =
        [(EXPIRES.to_owned(), expires.to_string()), (NAMES.to_owned(), names.join(","))];
    Ok(Secret {
        metadata: ObjectMeta {
            name: Some(SECRET.to_owned()),
            annotations: Some(BTreeMap::from(annotations)),
            resource_version: found.and_then(ResourceExt::resource_version),
            ..ObjectMeta::default()
        },
        type_: Some("kubernetes.io/tls".to_owned()),
        data: Some(BTreeMap::from(data)),
        ..Secret::default()
    })
}

/// Authority of the certificate that other replicas may still serve.
fn newest_authority(secret: &Secret) -> Option<String> {
    const END: &str = "-----END CERTIFICATE-----\n";
    let trusted = String::from_utf8(secret.data.as_ref()?.get("ca.crt")?.0.clone()).ok()?;
    let end = trusted.find(END)? + END.len();
    Some(trusted[..end].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> BTreeSet<String> {
        let options = Certificate {
            namespace: "agentaflow".to_owned(),
            service: "agentaflow-scheduler-service".to_owned(),
            url: Some("https://127.0.0.1:9443".to_owned()),
            source: CertificateSource::SelfMade,
        };
        wanted(&options, None)
    }

    #[test]
    fn a_certificate_is_for_the_service_and_for_the_address_that_is_given() {
        let names: Vec<_> = names().into_iter().collect();
        let service = "agentaflow-scheduler-service.agentaflow.svc";
        assert_eq!(names, ["127.0.0.1", service, &format!("{service}.cluster.local")]);
    }

    #[test]
    fn a_certificate_is_used_until_a_month_before_its_end() {
        let now: Timestamp = "2026-02-03T10:00:00Z".parse().unwrap();
        let secret = make(&names(), None, now).unwrap();
        assert!(identity(&secret).is_some());
        for (days, good) in [(0, true), (330, true), (340, false), (400, false)] {
            let later = now + SignedDuration::from_hours(24 * days);
            assert_eq!(is_good(&secret, &names(), later), good, "after {days} days");
        }
        let mut more = names();
        more.insert("other".to_owned());
        assert!(!is_good(&secret, &more, now));
    }

    #[test]
    fn an_annotation_does_not_extend_the_validity_of_a_certificate() {
        let now: Timestamp = "2026-02-03T10:00:00Z".parse().unwrap();
        let mut secret = make(&names(), None, now).unwrap();
        let annotations = secret.metadata.annotations.as_mut().unwrap();
        annotations.insert(EXPIRES.to_owned(), "2099-01-01T00:00:00Z".to_owned());
        let mut more = names();
        more.insert("other".to_owned());
        let all: Vec<_> = more.iter().cloned().collect();
        annotations.insert(NAMES.to_owned(), all.join(","));
        assert!(!is_good(&secret, &names(), now + SignedDuration::from_hours(24 * 400)));
        assert!(!is_good(&secret, &more, now));
        assert!(is_good(&secret, &names(), now));
    }

    #[test]
    fn the_next_certificate_is_trusted_beside_the_one_before_and_no_other() {
        let now = Timestamp::now();
        let first = make(&names(), None, now).unwrap();
        let second = make(&names(), Some(&first), now).unwrap();
        let third = make(&names(), Some(&second), now).unwrap();
        let trusted = |secret: &Secret| {
            let bytes = &secret.data.as_ref().unwrap()["ca.crt"].0;
            CertificateDer::pem_slice_iter(bytes).collect::<Result<Vec<_>, _>>().unwrap()
        };
        let (first, second, third) = (trusted(&first), trusted(&second), trusted(&third));
        assert_eq!((first.len(), second.len(), third.len()), (1, 2, 2));
        assert_eq!(second[1], first[0]);
        assert_eq!(third[1], second[0]);
    }

    #[test]
    fn a_corrupt_secret_is_not_served() {
        let mut secret = make(&names(), None, Timestamp::now()).unwrap();
        secret.data.as_mut().unwrap().insert("tls.key".to_owned(), ByteString(b"x".to_vec()));
        assert!(identity(&secret).is_none());
    }
}
