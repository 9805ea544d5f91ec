//! Who the command line speaks to: contexts in `~/.config/agentaflow/config.toml`.
//!
//! A context is a URL and a token, or a context of a kubeconfig and a namespace. The file is written whole, with mode 0600, and swapped in at once, so
//! that two commands at the same time cannot leave half a file behind.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use agentaflow_api::Secret;
use anyhow::{Context as _, Result, anyhow};
use serde::{Deserialize, Serialize};

use crate::failure::{NoServer, not_there};
use crate::nearest::nearest;

/// The context that `up` writes.
pub(crate) const LOCAL: &str = "local";

/// The file as a whole. What newer versions add to it is kept.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Contexts {
    /// The one that is used when nobody says otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) current: Option<String>,
    /// All of them, by name.
    #[serde(rename = "contexts")]
    pub(crate) known: BTreeMap<String, Target>,
    #[serde(flatten)]
    other: BTreeMap<String, toml::Value>,
}

/// A server and how to be let in, or a Kubernetes cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Target {
    /// Where the server is.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) server: String,
    /// The cluster, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kubernetes: Option<Kubernetes>,
    /// The bearer token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<Secret>,
    /// Where the token is kept up to date; what is there counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token_file: Option<PathBuf>,
    #[serde(flatten)]
    other: BTreeMap<String, toml::Value>,
}

/// A Kubernetes cluster, by a context of a kubeconfig.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Kubernetes {
    /// The kubeconfig; `KUBECONFIG` or `~/.kube/config` when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// The context in it; its current one when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) context: Option<String>,
    /// Where work goes; that context's own when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) namespace: Option<String>,
    /// The namespace of the product.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) system_namespace: Option<String>,
    /// Where the scheduler answers questions; asked through the API server when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) scheduler: Option<String>,
}

impl Target {
    /// What it is, for people.
    pub(crate) fn place(&self) -> String {
        let Some(kubernetes) = &self.kubernetes else { return self.server.clone() };
        let context = kubernetes.context.as_deref().unwrap_or("the current context");
        let namespace = kubernetes.namespace.as_deref();
        let namespace = namespace.map(|name| format!(", namespace {name}")).unwrap_or_default();
        format!("Kubernetes, {context}{namespace}")
    }

    /// A cluster.
    pub(crate) fn cluster(kubernetes: Kubernetes) -> Self {
        Self { kubernetes: Some(kubernetes), ..Self::default() }
    }

    /// A server at this URL.
    pub(crate) fn new(server: impl Into<String>, token: Option<Secret>) -> Self {
        Self { server: server.into(), token, ..Self::default() }
    }

    /// The same with the token that its file holds now, if it can be read.
    fn refreshed(mut self) -> Self {
        let text = self.token_file.as_ref().and_then(|path| fs::read_to_string(path).ok());
        let token = text.map(|text| text.trim().to_owned()).filter(|token| !token.is_empty());
        self.token = token.map(Secret).or(self.token);
        self
    }
}

