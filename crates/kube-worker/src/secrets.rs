//! Secrets of a task: variables of its owner and registry credentials.

use std::collections::BTreeMap;

use agentaflow_api::link::{Assignment, RegistryAuth};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::ByteString;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde_json::json;

/// Sets the owner reference, so that Kubernetes deletes the Secret with its Job.
pub(crate) fn set_owner(secret: &mut Secret, job: &Job) {
    secret.metadata.owner_references = Some(vec![OwnerReference {
        api_version: "batch/v1".to_owned(),
        kind: "Job".to_owned(),
        name: job.metadata.name.clone().unwrap_or_default(),
        uid: job.metadata.uid.clone().unwrap_or_default(),
        ..OwnerReference::default()
    }]);
}

pub(crate) fn secret(name: String, namespace: &str, data: BTreeMap<String, ByteString>) -> Secret {
    Secret {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
        immutable: Some(true),
        data: Some(data),
        ..Secret::default()
    }
}

/// Registry credentials for the kubelet.
pub(crate) fn pull_secret(
    name: String,
    namespace: &str,
    auth: &RegistryAuth,
    assignment: &Assignment,
) -> Secret {
    let image = assignment.image.as_deref().unwrap_or_default();
    let first = image.split('/').next().filter(|_| image.contains('/')).unwrap_or_default();
    let is_host = first.contains(['.', ':']) || first == "localhost";
    let of_image = is_host.then(|| first.to_owned());
    let server = auth.server.clone().or(of_image);
    let server = server.unwrap_or_else(|| "https://index.docker.io/v1/".to_owned());
    let (user, password) = (&auth.username, auth.password.expose());
    let both = STANDARD.encode(format!("{user}:{password}"));
    let config = json!({"auths": {server: {"username": user, "password": password, "auth": both}}});
    let data = [(".dockerconfigjson".to_owned(), ByteString(config.to_string().into_bytes()))];
    Secret {
        type_: Some("kubernetes.io/dockerconfigjson".to_owned()),
        ..secret(name, namespace, data.into())
    }
}
