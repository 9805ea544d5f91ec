//! Tests of recipes completed from a sizing.

use agentaflow_manifest::build::{Recipe, SizedRecipe, SizingFields};
use agentaflow_manifest::catalogue::Catalogue;
use agentaflow_manifest::cloud::gpu_named;
use agentaflow_manifest::detect::{Detection, GpuType};
use serde_json::{Value, json};

use crate::{check, recipe};

/// Object of a command line with the sizing of a text, and the overriding flags.
fn sized(line: &str, text: &str) -> Result<(Value, Vec<String>), String> {
    let sizing = Detection::of_text(text).sizing.expect("work for GPUs");
    let catalogue = Catalogue::built_in().unwrap();
    let sized = recipe(line).sized(&sizing, &catalogue).map_err(|error| error.to_string())?;
    let SizedRecipe { recipe, kept, .. } = sized;
    let made = recipe.make(&catalogue).map_err(|error| error.to_string())?;
    let object = made.objects.into_iter().next().unwrap();
    assert_eq!(check::problems(&object), Vec::<String>::new());
    Ok((object, kept))
}

fn limits(object: &Value) -> Value {
    let mut limits =
        object.pointer("/spec/template/spec/containers/0/resources/limits").unwrap().clone();
    let volumes = object.pointer("/spec/template/spec/volumes").and_then(Value::as_array);
    let shm = volumes.into_iter().flatten().find(|volume| volume["name"] == "shm");
    limits["shm"] = shm.map_or(Value::Null, |volume| volume["emptyDir"]["sizeLimit"].clone());
    limits["accelerator"] =
        object["spec"]["template"]["spec"]["nodeSelector"]["accelerator"].clone();
    limits
}

#[test]
fn a_job_gets_the_sizing_of_its_text() {
    for (text, expected) in [
        (
            "image classification",
            json!({"nvidia.com/gpu": "1", "accelerator": "nvidia-tesla-v100", "memory": "16Gi", "cpu": "8000m", "shm": "2Gi"}),
        ),
        (
            "model training with pytorch",
            json!({"nvidia.com/gpu": "1", "accelerator": "nvidia-tesla-a100", "memory": "32Gi", "cpu": "16000m", "shm": "4Gi"}),
        ),
        (
            "inference with a large model",
            json!({"nvidia.com/gpu": "4", "accelerator": "nvidia-tesla-a100", "memory": "64Gi", "cpu": "32000m", "shm": "8Gi"}),
        ),
        (
            "Serve Llama-3 70B in bf16",
            json!({"nvidia.com/gpu": "2", "accelerator": "nvidia-a100-80gb", "memory": "176Gi", "cpu": "16000m", "shm": "4Gi"}),
        ),
    ] {
        let (job, kept) = sized("job --name train --image train:v1", text).unwrap();
        assert_eq!(limits(&job), expected, "{text}");
        assert!(kept.is_empty(), "{kept:?}");
    }
}

#[test]
fn flags_override_the_sizing_with_a_note() {
    let line = "job --name train --image train:v1 --gpus 2 --gpu h100 --memory 24Gi --cpu 8000m";
    let (job, kept) = sized(line, "inference with a large model").unwrap();
    let expected = json!({"nvidia.com/gpu": "2", "accelerator": "nvidia-h100-80gb", "memory": "24Gi", "cpu": "8000m", "shm": "8Gi"});
    assert_eq!(limits(&job), expected);
    let wanted = [
        "--gpus 2 overrides 4",
        "--gpu h100 overrides a100",
        "--memory 24Gi overrides 64Gi",
        "--cpu 8000m overrides 32000m",
        "shared memory depends on --memory",
    ];
    assert_eq!(kept, wanted);
    // Selected nodes determine the GPUs; slices are counted differently.
    let (job, kept) = sized(
        "job --name train --image train:v1 --cloud eks --instance-type p3.8xlarge",
        "model training",
    )
    .unwrap();
    assert_eq!(limits(&job)["nvidia.com/gpu"], "1");
    assert_eq!(kept, ["the selected nodes override a100"]);
    let (job, kept) =
        sized("job --name train --image train:v1 --mig 1g.5gb", "image classification").unwrap();
    assert_eq!(limits(&job)["nvidia.com/mig-1g.5gb"], "1");
    assert_eq!(kept, ["--mig 1g.5gb overrides 1 × v100"]);
}

