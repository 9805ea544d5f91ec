//! Every rule, by its own examples.

use agentaflow_manifest::lint::{
    Input, Options, RULES, Severity, check, check_values, rule, unchecked_kinds,
};
use serde_json::json;

use crate::{found, ids, input};

#[test]
fn every_rule_finds_its_bad_example_and_not_its_good_one() {
    for rule in RULES {
        assert!(ids(rule.bad).contains(&rule.id), "{} finds {:?}", rule.id, ids(rule.bad));
        assert!(!ids(rule.good).contains(&rule.id), "{} finds its good example", rule.id);
    }
}

#[test]
fn a_good_example_has_no_error_of_any_rule() {
    for rule in RULES {
        let errors = found(rule.good).into_iter().filter(|found| found.severity == Severity::Error);
        let errors: Vec<_> =
            errors.map(|found| format!("{}: {}", found.rule.id, found.message)).collect();
        assert!(errors.is_empty(), "{}: {errors:?}", rule.id);
    }
}

#[test]
fn a_bad_example_has_no_error_of_another_rule() {
    for rule in RULES {
        let others = found(rule.bad)
            .into_iter()
            .filter(|found| found.severity == Severity::Error && found.rule.id != rule.id);
        let others: Vec<_> =
            others.map(|found| format!("{}: {}", found.rule.id, found.message)).collect();
        assert!(others.is_empty(), "{}: {others:?}", rule.id);
    }
}

#[test]
fn ids_and_names_are_unique_and_in_order() {
    let ids: Vec<_> = RULES.iter().map(|rule| rule.id).collect();
    assert!(ids.is_sorted_by(|one, other| one < other), "{ids:?}");
    for rule in RULES {
        assert_eq!(self::rule(rule.name).map(|found| found.id), Some(rule.id));
        assert_eq!(self::rule(&rule.id.to_lowercase()).map(|found| found.id), Some(rule.id));
    }
}

#[test]
fn a_finding_names_the_field_and_its_line() {
    let text = rule("AF001").unwrap().bad;
    let findings = found(text);
    let finding = findings.iter().find(|finding| finding.rule.id == "AF001").unwrap();
    assert_eq!(finding.path, "spec.containers[0].resources.requests[\"nvidia.com/gpu\"]");
    assert_eq!(finding.object, "Pod/trainer");
    let position = finding.position.unwrap();
    assert!(text.lines().nth(position.line - 1).unwrap().contains("nvidia.com/gpu: 1"));
    assert_eq!(position.column, 9);
}

#[test]
fn objects_in_lists_and_behind_other_documents_are_found() {
    let pod = rule("AF301").unwrap().bad;
    let indented = pod.replace('\n', "\n  ");
    let list = format!("apiVersion: v1\nkind: List\nitems:\n- {indented}");
    let finding = &found(&list).into_iter().find(|finding| finding.rule.id == "AF301").unwrap();
    assert!(finding.path.starts_with("items[0].spec.containers[0]"), "{}", finding.path);
    let helm = format!(
        "---\n# Source: chart/templates/empty.yaml\n---\n# Source: chart/templates/pod.yaml\n{pod}"
    );
    let finding = &found(&helm).into_iter().find(|finding| finding.rule.id == "AF301").unwrap();
    let line = helm.lines().nth(finding.position.unwrap().line - 1).unwrap();
    assert!(line.contains("trainer:latest"), "{line}");
}

#[test]
fn other_documents_are_ignored() {
    assert_eq!(ids("runnerLabels: [gpu]\nimage: x:latest\n"), [""; 0]);
    assert_eq!(ids("- a\n- b\n"), [""; 0]);
    assert_eq!(ids("apiVersion: 3\nkind: [Pod]\n"), [""; 0]);
}

#[test]
fn a_claim_in_another_file_counts() {
    let text = rule("AF503").unwrap().bad;
    let (server, claim) = text.split_once("---\n").unwrap();
    let inputs = [input("server.yaml", server), input("claim.yaml", claim)];
    let findings = check(&inputs, &Options::default());
    let finding = findings.iter().find(|finding| finding.rule.id == "AF503").unwrap();
    assert_eq!(inputs[finding.input].name, "server.yaml");
    assert!(
        check(&inputs[..1], &Options::default()).iter().all(|finding| finding.rule.id != "AF503")
    );
}

