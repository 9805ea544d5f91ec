//! Contexts in `~/.config/agentaflow/config.toml`.
//!
//! A context is a server URL with a token, or a kubeconfig context with a namespace. The file has mode 0600 and is
//! replaced atomically, so that concurrent commands cannot leave a partial file.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io::{IsTerminal as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Once;

use agentaflow_api::Secret;
use agentaflow_api::client::{Client, Fingerprint};
use agentaflow_units::{did_you_mean, nearest};
use anyhow::{Context as _, Result, anyhow};
use serde::{Deserialize, Serialize};

use crate::failure::{NoServer, not_found};
use crate::trust::ServerTrust;

/// Name of the context that `up` writes.
pub(crate) const LOCAL: &str = "local";

/// The context file. Fields of newer versions are preserved.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Contexts {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) current: Option<String>,
    #[serde(rename = "contexts")]
    pub(crate) known: BTreeMap<String, Target>,
    #[serde(flatten)]
    other: BTreeMap<String, toml::Value>,
}

/// A server with its token, or a Kubernetes cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Target {
    /// URL; empty for a cluster.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) server: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kubernetes: Option<Kubernetes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<Secret>,
    /// File with the current token; takes precedence over `token`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_file: Option<PathBuf>,
    /// Public key of the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) server_fingerprint: Option<Fingerprint>,
    /// PEM file of the authority of the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ca_cert: Option<PathBuf>,
    #[serde(flatten)]
    other: BTreeMap<String, toml::Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Kubernetes {
    /// The kubeconfig; `KUBECONFIG` or `~/.kube/config` when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig; its current context when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) context: Option<String>,
    /// Namespace of jobs; the namespace of the kubeconfig context when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) namespace: Option<String>,
    /// Namespace of the agentaflow installation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) system_namespace: Option<String>,
    /// URL of the scheduler; the proxy of the API server when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) scheduler: Option<String>,
}

impl Target {
    pub(crate) fn description(&self) -> String {
        let Some(kubernetes) = &self.kubernetes else { return self.server.clone() };
        let context = kubernetes.context.as_deref().unwrap_or("the current context");
        let namespace = kubernetes.namespace.as_deref();
        let namespace = namespace.map(|name| format!(", namespace {name}")).unwrap_or_default();
        format!("Kubernetes, {context}{namespace}")
    }

    pub(crate) fn cluster(kubernetes: Kubernetes) -> Self {
        Self { kubernetes: Some(kubernetes), ..Self::default() }
    }

    pub(crate) fn new(server: impl Into<String>, token: Option<Secret>) -> Self {
        Self { server: server.into(), token, ..Self::default() }
    }

    #[must_use]
    pub(crate) fn trusting(mut self, trust: ServerTrust) -> Self {
        self.server_fingerprint = trust.fingerprint;
        self.ca_cert = trust.ca_cert;
        self
    }

    /// Client of the server.
    pub(crate) fn client(&self) -> Result<Client> {
        let (fingerprint, ca_cert) = (self.server_fingerprint, self.ca_cert.clone());
        let trust = ServerTrust { fingerprint, ca_cert }.trust()?.unwrap_or_default();
        Ok(Client::trusting(&self.server, self.token.clone(), &trust)?)
    }

    /// Replaces the token by the content of `token_file`, if readable.
    fn with_current_token(mut self) -> Self {
        let text = self.token_file.as_ref().and_then(|path| fs::read_to_string(path).ok());
        let token = text.map(|text| text.trim().to_owned()).filter(|token| !token.is_empty());
        self.token = token.map(Secret).or(self.token);
        self
    }
}