#[test]
fn work_for_several_machines_is_a_gang_and_no_job() {
    let text = "Full fine-tuning of a 70B model in bf16 with Adam";
    let sizing = Detection::of_text(text).sizing.unwrap();
    assert!(sizing.gpu_count > 8, "{}", sizing.gpu_count);
    let gang = sizing.gpu_count.div_ceil(8);
    let (workload, _) = sized("workload --name train --image train:v1", text).unwrap();
    assert_eq!(workload["spec"]["gangSize"], gang);
    assert_eq!(workload["spec"]["gpuRequirements"]["gpuCount"], 8);
    let output = sized("job --name train --image train:v1", text).unwrap_err();
    assert!(output.starts_with("--detect: needs "), "{output}");
    assert!(output.contains("use `generate workload`"), "{output}");
}

#[test]
fn every_type_that_work_is_sized_for_is_one_that_can_be_generated() {
    for gpu in GpuType::ALL {
        let known = gpu_named(gpu.name()).unwrap_or_else(|| panic!("{}", gpu.name()));
        let whole = u64::from(known.memory_gib) << 10;
        // Drivers show up to a tenth less than the size in the name.
        assert!((whole * 9 / 10..=whole).contains(&gpu.memory_mib()), "{}", gpu.name());
    }
}

#[test]
fn recipes_without_pods_have_no_size() {
    let output = sized("pvc --name models", "model training").unwrap_err();
    assert!(output.starts_with("--detect: only recipes with pods have a size"), "{output}");
}

#[test]
fn a_size_is_a_file_that_recipes_are_read_from() {
    let sizing = Detection::of_text("model training").sizing.unwrap();
    let file = serde_saphyr::to_string(&SizingFields::of(&sizing)).unwrap();
    let Recipe::Job(job) = recipe("job --name train --image train:v1").over(&file).unwrap() else {
        panic!("another kind")
    };
    assert_eq!((job.pod.gpus, job.placement.gpu.as_deref()), (Some(1), Some("a100")));
    assert_eq!((job.pod.memory.as_deref(), job.pod.shm.as_deref()), (Some("32Gi"), Some("4Gi")));
}

#[test]
fn on_a_cloud_the_cheapest_of_its_machines_that_holds_the_work_is_chosen() {
    let machine = "node.kubernetes.io/instance-type";
    let model = "cloud.google.com/gke-accelerator";
    let table = [
        ("gke", "Train 1.3B model in bf16", "1", model, "nvidia-tesla-a100"),
        ("aks", "Train 1.3B model in bf16", "1", machine, "Standard_NC24ads_A100_v4"),
        ("eks", "Serve Llama-3 70B in bf16", "4", machine, "g6e.12xlarge"),
        (
            "karpenter",
            "Serve Llama-3 70B in bf16",
            "4",
            "karpenter.k8s.aws/instance-gpu-name",
            "l40s",
        ),
        ("aks", "inference with 24 GB of VRAM", "1", machine, "Standard_NC24ads_A100_v4"),
        // Size words without numbers name a GPU, which is kept if the cloud has it.
        ("eks", "image classification", "1", machine, "p3.2xlarge"),
    ];
    for (cloud, text, gpus, label, value) in table {
        let line = format!("job --name train --image train:v1 --cloud {cloud}");
        let (job, kept) =
            sized(&line, text).unwrap_or_else(|output| panic!("{cloud}, {text}: {output}"));
        assert_eq!(limits(&job)["nvidia.com/gpu"], gpus, "{cloud}, {text}");
        let selector = &job["spec"]["template"]["spec"]["nodeSelector"];
        assert_eq!(selector[label], value, "{cloud}, {text}");
        assert!(kept.is_empty(), "{kept:?}");
    }
}

#[test]
fn missing_machines_of_a_cloud_name_the_flag() {
    let line = "job --name train --image train:v1 --cloud gke";
    let output = sized(line, "Serve Llama-3 8B in bf16 on an L40S GPU").unwrap_err();
    assert!(output.starts_with("--detect: needs 1 × l40s, but no machine of gke"), "{output}");
    let output = sized(&format!("{line} --memory 9000Gi"), "Serve Llama-3 8B in bf16").unwrap_err();
    assert!(output.starts_with("--memory: "), "{output}");
}

#[test]
fn an_explicit_gpu_count_selects_a_sufficient_type() {
    let line = "job --name serve --image serve:v1 --cloud gke --gpus 2";
    let (job, _) = sized(line, "Serve Llama-3 70B in bf16").unwrap();
    let selector = &job["spec"]["template"]["spec"]["nodeSelector"];
    assert_eq!(selector["cloud.google.com/gke-accelerator"], "nvidia-a100-80gb");
}