#[test]
fn one_replica_with_a_claim_of_one_node_must_stop_before_it_is_replaced() {
    let text = rule("AF503").unwrap().bad;
    let with = |strategy: &str| {
        let one = text.replace("  replicas: 2\n", &format!("  replicas: 1\n{strategy}"));
        assert_ne!(one, text);
        ids(&one).contains(&"AF503")
    };
    for strategy in
        ["", "  strategy: {type: RollingUpdate}\n", "  strategy: {rollingUpdate: {maxSurge: 1}}\n"]
    {
        assert!(with(strategy), "{strategy}");
    }
    for strategy in [
        "  strategy: {type: Recreate}\n",
        "  strategy: {rollingUpdate: {maxSurge: 0, maxUnavailable: 1}}\n",
    ] {
        assert!(!with(strategy), "{strategy}");
    }
}

#[test]
fn only_the_rules_that_were_asked_for_answer() {
    let inputs = [input("a.yaml", rule("AF102").unwrap().bad)];
    let options = Options { only: vec!["AF102"], ..Options::default() };
    assert!(check(&inputs, &options).iter().all(|finding| finding.rule.id == "AF102"));
    let options = Options { ignore: vec!["AF102"], ..Options::default() };
    assert!(check(&inputs, &options).iter().all(|finding| finding.rule.id != "AF102"));
}

#[test]
fn a_comment_silences_a_rule_where_it_stands() {
    let text = rule("AF301").unwrap().bad;
    let comment = "# agentaflow-lint: ignore=AF301";
    let check = |text: String, silent: bool| {
        assert_eq!(!ids(&text).contains(&"AF301"), silent, "{text}");
    };
    check(text.replace("trainer:latest", &format!("trainer:latest {comment}")), true);
    check(text.replace("    image:", &format!("    {comment}\n    image:")), true);
    check(text.replace("  containers:", &format!("  {comment}\n  containers:")), true);
    check(text.replace("  containers:", &format!("  containers: {comment}")), true);
    check(text.replace("  - name: trainer", &format!("  {comment}\n  - name: trainer")), true);
    check(format!("{comment}\n{text}"), true);
    check(format!("---\n{comment}, AF101\n{text}"), true);
    check(format!("# agentaflow-lint: ignore=all\n{text}"), true);
    check(format!("{text}---\n{comment}\n{text}"), false);
    check(text.replace("trainer:latest", "trainer:latest # agentaflow-lint: ignore=AF302"), false);
    check(text.replace("    resources:", &format!("    {comment}\n    resources:")), false);
    check(
        text.replace("  name: trainer\nspec", &format!("  name: trainer {comment}\nspec")),
        false,
    );
}

#[test]
fn live_objects_are_checked_without_lines() {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "b"},
        "spec": {"containers": [{"name": "c", "image": "d:latest"}]},
    });
    let findings = check_values(vec![pod], &Options::default());
    let finding = findings.iter().find(|finding| finding.rule.id == "AF301").unwrap();
    assert_eq!((finding.position, finding.object.as_str()), (None, "Pod/a"));
    assert!(!Input::live("cluster", Vec::new()).written);
}

#[test]
fn correct_manifests_have_no_findings() {
    let node = |selector: &str| {
        rule("AF103").unwrap().good.replace("accelerator: nvidia-tesla-a100", selector)
    };
    let silent: [(&str, String); 12] = [
        ("AF103", node("cloud.google.com/gke-accelerator: nvidia-h100-80gb")),
        ("AF103", node("accelerator: nvidia")),
        ("AF104", node("team.example.org/pool: gpu")),
        ("AF104", node("gpu-type: a100")),
        ("AF104", node("karpenter.k8s.aws/instance-gpu-count: \"8\"")),
        ("AF106", node("node.kubernetes.io/instance-type: p4de.24xlarge")),
        ("AF106", node("node.kubernetes.io/instance-type: n1-standard-8")),
        ("AF106", node("node.kubernetes.io/instance-type: u7i-12tb.224xlarge")),
        ("AF301", rule("AF301").unwrap().bad.replace("trainer:latest", "trainer@sha256:0123")),
        (
            "AF301",
            rule("AF301")
                .unwrap()
                .bad
                .replace("registry.example.com/trainer:latest", "localhost:5000/trainer:1"),
        ),
        (
            "AF102",
            rule("AF102")
                .unwrap()
                .bad
                .replace("nvidia.com/gpu\n    operator", "dedicated\n    operator"),
        ),
        (
            "AF401",
            rule("AF401").unwrap().bad.replace("    spec:\n", "    spec:\n      hostIPC: true\n"),
        ),
    ];
    for (id, text) in silent {
        assert!(!ids(&text).contains(&id), "{id}:\n{text}");
    }
}

