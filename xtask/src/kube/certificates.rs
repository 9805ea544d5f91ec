//! Certificates of a control plane: one authority, one for the servers, one per client.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::tools;

/// Authority of the servers and of the clients of the API server.
const AUTHORITY: &str = "ca";
const CLIENT: &str = "extendedKeyUsage=clientAuth\n";

/// A client of the API server.
pub(super) struct Identity {
    /// File name without suffix.
    pub(super) name: &'static str,
    user: &'static str,
    group: Option<&'static str>,
}

/// The built-in roles of the API server refer to the users of the controllers.
pub(super) const CLIENTS: [Identity; 6] = [
    Identity { name: "admin", user: "agentaflow-admin", group: Some("system:masters") },
    Identity { name: "controller-manager", user: "system:kube-controller-manager", group: None },
    Identity { name: "scheduler", user: "system:kube-scheduler", group: None },
    Identity { name: "kwok", user: "kwok", group: Some("system:masters") },
    Identity { name: "node", user: "system:node:real", group: Some("system:nodes") },
    // The API server uses this certificate to read logs from the real node.
    Identity { name: "kubelet-client", user: "kube-apiserver", group: Some("system:masters") },
];

/// Client of aggregated API servers: the API server as their front proxy, with an authority of its own.
pub(super) const FRONT_PROXY: &str = "front-proxy-client";
pub(super) const FRONT_PROXY_AUTHORITY: &str = "front-proxy-ca";

/// Paths of a certificate and its key.
pub(super) fn files(folder: &Path, name: &str) -> (PathBuf, PathBuf) {
    (folder.join(format!("{name}.crt")), folder.join(format!("{name}.key")))
}

/// Creates all certificates and the signing key of service account tokens.
pub(super) fn create(folder: &Path) -> Result<()> {
    tools::ensure_program("openssl")?;
    fs::create_dir_all(folder)?;
    fs::set_permissions(folder, Permissions::from_mode(0o700))?;
    authority(folder, AUTHORITY)?;
    authority(folder, FRONT_PROXY_AUTHORITY)?;
    let names = "subjectAltName=IP:127.0.0.1,DNS:localhost,DNS:kubernetes.default.svc\n\
                 extendedKeyUsage=serverAuth\n";
    signed(folder, AUTHORITY, "server", "/CN=kube-apiserver", names)?;
    let subject = format!("/CN={FRONT_PROXY}");
    signed(folder, FRONT_PROXY_AUTHORITY, FRONT_PROXY, &subject, CLIENT)?;
    for client in &CLIENTS {
        let group = client.group.map(|group| format!("/O={group}")).unwrap_or_default();
        let subject = format!("{group}/CN={}", client.user);
        signed(folder, AUTHORITY, client.name, &subject, CLIENT)?;
    }
    key(&folder.join("service-accounts.key"))
}

/// Creates a serving certificate for this address.
pub(super) fn serving(folder: &Path, name: &str, address: &str) -> Result<()> {
    let names = format!("subjectAltName=IP:{address}\nextendedKeyUsage=serverAuth\n");
    signed(folder, AUTHORITY, name, &format!("/CN={name}"), &names)
}

fn authority(folder: &Path, name: &str) -> Result<()> {
    let (certificate, private) = files(folder, name);
    key(&private)?;
    let mut request = openssl("req");
    let subject = format!("/CN=agentaflow-test-{name}");
    request.args(["-x509", "-new", "-days", "365", "-subj", &subject, "-key"]);
    run(request.arg(private).arg("-out").arg(certificate))
}

fn signed(
    folder: &Path,
    authority: &str,
    name: &str,
    subject: &str,
    extensions: &str,
) -> Result<()> {
    let (certificate, private) = files(folder, name);
    let (authority, authority_key) = files(folder, authority);
    let request_file = folder.join(format!("{name}.csr"));
    let extensions_file = folder.join(format!("{name}.ext"));
    fs::write(&extensions_file, extensions)?;
    key(&private)?;
    let mut request = openssl("req");
    request.args(["-new", "-subj", subject, "-key"]).arg(private);
    run(request.arg("-out").arg(&request_file))?;
    let mut sign = openssl("x509");
    sign.args(["-req", "-days", "365", "-CAcreateserial"]);
    sign.arg("-in").arg(&request_file).arg("-extfile").arg(&extensions_file);
    sign.arg("-CA").arg(authority).arg("-CAkey").arg(authority_key);
    run(sign.arg("-out").arg(certificate))?;
    fs::remove_file(request_file)?;
    Ok(fs::remove_file(extensions_file)?)
}

fn key(file: &Path) -> Result<()> {
    let mut command = openssl("ecparam");
    run(command.args(["-name", "prime256v1", "-genkey", "-noout", "-out"]).arg(file))
}

fn openssl(command: &str) -> Command {
    let mut openssl = Command::new("openssl");
    openssl.arg(command);
    openssl
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output().context("cannot start `openssl`")?;
    if !output.status.success() {
        bail!("`openssl` failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
