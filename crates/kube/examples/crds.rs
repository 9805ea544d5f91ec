//! Prints what is kept in `deploy` as YAML, one document each: the definitions of our kinds, which
//! `cargo xtask crds` keeps up to date, or with the argument `webhooks` the webhook configurations.

use agentaflow_kube::{crd, webhook};

fn main() {
    let documents = match std::env::args().nth(1).as_deref() {
        Some("webhooks") => webhook::configurations(&webhook::Options::default()).to_vec(),
        _ => crd::definitions(),
    };
    for document in documents {
        match serde_saphyr::to_string(&document) {
            Ok(yaml) => print!("---\n{yaml}"),
            Err(error) => panic!("this cannot be written as YAML: {error}"),
        }
    }
}
