//! Ids and names given by drivers: one type each, cheap to clone.

use serde::{Deserialize, Serialize};
use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.into())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text.into())
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name!(
    /// Unique among pending and placed workloads.
    WorkloadId
);
name!(NodeId);
name!(
    /// Unique within a node; a UUID or an index.
    GpuId
);
name!(
    /// A GPU model as NVML reports it, such as `NVIDIA A100-SXM4-40GB`.
    GpuModel
);
name!(
    /// The root of the queue tree is `root`.
    QueueId
);
name!(
    /// A countable node resource beyond CPU, memory, storage and GPUs.
    ResourceName
);
name!(
    /// A resource that a limited set of tasks can hold at a time on a node or in the cluster.
    TokenName
);
name!(
    /// A disruption budget (Kubernetes: `PodDisruptionBudget`).
    BudgetId
);
name!(
    /// A foreign use of a node: a pod of another scheduler, or a process.
    ForeignId
);

impl GpuModel {
    /// This model satisfies a request for `asked` when its name contains every word of the request:
    /// `A100` and `nvidia a100` match `NVIDIA A100-SXM4-40GB`; `V100` does not match `V100M16`.
    pub fn serves(&self, asked: &Self) -> bool {
        let mut wanted = words(&asked.0).peekable();
        wanted.peek().is_some()
            && wanted.all(|word| words(&self.0).any(|own| own.eq_ignore_ascii_case(word)))
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split([' ', '-', '_', '/']).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_serves_requests_whose_words_its_name_contains() {
        let table = [
            ("NVIDIA A100-SXM4-40GB", "A100", true),
            ("NVIDIA A100-SXM4-40GB", "nvidia a100", true),
            ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB", true),
            ("NVIDIA A100-SXM4-40GB", "A100 80GB", false),
            ("V100M16", "V100", false),
            ("V100M16", "V100M16", true),
            ("T4", "", false),
        ];
        for (model, asked, expected) in table {
            let served = GpuModel::from(model).serves(&GpuModel::from(asked));
            assert_eq!(served, expected, "{model} for {asked}");
        }
    }
}
