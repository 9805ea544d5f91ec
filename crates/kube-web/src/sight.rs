//! Objects that a reader may list, decided by the API server for each namespace.

use std::collections::BTreeSet;

use agentaflow_kube_core::names;
use agentaflow_kube_serve::{Access, Rights, User};
use futures_util::future::try_join_all;

use super::rows::{Origin, Row};

/// Concurrent reviews of one request.
const CONCURRENT: usize = 16;

/// Namespaces in which a reader may list objects of a kind.
#[derive(Clone, Debug)]
enum Scope {
    All,
    Namespaces(BTreeSet<String>),
}

impl Scope {
    fn contains(&self, namespace: &str) -> bool {
        match self {
            Self::All => true,
            Self::Namespaces(names) => names.contains(namespace),
        }
    }
}

/// Jobs that a reader may list.
#[derive(Clone, Debug)]
pub(crate) struct Sight {
    workloads: Scope,
    pods: Scope,
}

impl Sight {
    /// Reviews the rights in these namespaces.
    pub(crate) async fn of(
        rights: &Rights,
        user: &User,
        namespaces: &BTreeSet<String>,
    ) -> Result<Self, kube::Error> {
        let workloads = scope(rights, user, names::GROUP, "gpuworkloads", namespaces);
        let pods = scope(rights, user, "", "pods", namespaces);
        let (workloads, pods) = tokio::try_join!(workloads, pods)?;
        Ok(Self { workloads, pods })
    }

    pub(crate) fn contains(&self, origin: &Origin) -> bool {
        match origin {
            Origin::Workload(namespace) => self.workloads.contains(namespace),
            Origin::Pod(namespace) => self.pods.contains(namespace),
        }
    }

    pub(crate) fn shows(&self, row: &Row) -> bool {
        self.contains(&row.origin)
    }
}

async fn scope(
    rights: &Rights,
    user: &User,
    group: &'static str,
    resource: &str,
    namespaces: &BTreeSet<String>,
) -> Result<Scope, kube::Error> {
    if may_list(rights, user, group, resource, "").await? {
        return Ok(Scope::All);
    }
    let all: Vec<&String> = namespaces.iter().collect();
    let mut allowed = BTreeSet::new();
    for some in all.chunks(CONCURRENT) {
        let asked = some.iter().map(|name| may_list(rights, user, group, resource, name));
        let answers = try_join_all(asked).await?;
        let listed = some.iter().zip(answers).filter(|(_, is_allowed)| *is_allowed);
        allowed.extend(listed.map(|(name, _)| (*name).clone()));
    }
    Ok(Scope::Namespaces(allowed))
}

/// Without a namespace: in all of them, or of a kind outside of namespaces.
pub(crate) async fn may_list(
    rights: &Rights,
    user: &User,
    group: &'static str,
    resource: &str,
    namespace: &str,
) -> Result<bool, kube::Error> {
    let access = Access {
        verb: "list",
        group,
        resource: resource.to_owned(),
        namespace: namespace.to_owned(),
        ..Access::default()
    };
    rights.allow(user, &access).await
}
