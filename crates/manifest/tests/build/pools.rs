//! Node pools on demand and on a schedule.

use agentaflow_manifest::catalogue::Catalogue;
use serde_json::{Value, json};

use crate::clouds::pod;
use crate::{make, recipe, refusal};

#[test]
fn the_default_target_is_noted_for_other_metrics() {
    let warns = |line: &str| make(line).notes.iter().any(|note| note.contains("for each 80 of"));
    assert!(warns("keda --target llm --query sum(waiting)"));
    assert!(warns("hpa --target llm --metric requests_waiting"));
    assert!(!warns("keda --target llm --query sum(waiting) --value 4"));
    assert!(!warns("keda --target llm") && !warns("hpa --target llm"));
    assert!(!warns("hpa --target llm --metric DCGM_FI_DEV_GPU_UTIL"));
    let source = |line: &str| make(line).notes.join("; ");
    assert!(source("hpa --target llm").contains("deploy/autoscaling"));
    assert!(source("hpa --target llm --queue q --value 2").contains("deploy/autoscaling"));
    assert!(source("hpa --target llm --metric other").contains("prometheus-adapter"));
}

#[test]
fn node_counts_of_clouds_have_notes() {
    let notes = |flags: &str| {
        make(&format!("scaler --cluster ml --time-zone UTC {flags}")).notes.join("; ")
    };
    let region = notes("--cloud gke --location us-central1");
    assert!(region.contains("per zone") && region.contains("revert the change"), "{region}");
    let zone = notes("--cloud gke --location us-central1-a");
    assert!(!zone.contains("per zone"), "{zone}");
    let azure = notes("--cloud aks --resource-group rg");
    assert!(azure.contains("`az` cannot scale"), "{azure}");
    assert!(!notes("--cloud eks --location us-east-1").contains("autoscaler"));
}

#[test]
fn nodes_come_and_go_by_the_clock() {
    for (flags, up, down) in [
        (
            "--cloud eks --cluster ml --location us-east-1 --nodes 3",
            "minSize=3,maxSize=3,desiredSize=3",
            "minSize=0,maxSize=3,desiredSize=0",
        ),
        ("--cloud gke --cluster ml --location us-central1", "5", "0"),
        ("--cloud aks --cluster ml --resource-group rg --down-to 1", "5", "1"),
        (
            "--cloud karpenter --nodes 16",
            r#"{"spec":{"limits":{"nvidia.com/gpu":"16"}}}"#,
            r#"{"spec":{"limits":{"nvidia.com/gpu":"0"}}}"#,
        ),
    ] {
        let made = make(&format!("scaler {flags} --time-zone Europe/Berlin"));
        let jobs: Vec<_> =
            made.objects.iter().filter(|object| object["kind"] == "CronJob").collect();
        let schedules: Vec<_> =
            jobs.iter().map(|job| job["spec"]["schedule"].as_str().unwrap()).collect();
        assert_eq!(schedules, ["0 9 * * 1-5", "0 19 * * 1-5"]);
        for (job, word) in jobs.iter().zip([up, down]) {
            let command =
                &job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]["command"];
            assert!(command.as_array().unwrap().contains(&json!(word)), "{flags}: {command}");
            assert_eq!(job["spec"]["timeZone"], "Europe/Berlin");
        }
        assert!(made.objects.iter().any(|object| object["kind"] == "ServiceAccount"));
    }
    let made = make("scaler --cloud karpenter");
    assert!(made.objects.iter().any(|object| object["kind"] == "ClusterRole"));
}

#[test]
fn schedules_are_in_a_time_zone_that_there_is() {
    let scaler = "scaler --cloud karpenter";
    for zone in ["UTC", "Etc/UTC", "Etc/GMT+3", "America/Argentina/Buenos_Aires"] {
        let made = make(&format!("{scaler} --time-zone {zone}"));
        assert_eq!(made.objects.last().unwrap()["spec"]["timeZone"], zone);
    }
    let hint = ": use a form such as Europe/Berlin or Etc/UTC";
    for (zone, hint) in [
        ("Moon/Crater", hint),
        ("Local", hint),
        ("", hint),
        ("Europe/Berlim", " (did you mean `Europe/Berlin`?)"),
        ("europe/berlin", " (did you mean `Europe/Berlin`?)"),
        ("berlin", " (did you mean `Europe/Berlin`?)"),
        ("new york", " (did you mean `America/New_York`?)"),
        ("utc", " (did you mean `UTC`?)"),
    ] {
        let output = format!("--time-zone: `{zone}` is not a time zone{hint}");
        assert_eq!(refusal(&format!("{scaler} --time-zone '{zone}'")), output);
        let file = format!("{{cloud: karpenter, time-zone: '{zone}'}}");
        let by_file = recipe("scaler").over(&file).unwrap();
        assert_eq!(by_file.make(&Catalogue::built_in().unwrap()).unwrap_err().to_string(), output);
    }
}

