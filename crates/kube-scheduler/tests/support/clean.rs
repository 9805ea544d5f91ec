//! Cleanup of a share; a failed test prints its objects first.

use k8s_openapi::api::core::v1::{Event, Namespace, Node, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client};
use serde_json::json;

use super::pods;
use super::share::{Cluster, OWNER, Share};

/// Runs in another thread: the test may end inside its runtime, which must not be blocked.
pub(super) fn clean(share: &Share) {
    let failed = std::thread::panicking();
    let keeps = std::env::var_os("AGENTAFLOW_TEST_KEEP").is_some();
    let kubeconfig = share.cluster.kubeconfig.clone();
    let (namespace, selector) = (share.namespace.clone(), share.node_selector());
    let applied = share.applied.lock().map(|applied| applied.clone()).unwrap_or_default();
    let work = async move {
        let client = Cluster::client_of(&kubeconfig).await;
        if failed {
            tell(&client, &namespace).await;
        }
        if keeps {
            eprintln!("kept: namespace {namespace} and what has the label {selector}");
        } else {
            remove(&client, &selector, &applied).await;
        }
    };
    let aside = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(work);
    });
    // The thread reports its own panic; the result of the test is independent of it.
    let _ = aside.join();
}

/// Pods, events and logs of a failed test.
async fn tell(client: &Client, namespace: &str) {
    let all = ListParams::default();
    if let Ok(list) = Api::<Pod>::namespaced(client.clone(), namespace).list(&all).await {
        eprintln!("pods of {namespace}:");
        list.items.iter().for_each(|pod| eprintln!("  {}", pods::state(pod)));
    }
    if let Ok(list) = Api::<Event>::namespaced(client.clone(), namespace).list(&all).await {
        eprintln!("events of {namespace}:");
        for event in list.items {
            let about = event.involved_object.name.unwrap_or_default();
            let reason = event.reason.unwrap_or_default();
            eprintln!("  {about}: {reason} {}", event.message.unwrap_or_default());
        }
    }
}

/// Best effort: errors do not change the result of the test.
async fn remove(client: &Client, selector: &str, applied: &[(ApiResource, String)]) {
    let own = ListParams::default().labels(selector);
    let namespaces: Api<Namespace> = Api::all(client.clone());
    // Namespaces cannot be deleted by selector.
    for namespace in namespaces.list(&own).await.map(|list| list.items).unwrap_or_default() {
        let name = namespace.metadata.name.unwrap_or_default();
        let _ = namespaces.delete(&name, &DeleteParams::default()).await;
    }
    for (resource, name) in applied.iter().rev() {
        let api: Api<DynamicObject> = Api::all_with(client.clone(), resource);
        let _ = api.delete(name, &DeleteParams::default()).await;
    }
    // Without a grace period: no kubelet would report the end of the pods on these nodes.
    let pods: Api<Pod> = Api::all(client.clone());
    let nodes: Api<Node> = Api::all(client.clone());
    for node in nodes.list(&own).await.map(|list| list.items).unwrap_or_default() {
        // A node with a real kubelet is not deleted.
        let annotations = node.metadata.annotations.unwrap_or_default();
        let is_played = annotations.contains_key("kwok.x-k8s.io/node");
        let name = node.metadata.name.unwrap_or_default();
        let there = ListParams::default().fields(&format!("spec.nodeName={name}"));
        for pod in pods.list(&there).await.map(|list| list.items).unwrap_or_default() {
            let namespace = pod.metadata.namespace.unwrap_or_default();
            let api: Api<Pod> = Api::namespaced(client.clone(), &namespace);
            let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
            let _ = api.delete(&pod.metadata.name.unwrap_or_default(), &now).await;
        }
        if is_played {
            let _ = nodes.delete(&name, &DeleteParams::default()).await;
        } else {
            let free = Patch::Merge(json!({"metadata": {"labels": {OWNER: null}}}));
            let _ = nodes.patch(&name, &PatchParams::default(), &free).await;
        }
    }
}
