//! How commands reach a server or a cluster.

use std::future::Future;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use agentaflow_api::client::Client;
use agentaflow_kube_client::{Cluster, Failure};
use agentaflow_kube_core::names;
use anyhow::{Context as _, Result, anyhow};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};

use crate::backend::Backend;
use crate::candidates;
use crate::context::{self, Kubernetes, Target};
use crate::failure::{not_there, usage};
use clap_complete::engine::ArgValueCandidates;

/// Who to speak to.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Connect {
    /// Context to use instead of the current one (see `agentaflow context`)
    #[arg(long, value_name = "NAME", help_heading = "Where", add = ArgValueCandidates::new(candidates::contexts))]
    context: Option<String>,
    /// Namespace in Kubernetes
    #[arg(short, long, value_name = "NAME", help_heading = "Where")]
    namespace: Option<String>,
    /// The kubeconfig of a cluster to use instead of any context
    #[arg(long, value_name = "FILE", help_heading = "Where")]
    kubeconfig: Option<PathBuf>,
}

/// Called by a name under which only a cluster can be meant.
static KUBERNETES: AtomicBool = AtomicBool::new(false);

/// From now on the kubeconfig's cluster is meant unless a context is named.
pub(crate) fn prefer_kubernetes() {
    KUBERNETES.store(true, Ordering::Relaxed);
}

impl Connect {
    /// Whoever is meant.
    pub(crate) async fn backend(&self) -> Result<Backend> {
        let target = self.target()?;
        match &target.kubernetes {
            Some(kubernetes) => Ok(Backend::Cluster(self.cluster(kubernetes).await?)),
            None if self.namespace.is_some() => {
                let server = &target.server;
                Err(usage(format!("--namespace is for Kubernetes, and {server} is a server")))
            }
            None => Ok(Backend::Server(Client::new(&target.server, target.token)?)),
        }
    }

    /// A client for the server that is meant, for what only a server does.
    pub(crate) fn client(&self) -> Result<Client> {
        let target = self.target()?;
        if target.kubernetes.is_some() {
            return Err(usage(
                "this is a Kubernetes context, which cannot do that; `agentaflow context use NAME` \
                 chooses a server",
            ));
        }
        Ok(Client::new(&target.server, target.token)?)
    }

    fn target(&self) -> Result<Target> {
        if let Some(kubeconfig) = &self.kubeconfig {
            let kubeconfig = Some(kubeconfig.clone());
            return Ok(Target::cluster(Kubernetes { kubeconfig, ..Kubernetes::default() }));
        }
        if KUBERNETES.load(Ordering::Relaxed) && self.context.is_none() {
            return Ok(context::cluster());
        }
        context::target(self.context.as_deref())
    }

    async fn cluster(&self, target: &Kubernetes) -> Result<Cluster> {
        // Only an error when there is one already, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut config = config(target).await?;
        // People wait for the answer: who cannot be reached is told at once.
        config.default_retry = false;
        let namespace = self.namespace.clone().or_else(|| target.namespace.clone());
        let namespace = namespace.unwrap_or_else(|| config.default_namespace.clone());
        let client =
            kube::Client::try_from(config).context("cannot make a client of the cluster")?;
        let system = target.system_namespace.clone();
        Ok(Cluster {
            client,
            namespace,
            everywhere: false,
            system: system.unwrap_or_else(|| names::NAMESPACE.to_owned()),
            scheduler: target.scheduler.clone(),
        })
    }
}

/// How to reach a cluster.
pub(crate) async fn config(target: &Kubernetes) -> Result<kube::Config> {
    let options =
        KubeConfigOptions { context: target.context.clone(), ..KubeConfigOptions::default() };
    if let Some(file) = &target.kubeconfig {
        let about = || format!("cannot use the kubeconfig `{}`", file.display());
        let read = Kubeconfig::read_from(file).map_err(in_short).with_context(about)?;
        let config = kube::Config::from_custom_kubeconfig(read, &options).await;
        return config.map_err(in_short).with_context(about);
    }
    if target.context.is_some() {
        let config = kube::Config::from_kubeconfig(&options).await;
        return config.map_err(in_short).context("cannot use the kubeconfig");
    }
    // A kubeconfig that is only there because kubectl looks there comes after the cluster that we run in.
    if context::variable("KUBECONFIG").is_none()
        && let Ok(config) = kube::Config::incluster()
    {
        return Ok(config);
    }
    match kube::Config::infer().await {
        Ok(config) => Ok(config),
        Err(_) => Err(no_config(&options).await),
    }
}

/// Why no cluster is known, without everything that was looked at in vain.
async fn no_config(options: &KubeConfigOptions) -> anyhow::Error {
    let error = match Kubeconfig::read() {
        Ok(read) => kube::Config::from_custom_kubeconfig(read, options).await.err(),
        Err(error) => Some(error),
    };
    let missing = |error: &io::Error| error.kind() == ErrorKind::NotFound;
    match error {
        Some(KubeconfigError::ReadConfig(error, path)) if missing(&error) => {
            let named = context::variable("KUBECONFIG").is_some();
            let path = path.display();
            let why = if named {
                format!("KUBECONFIG names `{path}`, which is not there")
            } else {
                NONE.to_owned()
            };
            Failure::Unreachable(format!("no cluster is known: {why}")).into()
        }
        None | Some(KubeconfigError::FindPath) => {
            Failure::Unreachable(format!("no cluster is known: {NONE}")).into()
        }
        Some(KubeconfigError::ReadConfig(error, path)) => anyhow::Error::from(error)
            .context(format!("cannot use the kubeconfig `{}`", path.display())),
        Some(error) => in_short(error).context("cannot use the kubeconfig"),
    }
}

/// What to do where there is no kubeconfig.
const NONE: &str = "set KUBECONFIG, or give --kubeconfig";

/// What is wrong with a kubeconfig, without the picture of the line and what is known already.
fn in_short(error: KubeconfigError) -> anyhow::Error {
    match error {
        KubeconfigError::ReadConfig(error, _) if error.kind() == ErrorKind::NotFound => {
            return not_there("there is no such file or folder");
        }
        KubeconfigError::ReadConfig(error, _) => return error.into(),
        KubeconfigError::CurrentContextNotSet => {
            return not_there(
                "none of its contexts is the current one; `kubectl config use-context NAME` chooses one",
            );
        }
        KubeconfigError::LoadContext(name) => {
            return not_there(format!("there is no context `{name}` in it"));
        }
        _ => {}
    }
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    anyhow!(line.replace("failed to parse kubeconfig YAML: error: ", ""))
}

/// Runs a command that waits for the network, on this thread alone.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("cannot start")?.block_on(work)
}
