//! The API server as a front proxy: it authenticates users and names them in headers.
//!
//! The `ConfigMap` `extension-apiserver-authentication` names the authority of its client certificate. A connection without
//! such a certificate is refused during the handshake, so that no request with forged headers is ever read.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use http::HeaderMap;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};

use super::User;
use super::name::common_name;

const NAMESPACE: &str = "kube-system";
const CONFIG: &str = "extension-apiserver-authentication";

/// The front proxy of a cluster; clones share its settings.
#[derive(Clone, Debug)]
pub struct FrontProxy(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    provider: Arc<CryptoProvider>,
    /// None until the `ConfigMap` was read.
    current: RwLock<Option<Arc<Settings>>>,
}

#[derive(Debug)]
struct Settings {
    verifier: Arc<dyn ClientCertVerifier>,
    /// Common names of client certificates; empty admits all of the authority.
    names: Vec<String>,
    user_headers: Vec<String>,
    uid_headers: Vec<String>,
    group_headers: Vec<String>,
    extra_prefixes: Vec<String>,
    authority: String,
}

#[derive(Debug, thiserror::Error)]
enum SettingsError {
    #[error("cannot read the ConfigMap `{CONFIG}` in namespace {NAMESPACE}")]
    Read(#[source] Box<kube::Error>),
    #[error(
        "the ConfigMap `{CONFIG}` names no authority: the API server runs without --requestheader-client-ca-file"
    )]
    NoAuthority,
    #[error("the key `{0}` of the ConfigMap `{CONFIG}` is invalid")]
    Invalid(&'static str),
}

impl Default for FrontProxy {
    fn default() -> Self {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        Self(Arc::new(Shared { provider, current: RwLock::default() }))
    }
}

impl FrontProxy {
    /// User that the front proxy names in the headers of a request.
    pub fn user(&self, headers: &HeaderMap) -> Option<User> {
        self.0.current()?.user(headers)
    }

    pub(super) fn verifier(&self) -> Arc<dyn ClientCertVerifier> {
        self.0.clone()
    }

    /// Reads the settings again; returns false if none were ever read.
    pub(super) async fn refresh(&self, client: &Client) -> bool {
        match self.0.read(client).await {
            Ok(settings) => {
                let changed = self.0.current().is_none_or(|old| !old.is_same(&settings));
                if changed {
                    self.0.set(Arc::new(settings));
                }
                true
            }
            Err(error) => {
                let known = self.0.current().is_some();
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                tracing::warn!(%error, cause, "cannot authenticate the API server");
                known
            }
        }
    }
}

impl Shared {
    fn current(&self) -> Option<Arc<Settings>> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, settings: Arc<Settings>) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Some(settings);
    }

    async fn read(&self, client: &Client) -> Result<Settings, SettingsError> {
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
        let map = maps.get(CONFIG).await.map_err(|error| SettingsError::Read(Box::new(error)))?;
        Settings::new(&map.data.unwrap_or_default(), &self.provider)
    }

    fn settings(&self) -> Result<Arc<Settings>, Error> {
        self.current().ok_or_else(|| Error::General("no front proxy is known yet".to_owned()))
    }
}

impl Settings {
    fn new(
        data: &BTreeMap<String, String>,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, SettingsError> {
        const AUTHORITY: &str = "requestheader-client-ca-file";
        let authority = data.get(AUTHORITY).ok_or(SettingsError::NoAuthority)?.clone();
        let mut roots = RootCertStore::empty();
        for root in CertificateDer::pem_slice_iter(authority.as_bytes()) {
            let added = root.ok().and_then(|root| roots.add(root).ok());
            added.ok_or(SettingsError::Invalid(AUTHORITY))?;
        }
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
                .build()
                .map_err(|_| SettingsError::Invalid(AUTHORITY))?;
        let list = |key: &'static str| match data.get(key) {
            None => Ok(Vec::new()),
            Some(text) => serde_json::from_str(text).map_err(|_| SettingsError::Invalid(key)),
        };
        Ok(Self {
            verifier,
            names: list("requestheader-allowed-names")?,
            user_headers: list("requestheader-username-headers")?,
            uid_headers: list("requestheader-uid-headers")?,
            group_headers: list("requestheader-group-headers")?,
            extra_prefixes: list("requestheader-extra-headers-prefix")?,
            authority,
        })
    }

    fn is_same(&self, other: &Self) -> bool {
        let lists = |one: &Self| {
            [
                &one.names,
                &one.user_headers,
                &one.uid_headers,
                &one.group_headers,
                &one.extra_prefixes,
            ]
            .map(Clone::clone)
        };
        self.authority == other.authority && lists(self) == lists(other)
    }

    fn admits(&self, certificate: &CertificateDer<'_>) -> bool {
        let Ok(certificate) = webpki::EndEntityCert::try_from(certificate) else { return false };
        let name = common_name(certificate.subject());
        self.names.is_empty() || name.is_some_and(|name| self.names.iter().any(|one| one == name))
    }

