//! Job objects of any kind that is a unit.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde_json::Value;
use std::borrow::Cow;

use crate::unit::UnitKind;

/// A Job, `JobSet`, `PyTorchJob` …: its kind defines the paths of the fields, so spec and status stay JSON.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct JobObject {
    /// Metadata without managed fields.
    #[serde(deserialize_with = "super::meta::slim")]
    pub metadata: ObjectMeta,
    pub spec: Value,
    pub status: Value,
}

impl kube::Resource for JobObject {
    type DynamicType = &'static UnitKind;
    type Scope = k8s_openapi::NamespaceResourceScope;

    fn kind(kind: &Self::DynamicType) -> Cow<'_, str> {
        kind.kind.into()
    }

    fn group(kind: &Self::DynamicType) -> Cow<'_, str> {
        kind.group.into()
    }

    fn version(kind: &Self::DynamicType) -> Cow<'_, str> {
        kind.version.into()
    }

    fn plural(kind: &Self::DynamicType) -> Cow<'_, str> {
        kind.plural.into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
