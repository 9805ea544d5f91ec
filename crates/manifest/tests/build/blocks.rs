//! Every YAML block of the guides is made by a command line: the same object, not the same text. Where the printed block
//! is wrong, the right one is in `data/blocks` and the printed one in `data/blocks/printed`.

use std::path::PathBuf;

use serde_json::Value;

use crate::{check, make};

/// A block, the command line that makes it, where each part of the block lies in what is made, and what is made beyond
/// the block.
pub(crate) struct Block {
    pub(crate) file: &'static str,
    pub(crate) line: &'static str,
    parts: &'static [(&'static str, &'static str)],
    beyond: &'static [&'static str],
}

const WHOLE: &[(&str, &str)] = &[("/0", "/0")];
const SELECTOR: &[(&str, &str)] = &[("/0/nodeSelector", "/0/spec/nodeSelector")];
const RESOURCES: &[(&str, &str)] = &[("/0/resources", "/0/spec/containers/0/resources")];
const GPUS: &[(&str, &str)] = &[
    (
        "/0/resources/limits/nvidia.com~1gpu",
        "/0/spec/template/spec/containers/0/resources/limits/nvidia.com~1gpu",
    ),
    ("/0/env/0", "/0/spec/template/spec/containers/0/env/1"),
];

pub(crate) const BLOCKS: [Block; 33] = [
    Block {
        file: "worker-job",
        line: "job --bare --name gpu-ml-task --image agent_bus:latest --gpu v100 --taint true",
        parts: WHOLE,
        beyond: &[],
    },
    Block {
        file: "worker-v100-resources",
        line: "pod --name worker --image agent_bus:v1.0.0 --gpu v100",
        parts: RESOURCES,
        beyond: &[],
    },
    Block {
        file: "worker-a100-resources",
        line: "pod --name worker --image agent_bus:v1.0.0 --gpu a100",
        parts: RESOURCES,
        beyond: &[],
    },
    Block {
        file: "worker-2-gpus",
        line: "job --name worker --image agent_bus:v1.0.0 --gpus 2",
        parts: GPUS,
        beyond: &[],
    },
    Block {
        file: "worker-4-gpus",
        line: "job --name worker --image agent_bus:v1.0.0 --gpus 4",
        parts: GPUS,
        beyond: &[],
    },
    Block {
        file: "worker-8-gpus",
        line: "job --name worker --image agent_bus:v1.0.0 --gpus 8",
        parts: GPUS,
        beyond: &[],
    },
    Block {
        file: "worker-v100-selector",
        line: "pod --name worker --image agent_bus:v1.0.0 --gpu v100 --instance-type p3.2xlarge",
        parts: SELECTOR,
        beyond: &[],
    },
    Block {
        file: "worker-a100-selector",
        line: "pod --name worker --image agent_bus:v1.0.0 --gpu a100 --instance-type p4d.24xlarge",
        parts: SELECTOR,
        beyond: &[],
    },
    Block {
        file: "worker-affinity",
        line: "pod --name worker --image agent_bus:v1.0.0 --prefer a100=100 --prefer v100=50",
        parts: &[("/0/affinity", "/0/spec/affinity")],
        beyond: &[],
    },
    Block {
        file: "worker-shm",
        line: "pod --name worker --image agent_bus:v1.0.0 --gpu v100",
        parts: &[
            ("/0/volumes", "/0/spec/volumes"),
            ("/0/volumeMounts", "/0/spec/containers/0/volumeMounts"),
        ],
        beyond: &[],
    },
    Block {
        file: "worker-spot",
        line: "pod --name worker --image agent_bus:v1.0.0 --spot --taint none",
        parts: &[
            ("/0/nodeSelector", "/0/spec/nodeSelector"),
            ("/0/tolerations", "/0/spec/tolerations"),
        ],
        beyond: &[],
    },
    Block {
        file: "worker-scaling",
        line: "scaler --cloud gke --cluster ml --location us-central1",
        parts: &[("/0", "/1"), ("/1", "/2")],
        beyond: &[
            "/spec/concurrencyPolicy",
            "/spec/startingDeadlineSeconds",
            "/spec/jobTemplate/spec/activeDeadlineSeconds",
            "/spec/jobTemplate/spec/backoffLimit",
            "/spec/jobTemplate/spec/ttlSecondsAfterFinished",
            "/spec/jobTemplate/spec/template/spec/containers/0/resources",
        ],
    },
    Block {
        file: "worker-scaling-karpenter",
        line: "scaler --cloud karpenter --image bitnami/kubectl",
        parts: &[
            ("/0/patch/schedule", "/3/spec/schedule"),
            ("/0/patch/image", "/3/spec/jobTemplate/spec/template/spec/containers/0/image"),
            ("/0/patch/command", "/3/spec/jobTemplate/spec/template/spec/containers/0/command"),
        ],
        beyond: &[],
    },
    Block {
        file: "worker-complete-job",
        line: "job --name ml-training-job --container trainer --image agent_bus:latest --gpu a100 \
               --instance-type p4d.24xlarge --taint true --workspace --timeout none",
        parts: WHOLE,
        beyond: &["/metadata/labels", "/spec/template/metadata"],
    },
    Block {
        file: "pod",
        line: "pod --bare --name gpu-pod --image nvidia/cuda:12.0-base --taint none",
        parts: WHOLE,
        beyond: &[],
    },
    Block {
        file: "inference-deployment",
        line: "deployment --bare --name ml-inference --image ml-model:v1.0.0 --replicas 2 --cloud nvidia --cpu 4 \
               --memory 16Gi --cpu-request 2 --memory-request 8Gi --startup-delay 30s --liveness 30s \
               --model-cache model-cache-pvc",
        parts: WHOLE,
        beyond: &["/spec/template/spec/containers/0/ports"],
    },
    Block {
        file: "affinity",
        line: "pod --name train --image training:v1.0.0 --product NVIDIA-A100-SXM4-40GB \
               --product NVIDIA-A100-SXM4-80GB --gpu-memory-over 40000",
        parts: &[("/0/spec/affinity", "/0/spec/affinity")],
        beyond: &[],
    },
    Block {
        file: "toleration",
        line: "pod --name train --image training:v1.0.0",
        parts: &[("/0/spec/tolerations", "/0/spec/tolerations")],
        beyond: &[],
    },
    Block {
        file: "four-gpus",
        line: "pod --bare --name train --container training --image training:v1.0.0 --gpus 4 --cpu 32 --memory 128Gi",
        parts: &[("/0/spec/containers", "/0/spec/containers")],
        beyond: &[],
    },
    Block { file: "time-slicing", line: "time-slicing", parts: WHOLE, beyond: &[] },
    Block {
        file: "time-slice",
        line: "pod --bare --name share --image ml-model:v1.0.0",
        parts: RESOURCES,
        beyond: &[],
    },
    Block {
        file: "mig-1g",
        line: "pod --bare --name slice --image ml-model:v1.0.0 --mig 1g.5gb",
        parts: RESOURCES,
        beyond: &[],
    },
    Block {
        file: "mig-2g",
        line: "pod --bare --name slice --image ml-model:v1.0.0 --mig 2g.10gb",
        parts: RESOURCES,
        beyond: &[],
    },
    Block {
        file: "mig-3g",
        line: "pod --bare --name slice --image ml-model:v1.0.0 --mig 3g.20gb",
        parts: RESOURCES,
        beyond: &[],
    },
    Block {
        file: "mig-7g",
        line: "pod --bare --name slice --image ml-model:v1.0.0 --mig 7g.40gb",
        parts: RESOURCES,
        beyond: &[],
    },
    Block {
        file: "training-job",
        line: "job --bare --name training-job --container training --image training:v1.0.0 --gpu a100 --gpus 8 \
               --cpu 64 --memory 256Gi --backoff-limit 2 --timeout 24h --restart-policy Never \
               --mount data=training-data:/data --mount output=training-output:/output -- python train.py",
        parts: WHOLE,
        beyond: &[],
    },
    Block {
        file: "model-server",
        line: "model-server --bare --name llm-server --label app=llm-server --image vllm:v0.2.0 --replicas 2 \
               --gpu a100 --taint none --cpu 8 --memory 32Gi --cache-claim model-cache --storage-class fast-ssd \
               --access-mode ReadWriteOnce",
        parts: &[("/0", "/0"), ("/1", "/1")],
        beyond: &["/metadata/labels"],
    },
    Block {
        file: "eks",
        line: "pod --name train --image training:v1.0.0 --cloud eks --gpu a100 --gpus 8",
        parts: SELECTOR,
        beyond: &[],
    },
    Block {
        file: "karpenter",
        line: "pod --name train --image training:v1.0.0 --cloud karpenter --gpus 8",
        parts: SELECTOR,
        beyond: &[],
    },
    Block {
        file: "gke",
        line: "pod --name train --image training:v1.0.0 --cloud gke --gpu a100",
        parts: SELECTOR,
        beyond: &[],
    },
    Block {
        file: "aks",
        line: "pod --name train --image training:v1.0.0 --cloud aks --node-pool gpupool",
        parts: SELECTOR,
        beyond: &[],
    },
    Block {
        file: "gpu-workload",
        line: "workload --bare --name my-training-job --namespace agentaflow --image pytorch/pytorch:latest-gpu \
               --priority 5 --gpu-memory 8192 --strategy least_utilized --taint none",
        parts: WHOLE,
        beyond: &[],
    },
    // As printed where that is not wrong but unusual: any label may be written out.
    Block {
        file: "printed/inference-deployment",
        line: "deployment --bare --name ml-inference --image ml-model:v1.0.0 --replicas 2 \
               --selector accelerator=nvidia-gpu --cpu 4 --memory 16Gi --cpu-request 2 --memory-request 8Gi \
               --startup-delay 30s --liveness 30s --model-cache model-cache-pvc",
        parts: WHOLE,
        beyond: &["/spec/template/spec/containers/0/ports"],
    },
];

