//! Connects commands to a server or a cluster.

use std::future::Future;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use agentaflow_api::client::Client;
use agentaflow_kube_client::{Cluster, Failure, Unreachable};
use agentaflow_kube_core::names;
use anyhow::{Context as _, Result, anyhow};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};

use crate::backend::Backend;
use crate::candidates;
use crate::context::{self, Kubernetes, Target};
use crate::failure::{not_found, usage};
use clap_complete::engine::ArgValueCandidates;

#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Connect {
    /// Context to use instead of the current one (see `agentaflow context`)
    #[arg(long, value_name = "NAME", help_heading = "Connection", add = ArgValueCandidates::new(candidates::contexts))]
    context: Option<String>,
    /// Kubernetes namespace
    #[arg(short, long, value_name = "NAME", help_heading = "Connection")]
    namespace: Option<String>,
    /// Kubeconfig of the cluster to use instead of a context
    #[arg(long, value_name = "FILE", help_heading = "Connection")]
    kubeconfig: Option<PathBuf>,
}

/// Set when the program runs as a `kubectl` plugin or in `--mode=cli`.
static PREFER_KUBERNETES: AtomicBool = AtomicBool::new(false);

/// Selects the cluster of the kubeconfig for all commands without `--context`.
pub(crate) fn prefer_kubernetes() {
    PREFER_KUBERNETES.store(true, Ordering::Relaxed);
}

impl Connect {
    pub(crate) async fn backend(&self) -> Result<Backend> {
        let target = self.target()?;
        match &target.kubernetes {
            Some(kubernetes) => Ok(Backend::Cluster(self.cluster(kubernetes).await?)),
            None if self.namespace.is_some() => {
                let server = &target.server;
                Err(usage(format!(
                    "--namespace requires a Kubernetes context; {server} is a server"
                )))
            }
            None => Ok(Backend::Server(target.client()?)),
        }
    }

    /// The cluster of commands that only a cluster supports.
    pub(crate) async fn only_cluster(&self) -> Result<Cluster> {
        match self.backend().await? {
            Backend::Cluster(cluster) => Ok(cluster),
            Backend::Server(client) => Err(usage(format!(
                "requires a Kubernetes context; {} is a server. Use --kubeconfig FILE or --context NAME",
                client.base()
            ))),
        }
    }

    /// A client for commands that only a server supports.
    pub(crate) fn client(&self) -> Result<Client> {
        let target = self.target()?;
        if target.kubernetes.is_some() {
            return Err(usage(
                "not supported by a Kubernetes context; switch to a server with \
                 `agentaflow context use NAME`",
            ));
        }
        target.client()
    }

    fn target(&self) -> Result<Target> {
        if let Some(kubeconfig) = &self.kubeconfig {
            let kubeconfig = Some(kubeconfig.clone());
            return Ok(Target::cluster(Kubernetes { kubeconfig, ..Kubernetes::default() }));
        }
        if PREFER_KUBERNETES.load(Ordering::Relaxed) && self.context.is_none() {
            return Ok(context::cluster());
        }
        context::target_of_command(self.context.as_deref())
    }

    async fn cluster(&self, target: &Kubernetes) -> Result<Cluster> {
        // Fails only if a provider is already installed.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut config = config(target).await?;
        // A user waits: report an unreachable cluster without retries.
        config.default_retry = false;
        let namespace = self.namespace.clone().or_else(|| target.namespace.clone());
        let namespace = namespace.unwrap_or_else(|| config.default_namespace.clone());
        let client =
            kube::Client::try_from(config).context("cannot create a client for the cluster")?;
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

/// Client configuration of a cluster.
pub(crate) async fn config(target: &Kubernetes) -> Result<kube::Config> {
    let options =
        KubeConfigOptions { context: target.context.clone(), ..KubeConfigOptions::default() };
    if let Some(file) = &target.kubeconfig {
        let about = || format!("cannot use the kubeconfig `{}`", file.display());
        let read = Kubeconfig::read_from(file).map_err(short_error).with_context(about)?;
        let config = kube::Config::from_custom_kubeconfig(read, &options).await;
        return config.map_err(short_error).with_context(about);
    }
    if target.context.is_some() {
        let config = kube::Config::from_kubeconfig(&options).await;
        return config.map_err(short_error).context("cannot use the kubeconfig");
    }
    // The cluster of the pod takes precedence over ~/.kube/config.
    if context::variable("KUBECONFIG").is_none()
        && let Ok(config) = kube::Config::incluster()
    {
        return Ok(config);
    }
    match kube::Config::infer().await {
        Ok(config) => Ok(config),
        Err(_) => Err(missing_config(&options).await),
    }
}

/// The error for a missing configuration, without the list of paths tried.
async fn missing_config(options: &KubeConfigOptions) -> anyhow::Error {
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
                format!("KUBECONFIG points to `{path}`, which does not exist")
            } else {
                NONE.to_owned()
            };
            Failure::Unreachable(Unreachable::Other(format!("no cluster configured: {why}"))).into()
        }
        None | Some(KubeconfigError::FindPath) => {
            Failure::Unreachable(Unreachable::Other(format!("no cluster configured: {NONE}")))
                .into()
        }
        Some(KubeconfigError::ReadConfig(error, path)) => anyhow::Error::from(error)
            .context(format!("cannot use the kubeconfig `{}`", path.display())),
        Some(error) => short_error(error).context("cannot use the kubeconfig"),
    }
}

const NONE: &str = "set KUBECONFIG or use --kubeconfig";

/// The kubeconfig error without the source excerpt and the path.
fn short_error(error: KubeconfigError) -> anyhow::Error {
    match error {
        KubeconfigError::ReadConfig(error, _) if error.kind() == ErrorKind::NotFound => {
            return not_found("no such file or directory");
        }
        KubeconfigError::ReadConfig(error, _) => return error.into(),
        KubeconfigError::CurrentContextNotSet => {
            return not_found("no current context; set one with `kubectl config use-context NAME`");
        }
        KubeconfigError::LoadContext(name) => {
            return not_found(format!("context `{name}` not found"));
        }
        _ => {}
    }
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    anyhow!(line.replace("failed to parse kubeconfig YAML: error: ", ""))
}

/// Runs a future on the current thread.
pub(crate) fn block_on<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("cannot start the async runtime")?.block_on(future)
}
