//! Creates objects from manifests.

use agentaflow_api::job::Job;
use agentaflow_kube_core::names;
use agentaflow_kube_core::slim::Pod;
use kube::Api;
use kube::api::{DynamicObject, PostParams};
use kube::core::gvk::ParseGroupVersionError;
use kube::core::{ApiResource, GroupVersionKind, TypeMeta};
use kube::discovery::{self, Scope};
use serde_json::Value;

use super::jobs::is_workload;
use super::named::is_name;
use super::{Cluster, Failure};

impl Cluster {
    /// Creates an object unchanged: a `GPUWorkload`, or any kind that runs pods. A dry run is a server-side dry run: the
    /// API server validates the object and stores nothing.
    pub async fn create(&self, object: &Value, dry_run: bool) -> Result<Job, Failure> {
        let kind = object["kind"].as_str().unwrap_or_default();
        let read: DynamicObject = serde_json::from_value(object.clone())
            .map_err(|error| Failure::refused(format!("this is no Kubernetes object: {error}")))?;
        let api = self.target_api(object, &read).await?;
        let how = PostParams { dry_run, field_manager: Some(names::FIELD_MANAGER.to_owned()) };
        let made = api.create(&how, &read).await.map_err(|error| explained(error, kind))?;
        let metadata = made.metadata.clone();
        let made = serde_json::to_value(made).unwrap_or_default();
        let view = self.view();
        if is_workload(object) {
            let workload = serde_json::from_value(made).unwrap_or_default();
            return Ok(view.workload::<Pod>(&workload, &[]));
        }
        if kind == "Pod" {
            let pod = serde_json::from_value(made.clone()).unwrap_or_default();
            return Ok(view.pod(&pod, &made["spec"]));
        }
        Ok(view.other(kind, &metadata))
    }

    /// API for creating objects of this kind.
    async fn target_api(
        &self,
        object: &Value,
        read: &DynamicObject,
    ) -> Result<Api<DynamicObject>, Failure> {
        let kinds = read.types.as_ref().filter(|types| !types.kind.is_empty());
        let types = kinds.ok_or_else(|| {
            Failure::refused("the object has no `apiVersion` and `kind`".to_owned())
        })?;
        let (resource, scope) = self.resource(object, types).await?;
        let space = read.metadata.namespace.as_deref().unwrap_or(&self.namespace);
        if !is_name(space) {
            return Err(Failure::refused("metadata.namespace is not the name of one".to_owned()));
        }
        Ok(match scope {
            Scope::Cluster => Api::all_with(self.client.clone(), &resource),
            Scope::Namespaced => Api::namespaced_with(self.client.clone(), space, &resource),
        })
    }

    async fn resource(
        &self,
        object: &Value,
        types: &TypeMeta,
    ) -> Result<(ApiResource, Scope), Failure> {
        let kind: GroupVersionKind =
            types.try_into().map_err(|error: ParseGroupVersionError| {
                Failure::refused(format!("apiVersion: {error}"))
            })?;
        if is_workload(object) {
            // Needs no API discovery, so that the most frequent case takes one request.
            let resource = ApiResource::from_gvk_with_plural(&kind, "gpuworkloads");
            return Ok((resource, Scope::Namespaced));
        }
        match discovery::pinned_kind(&self.client, &kind).await {
            Ok((resource, known)) => Ok((resource, known.scope)),
            Err(kube::Error::Discovery(_)) => Err(unknown(types)),
            Err(kube::Error::Api(status)) if status.code == 404 => Err(unknown(types)),
            Err(error) => Err(error.into()),
        }
    }
}

/// Error of the API server, with the rejecting component if known.
fn explained(error: kube::Error, kind: &str) -> Failure {
    // A missing namespace is named in the details; a missing resource is not.
    let is_unknown_resource = matches!(&error, kube::Error::Api(status)
        if status.details.as_ref().is_none_or(|details| details.kind.is_empty()));
    match Failure::from(error) {
        Failure::NotFound(_) if is_unknown_resource => Failure::no_kind(kind),
        Failure::NotFound(message) => Failure::refused(message),
        Failure::Refused { message, fields } => {
            Failure::Refused { message: format!("the API server refuses it: {message}"), fields }
        }
        other => other,
    }
}

fn unknown(types: &TypeMeta) -> Failure {
    let message = format!(
        "this cluster does not know {} of {}: check `apiVersion` and `kind`",
        types.kind, types.api_version
    );
    Failure::Refused { message, fields: vec!["apiVersion".to_owned()] }
}
