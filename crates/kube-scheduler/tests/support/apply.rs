//! Applies files as `kubectl apply` does.

use std::path::Path;

use kube::api::{Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::discovery::{ApiCapabilities, Scope, pinned_kind};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::share::{OWNER, Share, repository};
use super::wait::wait_for;

impl Share {
    /// Applies a file of the repository, or every YAML file of a folder, in the order of their names.
    pub(crate) async fn apply_file(&self, path: &str) -> Vec<DynamicObject> {
        let path = repository().join(path);
        let mut files = vec![path.clone()];
        if path.is_dir() {
            let entries = std::fs::read_dir(&path).expect("a folder of manifests");
            files = entries.map(|entry| entry.expect("an entry").path()).collect();
            files.retain(|file| file.extension().is_some_and(|ending| ending == "yaml"));
            files.sort();
        }
        let mut applied = Vec::new();
        for file in files {
            let text = std::fs::read_to_string(&file);
            let text = text.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            applied.extend(self.apply(&text).await);
        }
        applied
    }

    /// Applies YAML documents. Objects without a namespace are created in the share's namespace.
    pub(crate) async fn apply(&self, yaml: &str) -> Vec<DynamicObject> {
        let documents: Vec<Value> = serde_saphyr::from_multiple(yaml).expect("YAML");
        let mut applied = Vec::new();
        for document in documents.into_iter().filter(|document| !document.is_null()) {
            applied.push(self.apply_object(document).await);
        }
        applied
    }

    /// Applies one object; returns the API server's version.
    pub(crate) async fn apply_object(&self, object: Value) -> DynamicObject {
        let name = object["metadata"]["name"].as_str().expect("a name").to_owned();
        self.try_apply(object)
            .await
            .unwrap_or_else(|error| panic!("cannot apply `{name}`: {error}"))
    }

    /// As [`Self::apply_object`], for objects that the API server may refuse.
    pub(crate) async fn try_apply(&self, mut object: Value) -> kube::Result<DynamicObject> {
        let (resource, capabilities) = self.kind_of(&object).await;
        let name = object["metadata"]["name"].as_str().expect("a name").to_owned();
        let api: Api<DynamicObject> = if capabilities.scope == Scope::Namespaced {
            let namespace = object["metadata"]["namespace"].as_str().unwrap_or(&self.namespace);
            Api::namespaced_with(self.client(), namespace, &resource)
        } else {
            // CRDs are shared by all tests; all other objects belong to this test and are deleted with it.
            if resource.kind != "CustomResourceDefinition" {
                object["metadata"]["labels"][OWNER] = json!(self.id);
                let mut applied = self.applied.lock().expect("no holder panicked");
                applied.push((resource.clone(), name.clone()));
            }
            Api::all_with(self.client(), &resource)
        };
        let how = PatchParams::apply("agentaflow-tests").force();
        let applied = api.patch(&name, &how, &Patch::Apply(&object)).await?;
        if resource.kind == "CustomResourceDefinition" {
            wait_established(&api, &name).await;
        }
        Ok(applied)
    }

    /// The API resource of an object; a new kind takes a moment.
    async fn kind_of(&self, object: &Value) -> (ApiResource, ApiCapabilities) {
        let version = object["apiVersion"].as_str().expect("an apiVersion");
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        let kind = object["kind"].as_str().expect("a kind");
        let kind = GroupVersionKind::gvk(group, version, kind);
        let client = self.client();
        wait_for(&format!("the kind {kind:?}"), async || pinned_kind(&client, &kind).await).await
    }
}

async fn wait_established(api: &Api<DynamicObject>, name: &str) {
    wait_for(&format!("the kind {name} established"), async || {
        let definition = api.get(name).await.map_err(|error| error.to_string())?;
        let conditions = &definition.data["status"]["conditions"];
        let is_there =
            conditions.as_array().into_iter().flatten().any(|condition| {
                condition["type"] == "Established" && condition["status"] == "True"
            });
        is_there.then_some(()).ok_or_else(|| conditions.to_string())
    })
    .await;
}