    fn user(&self, headers: &HeaderMap) -> Option<User> {
        let texts = |name: &String| {
            headers.get_all(name.as_str()).iter().filter_map(|value| value.to_str().ok())
        };
        let first = |names: &[String]| {
            let mut found = names.iter().flat_map(texts).filter(|text| !text.is_empty());
            found.next().map(str::to_owned)
        };
        let groups = self.group_headers.iter().flat_map(texts).map(str::to_owned).collect();
        let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (header, value) in headers {
            let key = self.extra_prefixes.iter().find_map(|prefix| {
                let start = header.as_str().get(..prefix.len())?;
                start.eq_ignore_ascii_case(prefix).then(|| &header.as_str()[prefix.len()..])
            });
            if let (Some(key), Ok(value)) = (key, value.to_str()) {
                extra.entry(unescape(key)).or_default().push(value.to_owned());
            }
        }
        let name = first(&self.user_headers)?;
        Some(User { name, uid: first(&self.uid_headers), groups, extra })
    }
}

/// Decodes the percent encoding of an extra key.
fn unescape(key: &str) -> String {
    let mut bytes = Vec::with_capacity(key.len());
    let mut rest = key.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let code = after.get(..2).filter(|_| *first == b'%');
        let code = code.and_then(|code| std::str::from_utf8(code).ok());
        if let Some(byte) = code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            bytes.push(byte);
            rest = &after[2..];
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

impl ClientCertVerifier for Shared {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let settings = self.settings()?;
        let verified = settings.verifier.verify_client_cert(certificate, chain, now)?;
        if !settings.admits(certificate) {
            return Err(Error::General("the client is not the front proxy".to_owned()));
        }
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

    use super::*;

    struct Authority(CertifiedIssuer<'static, KeyPair>);

    impl Authority {
        fn new() -> Self {
            let mut authority = CertificateParams::default();
            authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let key = KeyPair::generate().unwrap();
            Self(CertifiedIssuer::self_signed(authority, key).unwrap())
        }

        fn client(&self, name: &str) -> CertificateDer<'static> {
            let mut client = CertificateParams::default();
            client.distinguished_name.push(DnType::OrganizationName, "team");
            client.distinguished_name.push(DnType::CommonName, name);
            let key = KeyPair::generate().unwrap();
            client.signed_by(&key, &self.0).unwrap().der().clone()
        }
    }

    fn proxy(authority: &Authority, names: &str) -> FrontProxy {
        let proxy = FrontProxy::default();
        let data = [
            ("requestheader-client-ca-file", authority.0.pem()),
            ("requestheader-allowed-names", names.to_owned()),
            ("requestheader-username-headers", r#"["X-Remote-User"]"#.to_owned()),
            ("requestheader-uid-headers", r#"["X-Remote-Uid"]"#.to_owned()),
            ("requestheader-group-headers", r#"["X-Remote-Group"]"#.to_owned()),
            ("requestheader-extra-headers-prefix", r#"["X-Remote-Extra-"]"#.to_owned()),
        ];
        let data = data.map(|(key, value)| (key.to_owned(), value)).into();
        proxy.0.set(Arc::new(Settings::new(&data, &proxy.0.provider).unwrap()));
        proxy
    }

    #[test]
    fn only_a_certificate_of_the_authority_with_an_allowed_name_is_the_front_proxy() {
        let (authority, other) = (Authority::new(), Authority::new());
        let named = proxy(&authority, r#"["front-proxy-client"]"#);
        let admits = |proxy: &FrontProxy, certificate: &CertificateDer<'_>| {
            proxy.verifier().verify_client_cert(certificate, &[], UnixTime::now()).is_ok()
        };
        assert!(admits(&named, &authority.client("front-proxy-client")));
        assert!(!admits(&named, &authority.client("front-proxy")));
        assert!(!admits(&named, &other.client("front-proxy-client")));
        assert!(admits(&proxy(&authority, "[]"), &authority.client("any")));
        assert!(!admits(&FrontProxy::default(), &authority.client("front-proxy-client")));
        assert!(named.verifier().client_auth_mandatory());
    }

    #[test]
    fn the_headers_of_the_front_proxy_name_the_user() {
        let proxy = proxy(&Authority::new(), "[]");
        let mut headers = HeaderMap::new();
        assert_eq!(proxy.user(&headers), None);
        for (name, value) in [
            ("x-remote-user", "ada"),
            ("x-remote-uid", "7"),
            ("x-remote-group", "team"),
            ("x-remote-group", "system:authenticated"),
            ("x-remote-extra-example.com%2fscopes", "read"),
        ] {
            headers.append(name, value.parse().unwrap());
        }
        let user = proxy.user(&headers).unwrap();
        assert_eq!((user.name.as_str(), user.uid.as_deref()), ("ada", Some("7")));
        assert_eq!(user.groups, ["team", "system:authenticated"]);
        assert_eq!(user.extra["example.com/scopes"], ["read"]);
    }
}
