//! The `APIService` through which the API server reaches this port.

use agentaflow_kube_serve::Trust;
use kube::Client;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use super::router::{GROUP, VERSION};

pub(super) struct ApiService {
    objects: Api<DynamicObject>,
    name: String,
    namespace: String,
    service: String,
}

impl ApiService {
    pub(super) fn new(client: &Client, namespace: &str, service: &str) -> Self {
        let kind = GroupVersionKind::gvk("apiregistration.k8s.io", "v1", "APIService");
        Self {
            objects: Api::all_with(client.clone(), &ApiResource::from_gvk(&kind)),
            name: format!("{VERSION}.{GROUP}"),
            namespace: namespace.to_owned(),
            service: service.to_owned(),
        }
    }

    /// Writes the CA bundle, unless the object belongs to another adapter.
    async fn write(&self, bundle: &str) -> Result<(), kube::Error> {
        let Some(found) = self.objects.get_opt(&self.name).await? else { return Ok(()) };
        if !self.is_ours(&found.data) || found.data["spec"]["caBundle"] == bundle {
            return Ok(());
        }
        let patch = Patch::Merge(json!({"spec": {"caBundle": bundle}}));
        self.objects.patch(&self.name, &PatchParams::default(), &patch).await?;
        tracing::info!(name = self.name, "the API server serves custom metrics of this scheduler");
        Ok(())
    }

    fn is_ours(&self, object: &Value) -> bool {
        let service = &object["spec"]["service"];
        service["namespace"] == self.namespace.as_str() && service["name"] == self.service.as_str()
    }
}

impl Trust for ApiService {
    /// Without the rights of `deploy/autoscaling` no autoscaler uses this port.
    async fn trust(&self, bundle: &str) -> bool {
        match self.write(bundle).await {
            Ok(()) => true,
            Err(kube::Error::Api(status)) if status.code == 403 => true,
            Err(error) => {
                tracing::warn!(%error, "cannot write the APIService `{}`", self.name);
                false
            }
        }
    }
}
