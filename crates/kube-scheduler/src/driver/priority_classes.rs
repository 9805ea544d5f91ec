//! Priority classes of `GPUWorkload` pods: without them the API server refuses the pods. Their values belong to the
//! administrator.

use agentaflow_kube_core::names;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde_json::json;
use std::collections::BTreeSet;

use super::api::{ApiServer, Failure, Ignored};

const PATH: &str = "/apis/scheduling.k8s.io/v1/priorityclasses";

#[derive(Deserialize)]
struct Classes {
    items: Vec<Class>,
}

#[derive(Deserialize)]
struct Class {
    metadata: ObjectMeta,
}

/// Creates missing classes; existing ones stay. Runs beside the start of the leader: pods that need a class are created later.
pub(crate) async fn ensure(server: ApiServer) {
    let listed = server.get::<Classes>(PATH).await;
    let listed = listed.map(|all| all.items).inspect_err(|error| {
        tracing::warn!(%error, "cannot list the priority classes");
    });
    let existing: BTreeSet<String> =
        listed.into_iter().flatten().filter_map(|class| class.metadata.name).collect();
    for priority in 0..=names::HIGHEST_PRIORITY {
        // The class of the default priority is for pods that name it.
        let name = names::priority_class_name(priority);
        if existing.contains(&name) {
            continue;
        }
        let body = json!({
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": { "name": name },
            "value": names::priority_class_value(priority),
            "description": format!("GPU workloads of priority {priority}"),
        });
        match server.post::<Ignored>(PATH, &body).await {
            Ok(_) | Err(Failure::Conflict(_) | Failure::NotLeading) => {}
            Err(error) => tracing::warn!(name, %error, "cannot create a priority class"),
        }
    }
}