#[test]
fn a_pool_of_aks_has_a_name_that_aks_takes() {
    let scaler = "scaler --cloud aks --cluster ml --resource-group rg";
    let command = |line: &str| {
        let made = make(line);
        made.objects.last().unwrap()["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]["command"]
            .to_string()
    };
    assert!(command(scaler).contains(r#""--name","gpupool""#), "{}", command(scaler));
    make(&format!("{scaler} --node-pool a100pool0001"));
    let pod = "pod --name p --image i:1 --cloud aks";
    for line in [scaler, pod] {
        for name in ["gpu-pool", "GpuPool", "1pool", "a100pool00001"] {
            let output = refusal(&format!("{line} --node-pool {name}"));
            assert!(
                output.starts_with(&format!("--node-pool: `{name}` is not a pool name")),
                "{output}"
            );
        }
    }
}

#[test]
fn a_pool_of_nodes_begins_with_none_and_has_a_limit() {
    let made = make("nodepool --gpu a100 --spot --max-gpus 16 --idle 10m");
    let spec = &made.objects[0]["spec"];
    assert_eq!(spec["limits"], json!({"nvidia.com/gpu": "16"}));
    assert_eq!(
        spec["disruption"],
        json!({"consolidationPolicy": "WhenEmpty", "consolidateAfter": "600s"})
    );
    let requirements = spec["template"]["spec"]["requirements"].as_array().unwrap();
    assert_eq!(requirements[0]["values"], json!(["spot", "on-demand"]));
    assert_eq!(requirements[2]["values"], json!(["p4d.24xlarge", "p4de.24xlarge"]));
    assert_eq!(spec["template"]["spec"]["taints"][0]["key"], "nvidia.com/gpu");
    let made = make("nodepool --cloud aks --instance-type Standard_NC24ads_A100_v4");
    assert_eq!(made.objects[0]["spec"]["template"]["spec"]["nodeClassRef"]["kind"], "AKSNodeClass");
}

#[test]
fn a_pool_has_room_for_its_smallest_machine() {
    for (flags, words) in [
        (
            "--gpu a100 --max-gpus 4",
            "--max-gpus: 4 is less than the GPUs of the smallest machine (p4d.24xlarge has 8)",
        ),
        (
            "--gpu h100 --max-gpus 0",
            "--max-gpus: 0 is less than the GPUs of the smallest machine (p5.4xlarge has 1)",
        ),
        ("--instance-type own.type --max-gpus 0", "--max-gpus: 0 is less"),
        ("--gpu t4 --max-gpus 100001", "--max-gpus: must be 1 to 100000"),
    ] {
        let output = refusal(&format!("nodepool {flags}"));
        assert!(output.starts_with(words), "{flags}: {output}");
    }
    // One of the machines with an H100 has a single one.
    for flags in [
        "--gpu h100 --max-gpus 4",
        "--gpu a100 --max-gpus 8",
        "--instance-type own.type --max-gpus 4",
    ] {
        make(&format!("nodepool {flags}"));
    }
}

#[test]
fn karpenter_pools_scale_on_a_schedule() {
    let limits = |flags: &str| {
        let jobs = make(&format!("scaler --cloud karpenter {flags}")).objects;
        let limit = |job: &Value| {
            let command =
                job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]["command"]
                    .to_string();
            command.chars().filter(char::is_ascii_digit).collect::<String>()
        };
        (limit(&jobs[jobs.len() - 2]), limit(&jobs[jobs.len() - 1]))
    };
    for (flags, up, down) in [
        ("", "5", "0"),
        ("--gpu a100", "8", "0"),
        ("--gpu h100", "5", "0"),
        ("--instance-type g4dn.12xlarge", "8", "0"),
        ("--instance-type p4d.24xlarge --instance-type p5.4xlarge", "5", "0"),
        ("--instance-type Standard_ND96asr_v4", "8", "0"),
        ("--instance-type own.type", "5", "0"),
        ("--gpu a100 --nodes 24 --down-to 8", "24", "8"),
    ] {
        assert_eq!(limits(flags), (up.to_owned(), down.to_owned()), "{flags}");
    }
    for (flags, words) in [
        (
            "karpenter --gpu a100 --nodes 5",
            "--nodes: 5 is less than the GPUs of the smallest machine (p4d.24xlarge has 8)",
        ),
        (
            "karpenter --instance-type p5.48xlarge --nodes 16 --down-to 4",
            "--down-to: 4 is less than the GPUs of the smallest machine (p5.48xlarge has 8): use 0 for none",
        ),
        ("karpenter --gpu a100 --nodes 0", "--nodes: must be 1 to 10000"),
        ("karpenter --gpu a30", "--gpu: no eks machine of the catalogue has the GPU A30"),
        ("karpenter --gpu t4 --instance-type p4d.24xlarge", "--instance-type: `p4d.24xlarge` has"),
        ("gke --cluster c --location l --gpu a100", "--gpu: only for karpenter"),
        ("eks --cluster c --location l --instance-type x", "--instance-type: only for karpenter"),
    ] {
        let output = refusal(&format!("scaler --cloud {flags}"));
        assert!(output.starts_with(words), "{flags}: {output}");
    }
    let notes = make("scaler --cloud karpenter").notes;
    assert!(notes.iter().any(|note| note.contains("--nodes counts GPUs")), "{notes:?}");
    let notes = make("scaler --cloud karpenter --instance-type p4d.24xlarge").notes;
    assert!(notes.iter().any(|note| note.starts_with("p4d.24xlarge: 8 × A100")), "{notes:?}");
}

#[test]
fn a_pool_serves_the_pods_that_are_made_for_its_cloud() {
    for (cloud, gpu) in
        [("aks", "a100-80"), ("aks", "t4"), ("karpenter", "a100-80"), ("karpenter", "h100")]
    {
        let pool =
            &make(&format!("nodepool --cloud {cloud} --gpu {gpu}")).objects[0]["spec"]["template"];
        let machines = pool["spec"]["requirements"][2]["values"].as_array().unwrap();
        let wanted = pod(&format!("--cloud {cloud} --gpu {gpu}"));
        for (label, value) in wanted["nodeSelector"].as_object().unwrap() {
            // Karpenter labels its nodes.
            let served = match label.as_str() {
                "node.kubernetes.io/instance-type" => machines.contains(value),
                label => {
                    label.starts_with("karpenter.") || pool["metadata"]["labels"][label] == *value
                }
            };
            assert!(served, "{cloud} {gpu}: {label}={value} in {pool}");
        }
    }
}

#[test]
fn gpu_limits_are_noted_in_machines() {
    for (line, words) in [
        (
            "scaler --cloud karpenter --instance-type p4d.24xlarge --nodes 12",
            "--nodes 12 counts GPUs: 1 × p4d.24xlarge with 8; 4 of these GPUs are never used, because machines \
             are rented whole; 12 such machines have 96",
        ),
        (
            "scaler --cloud karpenter --gpu a100 --nodes 24 --down-to 8",
            "--down-to 8 counts GPUs: 1 × p4d.24xlarge with 8; 8 such machines have 64",
        ),
        (
            "nodepool --gpu a100 --max-gpus 12",
            "--max-gpus 12 counts GPUs: 1 × p4d.24xlarge with 8; 4 of these GPUs are never used",
        ),
    ] {
        let notes = make(line).notes;
        assert!(notes.iter().any(|note| note.starts_with(words)), "{line}: {notes:?}");
    }
    for line in [
        "scaler --cloud karpenter --instance-type g4dn.xlarge --nodes 12",
        "scaler --cloud karpenter --gpu a100",
        "nodepool --gpu h100 --max-gpus 12",
        "nodepool --gpu a100",
        "nodepool --instance-type own.type --max-gpus 12",
    ] {
        let notes = make(line).notes;
        assert!(!notes.iter().any(|note| note.contains("counts GPUs")), "{line}: {notes:?}");
    }
}