#[test]
fn mistakes_are_found_in_other_shapes_too() {
    let node = |selector: &str| {
        rule("AF103").unwrap().good.replace("accelerator: nvidia-tesla-a100", selector)
    };
    let loud: [(&str, String); 11] = [
        ("AF103", node("accelerator: nvidia-gpu")),
        ("AF103", node("cloud.google.com/gke-accelerator: nvidia-a100")),
        ("AF104", node("nvidia.com/gpu.prodcut: NVIDIA-A100-SXM4-40GB")),
        ("AF104", node("acelerator: nvidia-tesla-a100")),
        (
            "AF108",
            node(
                "node.kubernetes.io/instance-type: p3.2xlarge\n    accelerator: nvidia-tesla-a100",
            ),
        ),
        ("AF108", node("node.kubernetes.io/instance-type: p3.2xlarge").replace("gpu: 1", "gpu: 2")),
        ("AF201", rule("AF201").unwrap().good.replace("OnFailure", "Always")),
        ("AF301", rule("AF301").unwrap().bad.replace("trainer:latest", "trainer")),
        (
            "AF303",
            rule("AF303").unwrap().good.to_owned()
                + "  volumes:\n  - name: gpu\n    hostPath:\n      path: /dev/nvidia0\n",
        ),
        ("AF304", rule("AF702").unwrap().good.replace("\"30\"", "apt-get install nvidia-docker2")),
        ("AF703", rule("AF703").unwrap().good.replace("  gpuMemoryRequired: 8192\n", "")),
    ];
    for (id, text) in loud {
        assert!(ids(&text).contains(&id), "{id} not in {:?}:\n{text}", ids(&text));
    }
}

#[test]
fn a_slice_that_the_chosen_gpu_does_not_have_is_found() {
    let slice = rule("AF006").unwrap().good;
    let on = |choice: &str| {
        let text = slice.replace("spec:\n", &format!("spec:\n  {choice}\n"));
        let all = found(&text).into_iter().filter(|finding| finding.rule.id == "AF006");
        all.map(|finding| finding.message).collect::<Vec<_>>().join("; ")
    };
    let affinity = |terms: &str| {
        format!(
            "affinity: {{nodeAffinity: {{requiredDuringSchedulingIgnoredDuringExecution: {{nodeSelectorTerms: [{terms}]}}}}}}"
        )
    };
    let term = |product: &str| {
        format!(
            "{{matchExpressions: [{{key: nvidia.com/gpu.product, operator: In, values: [{product}]}}]}}"
        )
    };
    let memory = "{matchExpressions: [{key: nvidia.com/gpu.memory, operator: Gt, values: ['9']}]}";
    for (choice, words) in [
        (
            "nodeSelector: {accelerator: nvidia-h100-80gb}".to_owned(),
            "an H100-80 has no profile `1g.5gb`",
        ),
        (
            "nodeSelector: {cloud.google.com/gke-accelerator: nvidia-a100-80gb}".to_owned(),
            "an A100-80 has no",
        ),
        (
            "nodeSelector: {karpenter.k8s.aws/instance-gpu-name: t4}".to_owned(),
            "no MIG geometry is known for `t4`",
        ),
        (
            "nodeSelector: {node.kubernetes.io/instance-type: g4dn.xlarge}".to_owned(),
            "no MIG geometry is known for `t4`",
        ),
        (affinity(&term("NVIDIA-H100-PCIe, NVIDIA-H200")), "an H100-80 has no profile `1g.5gb`"),
    ] {
        let output = on(&choice);
        assert!(output.starts_with(words), "{choice}: {output}");
        assert!(output.contains("allows no other GPU"), "{output}");
    }
    for choice in [
        "nodeSelector: {accelerator: nvidia-tesla-a100}".to_owned(),
        "nodeSelector: {accelerator: nvidia}".to_owned(),
        "nodeSelector: {nvidia.com/gpu.product: NVIDIA-A100-SXM4-40GB-MIG-1g.5gb}".to_owned(),
        "nodeSelector: {karpenter.k8s.aws/instance-gpu-name: a100}".to_owned(),
        "nodeSelector: {node.kubernetes.io/instance-type: p4d.24xlarge}".to_owned(),
        affinity(&term("NVIDIA-H100-PCIe, NVIDIA-A100-SXM4-40GB")),
        affinity(&format!("{}, {memory}", term("NVIDIA-H100-PCIe"))),
    ] {
        assert_eq!(on(&choice), "", "{choice}");
    }
    let google = slice.replace("nvidia.com/mig-1g.5gb", "nvidia.com/gpu").replace(
        "spec:\n",
        "spec:\n  nodeSelector: {cloud.google.com/gke-accelerator: nvidia-h100-80gb, cloud.google.com/gke-gpu-partition-size: 1g.5gb}\n",
    );
    assert!(ids(&google).contains(&"AF006"), "{google}");
}

