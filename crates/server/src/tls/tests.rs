use super::*;

fn names() -> Vec<String> {
    vec!["localhost".to_owned(), "127.0.0.1".to_owned()]
}

fn own(data: &Path) -> Certificates {
    Certificates::load(&Tls::SelfSigned, data, names()).unwrap()
}

#[test]
fn a_self_signed_certificate_lasts_a_year_and_keeps_its_fingerprint_when_renewed() {
    use std::os::unix::fs::PermissionsExt as _;
    let data = tempfile::tempdir().unwrap();
    let first = own(data.path());
    let expires = first.expires().unwrap();
    let days = expires.duration_since(Timestamp::now()).as_hours() / 24;
    assert!((363..=365).contains(&days), "{days}");
    let mode = data.path().join("tls-key.pem").metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let maker = self_signed::SelfSigned { names: names() };
    let files = (&first.files.certificate, &first.files.key);
    let before = std::fs::read(files.0).unwrap();
    for (days, renewed) in [(300, false), (340, true)] {
        let later = Timestamp::now() + SignedDuration::from_hours(24 * days);
        maker.keep(files.0, files.1, later).unwrap();
        assert_eq!(std::fs::read(files.0).unwrap() != before, renewed, "after {days} days");
    }
    first.check();
    assert!(first.expires().unwrap() > expires);
    assert_eq!(first.fingerprint(), own(data.path()).fingerprint());
}

#[test]
fn changed_files_replace_the_certificate_and_unusable_ones_do_not() {
    let (data, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    own(data.path());
    let next = own(other.path());
    let (certificate, key) = (data.path().join("tls-cert.pem"), data.path().join("tls-key.pem"));
    let tls = Tls::Files { certificate: certificate.clone(), key: key.clone() };
    let served = Certificates::load(&tls, data.path(), Vec::new()).unwrap();
    let before = served.fingerprint();
    std::fs::copy(&next.files.certificate, &certificate).unwrap();
    served.check();
    assert_eq!(served.fingerprint(), before, "the key does not match yet");
    std::fs::copy(&next.files.key, &key).unwrap();
    served.check();
    assert_eq!(served.fingerprint(), next.fingerprint());
    std::fs::remove_file(&key).unwrap();
    served.check();
    assert_eq!(served.fingerprint(), next.fingerprint());
}

#[test]
fn files_that_are_no_pair_are_named() {
    let data = tempfile::tempdir().unwrap();
    own(data.path());
    let (certificate, key) = (data.path().join("tls-cert.pem"), data.path().join("tls-key.pem"));
    let load = |certificate: &Path, key: &Path| {
        let tls = Tls::Files { certificate: certificate.to_owned(), key: key.to_owned() };
        Certificates::load(&tls, data.path(), Vec::new()).unwrap_err()
    };
    let missing = data.path().join("missing");
    assert!(matches!(load(&missing, &key), TlsError::Read { path, .. } if path == missing));
    assert!(matches!(load(&key, &key), TlsError::NoCertificate { .. }));
    assert!(matches!(load(&certificate, &certificate), TlsError::NoKey { .. }));
    let other = tempfile::tempdir().unwrap();
    let next = own(other.path());
    assert!(matches!(load(&certificate, &next.files.key), TlsError::Unusable { .. }));
}

#[test]
fn a_warning_appears_thirty_days_before_the_end() {
    let end: Timestamp = "2027-03-01T00:00:00Z".parse().unwrap();
    let at =
        |days: i64| expiry::warning(Some(end), end - SignedDuration::from_hours(24 * days), MARGIN);
    assert_eq!(at(31), None);
    assert!(at(29).unwrap().contains("2027-03-01, in 29 days"));
    assert!(at(-1).unwrap().contains("expired on 2027-03-01"));
    assert_eq!(expiry::warning(None, end, MARGIN), None);
}
