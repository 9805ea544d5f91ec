//! Names that bodies give to things: one type for each kind, cheap to clone.

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
            /// The text of the name.
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
    /// A workload: unique among those that wait or run.
    WorkloadId
);
name!(
    /// A node.
    NodeId
);
name!(
    /// One GPU, unique on its node (a UUID, or an index).
    GpuId
);
name!(
    /// A GPU model as the driver spells it, such as `NVIDIA A100-SXM4-40GB`.
    GpuModel
);
name!(
    /// A queue; the root of the tree is `root`.
    QueueId
);
name!(
    /// A countable node resource beyond CPU, memory, storage and GPUs.
    ResourceName
);
name!(
    /// Something that a node, or the cluster, can give to a limited set of tasks at a time.
    TokenName
);
name!(
    /// A disruption budget that workloads refer to.
    BudgetId
);
name!(
    /// Use of a node by somebody else: another scheduler's pod, another process.
    ForeignId
);

impl GpuModel {
    /// Whether a request for `asked` is served by this model: every word of the request occurs in
    /// the model's name, so `A100` and `nvidia a100` mean `NVIDIA A100-SXM4-40GB`, while `V100`
    /// does not mean `V100M16`.
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
    fn a_model_serves_requests_whose_words_it_contains() {
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