impl Contexts {
    /// Reads the file; one that is not there has no contexts.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Self::default());
            }
            Err(error) => return Err(error).with_context(|| cannot("read", path)),
        };
        // What toml says quotes the line, which may hold a token: only its place is told.
        toml::from_str(&text).map_err(|error: toml::de::Error| {
            let before = error.span().map_or(0, |span| span.start.min(text.len()));
            let line = text.get(..before).unwrap_or_default().matches('\n').count() + 1;
            anyhow!(
                "`{}` is not a list of contexts (line {line}); mend it, or move it away and start again",
                path.display()
            )
        })
    }

    /// Writes the file, readable by its owner only, all at once.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let folder = path.parent().context("the context file has no folder")?;
        fs::create_dir_all(folder).with_context(|| cannot("make the folder of", path))?;
        let text = toml::to_string(self).context("cannot write the contexts as TOML")?;
        let draft = folder.join(format!(".config.toml.{}", std::process::id()));
        let written = write_private(&draft, &text).and_then(|()| fs::rename(&draft, path));
        written.with_context(|| {
            // The draft may never have been made.
            let _ = fs::remove_file(&draft);
            cannot("write", path)
        })
    }

    /// The context of that name.
    pub(crate) fn named(&self, name: &str) -> Result<&Target> {
        self.known.get(name).ok_or_else(|| {
            let names: Vec<_> = self.known.keys().map(|name| format!("`{name}`")).collect();
            let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            let near = nearest(name, self.known.keys().map(String::as_str));
            let near = near.map(|near| format!("did you mean `{near}`? ")).unwrap_or_default();
            not_there(format!("there is no context `{name}`; {near}there is {known}"))
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

/// Where the context file is.
pub(crate) fn file() -> Result<PathBuf> {
    Ok(folder("XDG_CONFIG_HOME", ".config")?.join("agentaflow/config.toml"))
}

/// Where `up` keeps its data when nobody says otherwise.
pub(crate) fn default_data_dir() -> Result<PathBuf> {
    Ok(folder("XDG_DATA_HOME", ".local/share")?.join("agentaflow"))
}

fn folder(variable: &str, below_home: &str) -> Result<PathBuf> {
    // The XDG specification says that relative paths are to be ignored.
    let absolute =
        |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute(variable)
        .or_else(|| Some(absolute("HOME")?.join(below_home)))
        .ok_or_else(|| anyhow!("neither {variable} nor HOME says where to look; set one of them"))
}

/// A variable of the environment that says something.
pub(crate) fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.trim().is_empty())
}

/// What the environment says about servers.
#[derive(Default)]
struct Environment {
    server: Option<String>,
    token: Option<Secret>,
    context: Option<String>,
}

impl Environment {
    fn read() -> Self {
        Self {
            server: variable("AGENTAFLOW_SERVER"),
            token: variable("AGENTAFLOW_TOKEN").map(|token| Secret(token.trim().to_owned())),
            context: variable("AGENTAFLOW_CONTEXT"),
        }
    }

    /// The token is for the server that the environment names. Without one it is for a context that has no token
    /// of its own. It must reach nobody else.
    fn lend_token(&self, mut target: Target) -> Target {
        let plain = |url: &str| url.trim().trim_end_matches('/').to_owned();
        let meant =
            self.server.as_ref().is_none_or(|server| plain(server) == plain(&target.server));
        if target.token.is_none() && target.kubernetes.is_none() && meant {
            target.token.clone_from(&self.token);
        }
        target
    }
}

/// Who is meant: `--context`, else `AGENTAFLOW_SERVER` with `AGENTAFLOW_TOKEN`, else `AGENTAFLOW_CONTEXT`, else the
/// current context, which `up` sets; else the cluster of `KUBECONFIG`, else that of the pod that we run in, else that of
/// the kubeconfig where kubectl looks for it.
pub(crate) fn target(asked: Option<&str>) -> Result<Target> {
    let path = file();
    let read =
        || path.as_ref().map_or_else(|_| Ok(Contexts::default()), |path| Contexts::read(path));
    choose(asked, &Environment::read(), read).map(Target::refreshed)
}

/// Why that one is meant which nobody names: in words, for people.
pub(crate) fn without_being_asked() -> Result<String> {
    let path = file()?;
    Ok(match (Contexts::read(&path)?.current, variable("KUBECONFIG")) {
        (Some(_), _) => format!("the current context of `{}`", path.display()),
        (None, Some(_)) => "no context is chosen, and KUBECONFIG names a cluster".to_owned(),
        (None, None) if in_a_pod() => "no context is chosen, and this is a pod".to_owned(),
        (None, None) => "no context is chosen, and ~/.kube/config names a cluster".to_owned(),
    })
}

/// The cluster that is meant where only one can be: that of the context that is current, else the kubeconfig's.
pub(crate) fn cluster() -> Target {
    let current = target(None).ok().filter(|target| target.kubernetes.is_some());
    current.unwrap_or_else(|| Target::cluster(Kubernetes::default()))
}

fn choose(
    asked: Option<&str>,
    environment: &Environment,
    read: impl FnOnce() -> Result<Contexts>,
) -> Result<Target> {
    if let Some(name) = asked {
        return Ok(environment.lend_token(read()?.named(name)?.clone()));
    }
    if let Some(server) = &environment.server {
        return Ok(environment.lend_token(Target::new(server, None)));
    }
    let contexts = read()?;
    match environment.context.as_ref().or(contexts.current.as_ref()) {
        Some(name) => Ok(environment.lend_token(contexts.named(name)?.clone())),
        None if in_a_pod() || has_kubeconfig() => Ok(Target::cluster(Kubernetes::default())),
        None => Err(NoServer.into()),
    }
}

/// We run in a pod that may speak to its API server.
fn in_a_pod() -> bool {
    variable("KUBERNETES_SERVICE_HOST").is_some()
}

/// There is a kubeconfig where `kubectl` looks for one.
fn has_kubeconfig() -> bool {
    let home = || env::var_os("HOME").map(|home| PathBuf::from(home).join(".kube/config"));
    variable("KUBECONFIG").is_some() || home().is_some_and(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_written_file_is_private_and_keeps_what_it_does_not_know() {
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
    fn a_broken_file_is_told_by_its_line_and_without_its_tokens() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.toml");
        fs::write(&path, "[contexts.lab]\ntoken = \"secret\n").unwrap();
        let error = Contexts::read(&path).unwrap_err().to_string();
        assert!(error.contains("(line 2)") && !error.contains("secret"), "{error}");
    }

    #[test]
    fn an_unknown_context_is_answered_with_those_there_are() {
        let mut contexts = Contexts::default();
        contexts.known.insert("lab".to_owned(), Target::default());
        let error = contexts.named("lob").unwrap_err().to_string();
        assert_eq!(error, "there is no context `lob`; did you mean `lab`? there is `lab`");
    }

    #[test]
    fn the_token_of_the_environment_reaches_the_server_it_is_meant_for_and_no_other() {
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
            };
            let target = choose(asked, &environment, contexts).unwrap();
            let sent = target.token.as_ref().map(Secret::expose);
            assert_eq!((target.server.as_str(), sent), (url, token));
        }
    }
}