impl Contexts {
    /// Reads the file; a missing file has no contexts.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Self::default());
            }
            Err(error) => return Err(error).with_context(|| cannot("read", path)),
        };
        // The message of `toml` quotes the line, which may contain a token: report the line number only.
        toml::from_str(&text).map_err(|error: toml::de::Error| {
            let before = error.span().map_or(0, |span| span.start.min(text.len()));
            let line = text.get(..before).unwrap_or_default().matches('\n').count() + 1;
            anyhow!(
                "invalid context file `{}` (line {line}); correct or remove the file",
                path.display()
            )
        })
    }

    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let folder = path.parent().context("the context file has no directory")?;
        fs::create_dir_all(folder).with_context(|| cannot("create the directory of", path))?;
        let text = toml::to_string(self).context("cannot write the contexts as TOML")?;
        let draft = folder.join(format!(".config.toml.{}", std::process::id()));
        let written = write_private(&draft, &text).and_then(|()| fs::rename(&draft, path));
        written.with_context(|| {
            // The draft may not exist.
            let _ = fs::remove_file(&draft);
            cannot("write", path)
        })
    }

    pub(crate) fn named(&self, name: &str) -> Result<&Target> {
        self.known.get(name).ok_or_else(|| {
            let names: Vec<_> = self.known.keys().map(|name| format!("`{name}`")).collect();
            let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            let near = did_you_mean(nearest(name, self.known.keys().map(String::as_str)));
            not_found(format!("context `{name}` not found{near}; known contexts: {known}"))
        })
    }
}

fn cannot(verb: &str, path: &Path) -> String {
    format!("cannot {verb} the context file `{}`", path.display())
}

fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

pub(crate) fn file() -> Result<PathBuf> {
    Ok(folder("XDG_CONFIG_HOME", ".config")?.join("agentaflow/config.toml"))
}

/// Default data directory of `up`.
pub(crate) fn default_data_dir() -> Result<PathBuf> {
    Ok(folder("XDG_DATA_HOME", ".local/share")?.join("agentaflow"))
}

fn folder(variable: &str, below_home: &str) -> Result<PathBuf> {
    // The XDG specification requires relative paths to be ignored.
    let absolute =
        |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute(variable)
        .or_else(|| Some(absolute("HOME")?.join(below_home)))
        .ok_or_else(|| anyhow!("neither {variable} nor HOME is set to an absolute path"))
}

/// A non-empty environment variable.
pub(crate) fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.trim().is_empty())
}

#[derive(Default)]
struct Environment {
    server: Option<String>,
    token: Option<Secret>,
    context: Option<String>,
    /// `KUBECONFIG`.
    kubeconfig: Option<String>,
    trust: ServerTrust,
}

impl Environment {
    fn read() -> Result<Self> {
        Ok(Self {
            trust: ServerTrust::of_environment()?,
            server: variable("AGENTAFLOW_SERVER"),
            token: variable("AGENTAFLOW_TOKEN").map(|token| Secret(token.trim().to_owned())),
            context: variable("AGENTAFLOW_CONTEXT"),
            kubeconfig: variable("KUBECONFIG"),
        })
    }

    /// Adds the token of the environment to the server that the environment names, or else to a context without a
    /// token. The token must not reach any other server.
    fn add_token(&self, mut target: Target) -> Target {
        let plain = |url: &str| url.trim().trim_end_matches('/').to_owned();
        let applies =
            self.server.as_ref().is_none_or(|server| plain(server) == plain(&target.server));
        if target.token.is_none() && target.kubernetes.is_none() && applies {
            target.token.clone_from(&self.token);
        }
        target
    }
}

/// The target of a command: `--context`, else `AGENTAFLOW_SERVER` with `AGENTAFLOW_TOKEN`, else `AGENTAFLOW_CONTEXT`, else the
/// current context; else the cluster of `KUBECONFIG`, of the pod, or of `~/.kube/config`. `KUBECONFIG` precedes the
/// current context `local`, which `up` selects without a request.
pub(crate) fn target(name: Option<&str>) -> Result<Target> {
    let path = file();
    let read =
        || path.as_ref().map_or_else(|_| Ok(Contexts::default()), |path| Contexts::read(path));
    Ok(choose(name, &Environment::read()?, read)?.with_current_token())
}

/// The target of a command. On a terminal, a target that is not obvious is named on stderr, once.
pub(crate) fn target_of_command(name: Option<&str>) -> Result<Target> {
    static NOTED: Once = Once::new();
    let target = target(name)?;
    if name.is_none() && std::io::stderr().is_terminal() {
        let current = file().and_then(|path| Contexts::read(&path)).unwrap_or_default().current;
        if let Some(note) = note(&Environment::read()?, current.as_deref(), &target) {
            NOTED.call_once(|| eprintln!("note: {note}"));
        }
    }
    Ok(target)
}

