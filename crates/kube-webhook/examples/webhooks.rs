//! Prints the webhook configurations of `deploy/kubernetes/30-webhooks.yaml` as YAML documents.

use agentaflow_kube_webhook::{Options, configurations};

fn main() {
    for configuration in configurations(&Options::default()) {
        match serde_saphyr::to_string(&configuration) {
            Ok(yaml) => print!("---\n{yaml}"),
            Err(error) => panic!("cannot write a configuration as YAML: {error}"),
        }
    }
}