#[test]
fn every_block_of_the_guides_is_made_by_a_command_line() {
    for block in &BLOCKS {
        let wanted = Value::Array(documents(block.file));
        let mut made = Value::Array(make(block.line).objects);
        for (at, place) in block.parts {
            let wanted = wanted.pointer(at).unwrap_or_else(|| panic!("{}: {at}", block.file));
            let found =
                made.pointer_mut(place).unwrap_or_else(|| panic!("{}: {place}", block.file));
            let mut took = 0;
            for path in block.beyond {
                took += usize::from(take(found, path));
            }
            // A claim has less beyond the block than the server before it.
            assert!(took == block.beyond.len() || *at != "/0", "{}: not all is beyond", block.file);
            assert_eq!(plain(found), plain(wanted), "{} at {at}: {}", block.file, block.line);
        }
    }
}

#[test]
fn every_file_of_a_block_is_in_the_table() {
    for (folder, prefix) in [("", ""), ("printed", "printed/")] {
        for entry in std::fs::read_dir(path(folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let Some(stem) = name.strip_suffix(".yaml") else { continue };
            let file = format!("{prefix}{stem}");
            let made = BLOCKS.iter().any(|block| block.file == file);
            let wrong = WRONG.iter().any(|(wrong, _)| format!("printed/{wrong}") == file);
            assert!(made || wrong, "{file}");
        }
    }
}

/// Blocks that are printed wrongly, and a word of what is wrong.
const WRONG: [(&str, &str); 5] = [
    ("worker-job", "restartPolicy"),
    ("worker-scaling", "restartPolicy"),
    ("model-server", "selector"),
    ("affinity", "gpu.gpu-vendor.example/installed-memory"),
    ("training-job", "nvidia-a100"),
];

#[test]
fn what_is_printed_wrongly_is_noticed_and_what_is_made_instead_is_not() {
    for (file, word) in WRONG {
        let said = |file: &str| -> Vec<String> {
            documents(file).iter().flat_map(check::problems).collect()
        };
        let printed = said(&format!("printed/{file}"));
        assert!(printed.iter().any(|problem| problem.contains(word)), "{file}: {printed:?}");
        assert_eq!(said(file), Vec::<String>::new(), "{file}");
    }
}

fn path(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/blocks").join(file)
}

fn documents(file: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(path(&format!("{file}.yaml"))).unwrap();
    serde_saphyr::from_multiple(&text).unwrap()
}

/// Removes what a pointer names.
fn take(value: &mut Value, path: &str) -> bool {
    let (parent, key) = path.rsplit_once('/').unwrap();
    let parent = value.pointer_mut(parent).and_then(Value::as_object_mut);
    parent.is_some_and(|parent| parent.remove(key).is_some())
}

/// As objects are compared: amounts are texts, and a file inside of an object is what it says.
fn plain(value: &Value) -> Value {
    match value {
        Value::Object(object) => {
            let mut all = serde_json::Map::new();
            for (key, value) in object {
                let value = match (key.as_str(), value) {
                    ("limits" | "requests", Value::Object(amounts)) => {
                        let text = |value: &Value| {
                            value.as_str().map_or_else(|| value.to_string(), str::to_owned)
                        };
                        amounts
                            .iter()
                            .map(|(name, value)| (name.clone(), Value::String(text(value))))
                            .collect()
                    }
                    ("config.yaml", Value::String(text)) => serde_saphyr::from_str(text).unwrap(),
                    _ => plain(value),
                };
                all.insert(key.clone(), value);
            }
            Value::Object(all)
        }
        Value::Array(list) => list.iter().map(plain).collect(),
        // A lone amount.
        Value::Number(number) => Value::String(number.to_string()),
        other => other.clone(),
    }
}