/// Note on the target of a command without `--context`: with `KUBECONFIG` and a current context, one of them is ignored.
fn note(environment: &Environment, current: Option<&str>, target: &Target) -> Option<String> {
    let kubeconfig = environment.kubeconfig.as_deref()?;
    let current = current?;
    if environment.server.is_some() || environment.context.is_some() {
        return None;
    }
    match &target.kubernetes {
        Some(_) if current == LOCAL => Some(format!(
            "using the cluster of KUBECONFIG; --context {LOCAL} selects the local server"
        )),
        Some(cluster)
            if cluster.kubeconfig.as_deref().is_none_or(|file| file == Path::new(kubeconfig)) =>
        {
            None
        }
        _ => Some(format!(
            "using context `{current}`; --kubeconfig \"$KUBECONFIG\" selects that cluster"
        )),
    }
}

/// Origin of the default target, for `context show`.
pub(crate) fn default_origin() -> Result<String> {
    let path = file()?;
    Ok(match (Contexts::read(&path)?.current, variable("KUBECONFIG")) {
        (Some(current), Some(_)) if current == LOCAL => "cluster of KUBECONFIG".to_owned(),
        (Some(_), _) => format!("current context of `{}`", path.display()),
        (None, Some(_)) => "no current context; cluster of KUBECONFIG".to_owned(),
        (None, None) if in_a_pod() => "no current context; cluster of this pod".to_owned(),
        (None, None) => "no current context; cluster of ~/.kube/config".to_owned(),
    })
}

/// The cluster of the current context, else of the kubeconfig.
pub(crate) fn cluster() -> Target {
    let current = target(None).ok().filter(|target| target.kubernetes.is_some());
    current.unwrap_or_else(|| Target::cluster(Kubernetes::default()))
}

fn choose(
    name: Option<&str>,
    environment: &Environment,
    read: impl FnOnce() -> Result<Contexts>,
) -> Result<Target> {
    if let Some(name) = name {
        return Ok(environment.add_token(read()?.named(name)?.clone()));
    }
    if let Some(server) = &environment.server {
        let target = Target::new(server, None).trusting(environment.trust.clone());
        return Ok(environment.add_token(target));
    }
    let contexts = read()?;
    let current =
        contexts.current.as_ref().filter(|name| *name != LOCAL || environment.kubeconfig.is_none());
    match environment.context.as_ref().or(current) {
        Some(name) => Ok(environment.add_token(contexts.named(name)?.clone())),
        None if environment.kubeconfig.is_some() || in_a_pod() || has_kubeconfig() => {
            Ok(Target::cluster(Kubernetes::default()))
        }
        None => Err(NoServer.into()),
    }
}

fn in_a_pod() -> bool {
    variable("KUBERNETES_SERVICE_HOST").is_some()
}