#[test]
fn the_pods_of_each_role_of_a_kubeflow_job_are_checked() {
    let text = "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: a}\nspec:\n  pytorchReplicaSpecs:\n    Worker:\n      template:\n        spec:\n          containers:\n          - name: pytorch\n            image: b:1\n            resources: {requests: {nvidia.com/gpu: 1}}\n";
    let finding = found(text).into_iter().find(|finding| finding.rule.id == "AF002").unwrap();
    assert!(
        finding.path.starts_with("spec.pytorchReplicaSpecs.Worker.template.spec"),
        "{}",
        finding.path
    );
}

#[test]
fn pods_inside_of_any_kind_are_checked() {
    let container = "[{name: a, image: \"b:latest\", securityContext: {privileged: true}, resources: {requests: {nvidia.com/gpu: 1}}}]";
    let table = [
        (
            "ray.io/v1",
            "RayCluster",
            "{workerGroupSpecs: [{template: {spec: {containers: CONTAINERS}}}]}",
            "spec.workerGroupSpecs.0.template.spec",
        ),
        (
            "serving.kserve.io/v1beta1",
            "InferenceService",
            "{predictor: {containers: CONTAINERS}}",
            "spec.predictor",
        ),
        (
            "jobset.x-k8s.io/v1alpha2",
            "JobSet",
            "{replicatedJobs: [{template: {spec: {template: {spec: {containers: CONTAINERS}}}}}]}",
            "spec.replicatedJobs.0.template.spec.template.spec",
        ),
    ];
    for (version, kind, spec, path) in table {
        let spec = spec.replace("CONTAINERS", container);
        let text =
            format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{name: a}}\nspec: {spec}\n");
        let findings = found(&text);
        for id in ["AF002", "AF301", "AF302"] {
            let finding = findings.iter().find(|finding| finding.rule.id == id);
            let finding = finding.unwrap_or_else(|| panic!("{kind}: no {id}"));
            assert!(
                finding.path.replace(['[', ']'], ".").replace("..", ".").starts_with(path),
                "{}",
                finding.path
            );
        }
        assert!(unchecked_kinds(&[input("a.yaml", &text)]).is_empty(), "{kind}");
    }
}

#[test]
fn patterns_of_policies_are_not_pods() {
    for (version, kind, spec) in [
        (
            "kyverno.io/v1",
            "ClusterPolicy",
            "{rules: [{validate: {pattern: {spec: {containers: [{image: \"!*:latest\"}]}}}}]}",
        ),
        ("metrics.k8s.io/v1beta1", "PodMetrics", "{containers: [{name: a, usage: {cpu: 1}}]}"),
    ] {
        let text =
            format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{name: a}}\nspec: {spec}\n");
        assert_eq!(ids(&text), Vec::<&str>::new(), "{kind}");
        assert!(unchecked_kinds(&[input("a.yaml", &text)]).is_empty(), "{kind}");
    }
}

#[test]
fn kinds_with_unknown_containers_are_listed() {
    let workflow = "apiVersion: argoproj.io/v1alpha1\nkind: Workflow\nmetadata: {name: a}\nspec: {podSpecPatch: \"{}\", templates: [{container: {image: \"b:1\", command: [c]}}]}\n";
    let plain = "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {ports: [{port: 80}]}\n";
    let inputs = [workflow, plain].map(|text| input("a.yaml", text));
    assert_eq!(unchecked_kinds(&inputs), ["Workflow"]);
}

#[test]
fn a_field_that_is_not_known_here_is_no_matter_where_the_api_server_took_it() {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"},
        "spec": {"ofTheFuture": true, "containers": []},
    });
    assert!(check_values(vec![pod.clone()], &Options::default()).is_empty());
    assert_eq!(ids(&pod.to_string()), ["AF701"]);
}

#[test]
fn the_machine_flag_sets_the_machine_type() {
    let text = rule("AF108")
        .unwrap()
        .bad
        .replace("    node.kubernetes.io/instance-type: g4dn.xlarge\n", "    role: gpu\n");
    let inputs = [input("runner.yaml", &text)];
    let on = |machine: Option<&str>| {
        let options = Options {
            only: vec!["AF108"],
            machine: machine.map(str::to_owned),
            ..Options::default()
        };
        check(&inputs, &options).len()
    };
    assert_eq!((on(None), on(Some("g4dn.xlarge")), on(Some("g4dn.2xlarge"))), (0, 2, 0));
}
