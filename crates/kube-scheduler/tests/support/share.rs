//! The control plane and the share of one test.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::DynamicObject;
use kube::{Api, Client, Config};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::wait::wait_for;
use super::{clean, http};

/// Label of the objects of one test.
pub(crate) const OWNER: &str = "agentaflow.io/test";

/// The control plane that `AGENTAFLOW_TEST_KUBE` names.
#[derive(Clone)]
pub(crate) struct Cluster {
    pub(crate) client: Client,
    /// Administrator's client.
    pub(crate) kubeconfig: PathBuf,
    /// Folder of `kubectl` and the other programs, if they were built.
    pub(crate) programs: Option<PathBuf>,
}

impl Cluster {
    pub(crate) async fn from_env() -> Self {
        let kubeconfig = std::env::var_os("AGENTAFLOW_TEST_KUBE").map(PathBuf::from);
        let kubeconfig =
            kubeconfig.expect("AGENTAFLOW_TEST_KUBE names the kubeconfig of a control plane");
        let client = Self::client_of(&kubeconfig).await;
        let programs = std::env::var_os("AGENTAFLOW_TEST_KUBE_BIN").map(PathBuf::from);
        Self { client, kubeconfig, programs }
    }

    /// A client for a kubeconfig. Its connections belong to the runtime that creates it.
    pub(crate) async fn client_of(kubeconfig: &Path) -> Client {
        let read = Kubeconfig::read_from(kubeconfig).expect("the kubeconfig can be read");
        let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await;
        let config = config.expect("the kubeconfig is whole");
        Client::try_from(config).expect("the certificates can be used")
    }
}

/// A namespace, and nodes for its pods only. Deleted at the end of the test; a failed test prints its objects first.
/// `AGENTAFLOW_TEST_KEEP=1` prevents the deletion.
pub(crate) struct Share {
    pub(crate) cluster: Cluster,
    pub(crate) id: String,
    pub(crate) namespace: String,
    pub(super) folder: TempDir,
    /// Objects applied outside the namespace.
    pub(super) applied: Mutex<Vec<(kube::core::ApiResource, String)>>,
}

impl Share {
    pub(crate) async fn new() -> Self {
        Self::with_id(unique_id()).await
    }

    /// A share with the same names in every run, for golden texts. Waits until objects of an earlier run are gone.
    pub(crate) async fn called(id: &str) -> Self {
        let namespaces: Api<Namespace> = Api::all(Cluster::from_env().await.client);
        wait_for(&format!("nothing is left of an earlier `{id}`"), async || {
            let left = namespaces.get_opt(&format!("test-{id}")).await;
            let left = left.map_err(|error| error.to_string())?;
            left.map_or(Ok(()), |_| Err("its namespace is still there".to_owned()))
        })
        .await;
        Self::with_id(id.to_owned()).await
    }

    async fn with_id(id: String) -> Self {
        let cluster = Cluster::from_env().await;
        let namespace = format!("test-{id}");
        let folder = tempfile::tempdir().expect("a folder for logs");
        let share = Self { cluster, id, namespace, folder, applied: Mutex::default() };
        share.create_namespace(&share.namespace, json!({})).await;
        share
    }

    pub(crate) fn client(&self) -> Client {
        self.cluster.client.clone()
    }

    /// The objects of a kind in the share's namespace.
    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client(), &self.namespace)
    }

    /// Cluster-scoped objects of a kind.
    pub(crate) fn cluster_api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::ClusterResourceScope>,
        K::DynamicType: Default,
    {
        Api::all(self.client())
    }

    /// `schedulerName` of the scheduler under test.
    pub(crate) fn scheduler_name(&self) -> String {
        format!("agentaflow-{}", self.id)
    }

    /// Selects the share's nodes.
    pub(crate) fn node_selector(&self) -> String {
        format!("{OWNER}={}", self.id)
    }

    /// Path of a file that is deleted with the share.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Creates another namespace with the same nodes; deleted with the share.
    pub(crate) async fn create_namespace(&self, name: &str, labels: Value) {
        let mut namespace = json!({
            "metadata": {
                "name": name,
                "labels": labels,
                "annotations": {"scheduler.alpha.kubernetes.io/node-selector": self.node_selector()},
            },
        });
        namespace["metadata"]["labels"][OWNER] = json!(self.id);
        let namespace: Namespace = serde_json::from_value(namespace).expect("a namespace");
        self.cluster_api()
            .create(&PostParams::default(), &namespace)
            .await
            .expect("a new namespace");
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client(), name);
        // Pods cannot be created without the service account.
        wait_for("the account of a new namespace", async || accounts.get("default").await).await;
    }

    /// Writes a kubeconfig of a service account of the share.
    pub(crate) async fn kubeconfig_of(&self, account: &str) -> PathBuf {
        let path = format!("/api/v1/namespaces/{}/serviceaccounts/{account}/token", self.namespace);
        let wish = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 3600},
        });
        let answer = self.request("POST", &path, Some(&wish)).await;
        assert_eq!(answer.status, 201, "no token for `{account}`: {}", answer.body);
        let own =
            Kubeconfig::read_from(&self.cluster.kubeconfig).expect("the kubeconfig can be read");
        let mut config = serde_json::to_value(own).expect("a kubeconfig");
        for user in config["users"].as_array_mut().expect("users") {
            user["user"] = json!({"token": answer.json()["status"]["token"]});
        }
        let file = self.file(&format!("{account}.kubeconfig"));
        std::fs::write(&file, config.to_string()).expect("a kubeconfig of its own");
        file
    }

    /// A raw request to the API server as the administrator; an error status is a response, too.
    pub(crate) async fn request(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> http::HttpResponse {
        http::request(&self.cluster.client, method, path, body).await
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        clean::clean(self);
    }
}

/// The root of the repository.
pub(crate) fn repository() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.ancestors().nth(2).expect("crates lie two levels below the root").to_owned()
}

/// A short id, unique for each test and run.
fn unique_id() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{:x}-{:x}-{count}", since.as_secs() & 0xff_ffff, std::process::id())
}