fn has_kubeconfig() -> bool {
    let home = || env::var_os("HOME").map(|home| PathBuf::from(home).join(".kube/config"));
    variable("KUBECONFIG").is_some() || home().is_some_and(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_written_file_is_private_and_keeps_unknown_fields() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.toml");
        let text = "theme = \"dark\"\n[contexts.lab]\nserver = \"https://lab\"\ncolour = \"red\"\n";
        fs::write(&path, text).unwrap();
        let mut contexts = Contexts::read(&path).unwrap();
        contexts.known.insert(LOCAL.to_owned(), Target::new("http://x", Some("secret".into())));
        contexts.write(&path).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        for part in ["theme", "colour", "https://lab", "secret"] {
            assert!(text.contains(part), "{text}");
        }
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn the_error_for_an_invalid_file_has_its_line_and_no_token() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.toml");
        fs::write(&path, "[contexts.lab]\ntoken = \"secret\n").unwrap();
        let error = Contexts::read(&path).unwrap_err().to_string();
        assert!(error.contains("(line 2)") && !error.contains("secret"), "{error}");
    }

    #[test]
    fn the_error_for_an_unknown_context_lists_the_known_ones() {
        let mut contexts = Contexts::default();
        contexts.known.insert("lab".to_owned(), Target::default());
        let error = contexts.named("lob").unwrap_err().to_string();
        assert_eq!(error, "context `lob` not found (did you mean `lab`?); known contexts: `lab`");
    }

    #[test]
    fn a_kubeconfig_of_the_environment_precedes_only_the_context_of_up() {
        let contexts = |current: &str| {
            let mut contexts = Contexts::default();
            for name in [LOCAL, "prod"] {
                contexts.known.insert(name.to_owned(), Target::new(format!("http://{name}"), None));
            }
            contexts.current = Some(current.to_owned());
            Ok(contexts)
        };
        let cases = [
            (LOCAL, None, None, ""),
            (LOCAL, Some(LOCAL), None, "http://local"),
            (LOCAL, None, Some(LOCAL), "http://local"),
            ("prod", None, None, "http://prod"),
        ];
        for (current, asked, context, url) in cases {
            let environment = Environment {
                context: context.map(str::to_owned),
                kubeconfig: Some("lab.yaml".to_owned()),
                ..Environment::default()
            };
            let target = choose(asked, &environment, || contexts(current)).unwrap();
            assert_eq!(target.server, url, "{current} {asked:?} {context:?}");
            assert_eq!(target.kubernetes.is_some(), url.is_empty());
        }
    }

    #[test]
    fn a_note_names_the_target_only_where_it_is_not_obvious() {
        let lab = Some("lab.yaml");
        let server = Target::new("http://prod", None);
        let cluster = |file: Option<&str>| {
            let kubeconfig = file.map(PathBuf::from);
            Target::cluster(Kubernetes { kubeconfig, ..Kubernetes::default() })
        };
        let cases = [
            (lab, Some(LOCAL), cluster(None), true),
            (lab, Some("prod"), server.clone(), true),
            (lab, Some("prod"), cluster(Some("prod.yaml")), true),
            (lab, Some("prod"), cluster(lab), false),
            (lab, Some("prod"), cluster(None), false),
            (lab, None, cluster(None), false),
            (None, Some("prod"), server.clone(), false),
        ];
        for (kubeconfig, current, target, expected) in cases {
            let kubeconfig = kubeconfig.map(str::to_owned);
            let environment = Environment { kubeconfig, ..Environment::default() };
            let noted = note(&environment, current, &target).is_some();
            assert_eq!(noted, expected, "{current:?} {target:?}");
        }
        let explicit = Environment {
            context: Some("prod".to_owned()),
            kubeconfig: lab.map(str::to_owned),
            ..Environment::default()
        };
        assert_eq!(note(&explicit, Some(LOCAL), &server), None);
    }

    #[test]
    fn the_token_of_the_environment_reaches_only_its_server() {
        let contexts = || {
            let mut contexts = Contexts::default();
            let known = [("own", Some("own-token".into())), ("bare", None)];
            for (name, token) in known {
                contexts
                    .known
                    .insert(name.to_owned(), Target::new(format!("http://{name}"), token));
            }
            contexts.current = Some("own".to_owned());
            Ok(contexts)
        };
        let cases = [
            (None, None, None, "http://own", Some("own-token")),
            (Some("own"), None, None, "http://own", Some("own-token")),
            (Some("bare"), None, None, "http://bare", Some("lent")),
            (None, None, Some("bare"), "http://bare", Some("lent")),
            (None, Some("http://else"), None, "http://else", Some("lent")),
            (Some("bare"), Some("http://else"), None, "http://bare", None),
            (Some("bare"), Some("http://bare/"), None, "http://bare", Some("lent")),
            (Some("own"), Some("http://else"), None, "http://own", Some("own-token")),
        ];
        for (asked, server, context, url, token) in cases {
            let environment = Environment {
                server: server.map(str::to_owned),
                token: Some("lent".into()),
                context: context.map(str::to_owned),
                kubeconfig: None,
                trust: ServerTrust::default(),
            };
            let target = choose(asked, &environment, contexts).unwrap();
            let sent = target.token.as_ref().map(Secret::expose);
            assert_eq!((target.server.as_str(), sent), (url, token));
        }
    }
}
