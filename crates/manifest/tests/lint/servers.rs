//! Model servers recognized by image.

use crate::ids;

#[test]
fn a_known_model_server_needs_a_probe_though_it_names_no_port() {
    let server = |image: &str, more: &str| {
        format!(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: s}}\nspec:\n  selector: \
             {{matchLabels: {{app: s}}}}\n  template:\n    metadata: {{labels: {{app: s}}}}\n    spec:\n      \
             containers:\n      - name: s\n        image: {image}\n        resources: {{limits: \
             {{nvidia.com/gpu: 1}}}}\n{more}"
        )
    };
    let probe = "        readinessProbe: {tcpSocket: {port: 8000}}\n";
    let port = "        ports: [{containerPort: 8000}]\n";
    for (text, expected) in [
        (server("vllm/vllm-openai:v0.11.0", ""), true),
        (server("vllm/vllm-openai:v0.11.0", probe), false),
        (server("trainer:v1", ""), false),
        (server("trainer:v1", port), true),
    ] {
        assert_eq!(ids(&text).contains(&"AF502"), expected, "{text}");
    }
}
