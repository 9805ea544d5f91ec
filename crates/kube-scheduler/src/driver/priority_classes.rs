//! Priority classes of `GPUWorkload` pods: without them the API server refuses the pods. Their values belong to the
//! administrator.

use agentaflow_kube_core::names;
use serde_json::json;

use super::api::{ApiServer, Failure, Ignored};

/// Creates missing classes; existing ones stay.
pub(crate) async fn ensure(server: &ApiServer) {
    for priority in 0..=names::HIGHEST_PRIORITY {
        // The class of the default priority is for pods that name it.
        let name = names::priority_class_name(priority);
        let path = format!("/apis/scheduling.k8s.io/v1/priorityclasses/{name}");
        if !matches!(server.get::<Ignored>(&path).await, Err(Failure::NotFound(_))) {
            continue;
        }
        let body = json!({
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": { "name": name },
            "value": names::priority_class_value(priority),
            "description": format!("GPU workloads of priority {priority}"),
        });
        let made =
            server.post::<Ignored>("/apis/scheduling.k8s.io/v1/priorityclasses", &body).await;
        if let Err(error) = made {
            tracing::warn!(name, %error, "cannot create a priority class");
        }
    }
}
