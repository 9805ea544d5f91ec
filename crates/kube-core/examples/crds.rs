//! Prints the custom resource definitions as YAML documents; `cargo xtask crds` writes them to `deploy/crds`.

fn main() {
    for definition in agentaflow_kube_core::crd::definitions() {
        match serde_saphyr::to_string(&definition) {
            Ok(yaml) => print!("---\n{yaml}"),
            Err(error) => panic!("cannot write a definition as YAML: {error}"),
        }
    }
}
