//! Prints the definitions of our kinds as YAML, one document each; `cargo xtask crds` keeps them in `deploy/crds`.

fn main() {
    for definition in agentaflow_kube::crd::definitions() {
        match serde_saphyr::to_string(&definition) {
            Ok(yaml) => print!("---\n{yaml}"),
            Err(error) => panic!("a definition is not YAML: {error}"),
        }
    }
}
