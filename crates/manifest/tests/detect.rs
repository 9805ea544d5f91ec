//! What `detect` says of texts and files, in tables.

use agentaflow_manifest::detect::{
    BASE_KEYWORDS, Detection, EvidenceKind, File, GpuType, SizingRule, WorkloadType,
};

fn check(text: &str) -> Detection {
    let detection = Detection::of_text(text);
    assert!((0.0..=1.0).contains(&detection.confidence), "{text}: {}", detection.confidence);
    assert_eq!(detection.is_ml_workload, detection.sizing.is_some(), "{text}");
    assert_eq!(detection.is_ml_workload, detection.workload_type != WorkloadType::None, "{text}");
    assert!(!detection.reasoning.is_empty(), "{text}");
    detection
}

fn files(files: &[(&str, &str)]) -> Detection {
    let files: Vec<_> = files.iter().map(|(path, content)| File::new(*path, *content)).collect();
    Detection::of_files(&files)
}

/// Count, type, GPU memory, memory, CPU, shared memory, in one line.
fn size(text: &str) -> String {
    let sizing = check(text).sizing.unwrap_or_else(|| panic!("no ML work: {text}"));
    format!(
        "{}×{} {} {} {}",
        sizing.gpu_count,
        sizing.gpu_type.name(),
        sizing.memory(),
        sizing.cpu(),
        sizing.shm()
    )
}

#[test]
fn every_base_keyword_alone_is_ml_work_in_any_case() {
    for keyword in BASE_KEYWORDS {
        let title: String =
            keyword.split(' ').map(|word| word[..1].to_uppercase() + &word[1..] + " ").collect();
        for text in [keyword.to_owned(), keyword.to_uppercase(), title, format!("x\n({keyword}),")]
        {
            let detection = check(&text);
            assert!(detection.is_ml_workload, "{text}");
            assert!(detection.detected_keywords.iter().any(|word| word == keyword), "{text}");
        }
    }
}

#[test]
fn only_cv_and_nlp_must_be_whole_words() {
    for text in ["csv", "scv", "cvs", "nlpx", "my_cv", "cv2", "unlp"] {
        assert!(!check(text).is_ml_workload, "{text}");
    }
    for keyword in BASE_KEYWORDS.into_iter().filter(|keyword| !matches!(*keyword, "cv" | "nlp")) {
        let text = format!("xx{keyword}yy");
        assert!(check(&text).is_ml_workload, "{text}");
    }
}

#[test]
fn without_numbers_the_words_decide_the_size() {
    let table = [
        ("a large model on PyTorch", "4×a100 64Gi 32000m 8Gi"),
        ("GPU work with a billion rows", "4×a100 64Gi 32000m 8Gi"),
        ("Train a 7 billion parameter model with PyTorch", "4×a100 64Gi 32000m 16Gi"),
        ("model training", "1×a100 32Gi 16000m 4Gi"),
        ("PyTorch Training", "1×a100 32Gi 16000m 4Gi"),
        ("inference", "1×v100 16Gi 8000m 2Gi"),
        ("object detection with YOLO", "1×v100 16Gi 8000m 2Gi"),
        ("Train a ResNet-50 with PyTorch", "1×v100 16Gi 8000m 4Gi"),
    ];
    for (text, expected) in table {
        assert_eq!(size(text), expected, "{text}");
        assert_eq!(check(text).sizing.unwrap().rule, SizingRule::Base, "{text}");
    }
}

#[test]
fn gpus_that_a_text_asks_for_are_kept() {
    let table = [
        ("PyTorch training on 8 A100 GPUs", 8, GpuType::A100),
        ("PyTorch training on 8xA100 80GB", 8, GpuType::A100Large),
        ("deep learning, 2 x H100", 2, GpuType::H100),
        ("deep learning on one NVIDIA T4", 1, GpuType::T4),
        ("computer vision on two GPUs", 2, GpuType::V100),
        ("nvidia.com/gpu: 4", 4, GpuType::V100),
        ("inference with 24 GB of VRAM", 1, GpuType::L4),
        ("inference, GPU memory: 40 GB", 1, GpuType::L40s),
        ("no more than 4 GPUs", 1, GpuType::V100),
    ];
    for (text, count, gpu) in table {
        let sizing = check(text).sizing.unwrap();
        assert_eq!((sizing.gpu_count, sizing.gpu_type), (count, gpu), "{text}");
    }
}

#[test]
fn parameters_with_a_precision_are_computed_and_shown() {
    // Text, GPUs, and the first line of the arithmetic.
    let table = [
        ("Serve a 70B model in bf16", "2×a100-80gb", "weights: 70B × 2 bytes (bf16) = 133515 MiB"),
        ("Serve Llama-3 70B in bf16", "2×a100-80gb", "weights: 70B × 2 bytes (bf16) = 133515 MiB"),
        ("Serve Llama-3 8B in fp16", "1×l4", "weights: 8B × 2 bytes (fp16) = 15259 MiB"),
        (
            "Serve Llama-3 8B in int4",
            "1×t4",
            "weights: 8B × 0.5625 bytes (4 bits with scales) = 4292 MiB",
        ),
        ("Serve Llama 3.1 405B in fp8", "4×h200", "weights: 405B × 1 bytes (fp8) = 386239 MiB"),
        (
            "Full fine-tuning of a 7B model in bf16",
            "2×a100-80gb",
            "weights: 7B × 2 bytes (16 bits) = 13352 MiB",
        ),
        (
            "QLoRA fine-tuning of Llama 70B",
            "1×a100-80gb",
            "weights: 70B × 0.5625 bytes (frozen, 4 bits with scales) = 37551 MiB",
        ),
    ];
    for (text, gpus, arithmetic) in table {
        let detection = check(text);
        let sizing = detection.sizing.as_ref().unwrap();
        assert_eq!(sizing.rule, SizingRule::Computed, "{text}");
        let chosen = format!("{}×{}", sizing.gpu_count, sizing.gpu_type.name());
        assert_eq!(chosen, gpus, "{text}: {:#?}", detection.reasoning);
        assert!(
            detection.reasoning.iter().any(|line| line == arithmetic),
            "{text}: {:#?}",
            detection.reasoning
        );
        assert!(sizing.fits && sizing.gpu_memory_mib <= sizing.gpu_type.memory_mib(), "{text}");
    }
}

#[test]
fn training_with_adam_takes_sixteen_bytes_a_parameter_in_every_precision() {
    for precision in ["bf16", "fp16", "fp32"] {
        let text = format!("Train a 1B parameter model in {precision} with AdamW");
        let sizing = check(&text).sizing.unwrap();
        let states: u64 = sizing.arithmetic.iter().take(3).map(|term| term.mib).sum();
        assert!((15_258..=15_262).contains(&states), "{text}: {states}");
    }
    let less = |text: &str| {
        check(text).sizing.unwrap().arithmetic.iter().map(|term| term.mib).sum::<u64>()
    };
    let adam = less("Train a 1B parameter model in bf16 with AdamW");
    assert!(less("Train a 1B parameter model in bf16 with adamw 8bit") < adam);
    assert!(less("Train a 1B parameter model in bf16 with SGD") < adam);
    assert!(less("Fine-tune a 1B parameter model in bf16 with LoRA") < adam);
}

#[test]
fn a_larger_batch_and_a_longer_sequence_take_more() {
    let memory = |batch: u32, sequence: u32| {
        let text = format!(
            "Train a 1B parameter model, bf16, batch size {batch}, sequence length {sequence}"
        );
        let terms = check(&text).sizing.unwrap().arithmetic;
        terms.iter().map(|term| term.mib).sum::<u64>()
    };
    assert!(memory(1, 1024) < memory(2, 1024));
    assert!(memory(2, 1024) < memory(2, 2048));
}

#[test]
fn gpus_that_are_too_small_are_kept_and_said_not_to_fit() {
    let detection = check("Serve Llama-3 70B in bf16 on one T4 GPU");
    let sizing = detection.sizing.as_ref().unwrap();
    assert_eq!((sizing.gpu_count, sizing.gpu_type, sizing.fits), (1, GpuType::T4, false));
    assert!(
        detection.reasoning.iter().any(|line| line.contains("does not fit on 1 × t4")),
        "{detection:#?}"
    );
}

#[test]
fn a_named_chip_is_taken_with_the_memory_that_is_needed() {
    let table = [
        ("Serve Llama-3 70B in bf16 on 2 A100", 2, GpuType::A100Large, true),
        ("Serve Llama-3 70B in bf16 on 2 A100 40GB", 2, GpuType::A100, false),
        ("Serve Llama-3 8B in bf16 on an A100", 1, GpuType::A100, true),
    ];
    for (text, count, gpu, fits) in table {
        let sizing = check(text).sizing.unwrap();
        assert_eq!((sizing.gpu_count, sizing.gpu_type, sizing.fits), (count, gpu, fits), "{text}");
    }
    let old = check("Serve Llama-3 8B in bf16 on two V100");
    assert!(old.reasoning.iter().any(|line| line == "v100 does not compute in bf16"), "{old:#?}");
}

#[test]
fn what_a_readme_says_of_cpus_does_not_clear_the_code_beside_it() {
    let code = ("train.py", "import torch\n");
    assert!(files(&[("README.md", "CPU only machines are slow here"), code]).is_ml_workload);
    assert!(!files(&[("README.md", "No GPU is needed."), code]).is_ml_workload);
    assert!(!files(&[("requirements.txt", "torch==2.3.0+cpu\n"), code]).is_ml_workload);
}

#[test]
fn numbers_of_different_projects_are_not_mixed() {
    let detection = files(&[
        ("a/train.md", "Training of a 1B model in bf16 with AdamW, PyTorch"),
        ("b/serve.md", "Serve a 70B model, batch size 512"),
    ]);
    let sizing = detection.sizing.unwrap();
    assert!(sizing.arithmetic[0].formula.starts_with("1B"), "{:?}", sizing.arithmetic);
    assert!(sizing.reasons.iter().any(|line| line.contains("files in a,")), "{:?}", sizing.reasons);
}

#[test]
fn a_batch_of_pictures_is_computed_from_the_models_name() {
    let sizing = check("Train a ResNet-50 with PyTorch in fp32, batch size 256").sizing.unwrap();
    assert_eq!(sizing.rule, SizingRule::Computed);
    let activations = sizing.arithmetic.iter().find(|term| term.name == "activations").unwrap();
    assert_eq!(activations.mib, 256 * 90);
}

#[test]
fn a_negation_clears_the_verdict_and_says_so() {
    let table = [
        ("no GPU needed", "no GPU needed"),
        ("Machine learning with small trees, no GPU required", "no GPU required"),
        ("a PyTorch model, CPU only", "CPU only"),
        ("PyTorch inference runs on the CPU", "runs on the CPU"),
        ("without a GPU", "without a GPU"),
        ("It does not use CUDA", "not use CUDA"),
        ("We use rules instead of machine learning", "instead of machine learning"),
        ("Machine learning is out of scope", "Machine learning is out of scope"),
        ("for non-GPU nodes", "non-GPU nodes"),
        ("gpu: none", "gpu: none"),
        ("nvidia.com/gpu: 0", "gpu: 0"),
        ("torch==2.3.0+cpu\ntransformers==4.41", "+cpu"),
    ];
    for (text, words) in table {
        let detection = check(text);
        assert!(!detection.is_ml_workload, "{text}");
        let cleared = detection.cleared_by.unwrap_or_else(|| panic!("{text}: not said"));
        assert!(cleared.contains(words), "{text}: {cleared}");
        assert!(detection.reasoning[0].contains(words), "{text}: {:?}", detection.reasoning);
    }
}

#[test]
fn what_only_sounds_like_a_negation_clears_nothing() {
    for text in [
        "This cannot run without a GPU",
        "Without a GPU it would take weeks",
        "No GPU sharing, please",
        "No GPU quota is left",
        "No more than 4 GPUs",
        "not only PyTorch",
        "if no GPU is available it falls back to the CPU",
        "no GPU for the tests, but PyTorch training in the cluster",
        "My laptop has no GPU, so PyTorch runs elsewhere",
        "no longer CPU only: CUDA",
        "CPU only is too slow; it needs a GPU",
        "device: cuda:0",
    ] {
        assert!(check(text).is_ml_workload, "{text}");
    }
}

#[test]
fn names_of_models_and_words_beyond_the_base_count() {
    let table = [
        ("Fine-tune Llama-3 8B", WorkloadType::FineTuning),
        ("YOLOv8 on 24 camera streams", WorkloadType::Detection),
        ("Stable Diffusion web service", WorkloadType::Generation),
        ("Whisper large-v3 for meetings", WorkloadType::Speech),
        ("sentence-embeddings of abstracts", WorkloadType::Embedding),
        ("semantic segmentation of roofs", WorkloadType::Segmentation),
        ("vLLM deployment", WorkloadType::Inference),
        ("machine-learning lab", WorkloadType::General),
    ];
    for (text, kind) in table {
        assert_eq!(check(text).workload_type, kind, "{text}");
    }
}

#[test]
fn evidence_says_where() {
    let detection = files(&[("a/README.md", "# Shop\n\nIt uses\nour GPU and a GPU.\n")]);
    let [found] = detection.evidence.as_slice() else { panic!("{:?}", detection.evidence) };
    assert_eq!(found.place.to_string(), "a/README.md:4:5");
    assert_eq!((found.found.as_str(), found.times, found.kind), ("GPU", 2, EvidenceKind::Keyword));
    assert_eq!(check("wéb GPU").evidence[0].place.to_string(), "line 1, column 5");
}

#[test]
fn files_of_a_project_are_read_for_what_they_are() {
    let table: [(&str, &str, &str); 8] = [
        ("requirements.txt", "flask\ntorch\n", "torch"),
        ("requirements-dev.txt", "vllm[extra]>=0.5 ; python_version > '3.9'\n", "vllm"),
        ("pyproject.toml", "dependencies = [\n  \"diffusers>=0.2\",\n]\n", "diffusers"),
        ("environment.yml", "dependencies:\n  - transformers=4.41\n", "transformers"),
        ("src/main.py", "import os\nfrom ultralytics import YOLO\n", "ultralytics"),
        ("Dockerfile", "FROM python:3.12\nRUN pip install --no-cache-dir peft && true\n", "peft"),
        ("weights/model.safetensors", "", ".safetensors"),
        ("kernel.cu", "__global__ void f() {}", ".cu"),
    ];
    for (path, content, word) in table {
        let detection = files(&[(path, content)]);
        assert!(detection.is_ml_workload, "{path}");
        assert!(
            detection.detected_keywords.iter().any(|found| found == word),
            "{path}: {detection:?}"
        );
    }
    for (path, content) in [
        ("requirements.txt", "flask\n# torchlight theme\nrequests\n"),
        ("README.md", "Light your torch"),
        ("src/main.py", "import csv\nimport os\n"),
        ("requirements.txt", "scikit-learn\n"),
    ] {
        assert!(!files(&[(path, content)]).is_ml_workload, "{path}: {content}");
    }
}

#[test]
fn a_notebook_is_read_cell_by_cell_and_a_broken_one_as_text() {
    let notebook = r##"{"cells": [
        {"cell_type": "markdown", "source": "# Demo"},
        {"cell_type": "code", "source": ["import os\n", "import torch\n"], "outputs": [{"text": "gpu"}]},
        {"cell_type": "code", "source": 7}
    ]}"##;
    let detection = files(&[("demo.ipynb", notebook)]);
    let [found] = detection.evidence.as_slice() else { panic!("{:?}", detection.evidence) };
    assert_eq!(found.place.to_string(), "demo.ipynb[cell 2]:2:8");
    let broken = files(&[("demo.ipynb", "{\"cells\": [ import torch on a GPU")]);
    assert!(broken.is_ml_workload);
    assert!(
        broken.reasoning.iter().any(|line| line.contains("demo.ipynb is not a notebook")),
        "{broken:?}"
    );
    let deep = "[".repeat(100_000);
    assert!(!files(&[("deep.ipynb", &deep)]).is_ml_workload);
}

#[test]
fn words_that_may_mean_something_else_make_less_sure() {
    for text in ["Upload your CV as a PDF", "Type inference", "barracuda"] {
        let detection = check(text);
        assert!(
            detection.is_ml_workload && detection.confidence < 0.5,
            "{text}: {}",
            detection.confidence
        );
    }
    assert!(check("PyTorch and CUDA").confidence > 0.95);
}

#[test]
fn the_report_has_the_fields_that_programs_rely_on() {
    let value = serde_json::to_value(check("Serve Llama-3 8B in fp16").report()).unwrap();
    assert_eq!(value["is_ml_workload"], true);
    assert_eq!(value["workload_type"], "inference");
    assert_eq!((&value["gpu_count"], &value["gpu_type"]), (&1.into(), &"l4".into()));
    assert!(value["gpu_memory_mib"].as_u64().unwrap() > 15_000);
    assert_eq!(
        (&value["memory"], &value["cpu"], &value["shm"]),
        (&"32Gi".into(), &"8000m".into(), &"2Gi".into())
    );
    assert!(
        value["confidence"].is_f64()
            && value["detected_keywords"].is_array()
            && value["reasoning"].is_string()
    );
    let none = serde_json::to_value(check("a blog").report()).unwrap();
    assert_eq!(none["gpu_count"], 0);
    for field in ["gpu_type", "memory", "cpu", "shm"] {
        assert!(none[field].is_null(), "{field}");
    }
}

#[test]
fn a_batch_counts_however_it_is_written() {
    let arithmetic = |text: &str| {
        let sizing = check(text).sizing.unwrap_or_else(|| panic!("no ML work: {text}"));
        assert!(!sizing.reasons.iter().any(|line| line.contains("a batch of")), "{text}");
        sizing.arithmetic
    };
    let train = arithmetic("Train 7B model in bf16, batch_size=32");
    for batch in [
        "batch 32",
        "batch of 32",
        "batch: 32",
        "batch=32",
        "bs=32",
        "bs 32",
        "bs32",
        "batches of 32",
        "batch size is 32",
        "batch_size: int = 32",
        "add_argument(\"--batch-size\", default=32)",
        "add_argument('--batch-size', '-b', type=int, default=32, help='samples')",
        "args: [\"--batch-size\", \"32\"]",
    ] {
        assert_eq!(arithmetic(&format!("Train 7B model in bf16, {batch}")), train, "{batch}");
    }
    let cache = &arithmetic("inference with a 13B model, 128k context, batch 32, bf16")[1];
    assert!(cache.formula.ends_with("131072 tokens × 32 sequences"), "{}", cache.formula);
}

#[test]
fn a_batch_of_each_gpu_is_not_divided() {
    let memory = |text: &str| check(text).sizing.unwrap().gpu_memory_mib;
    let each = memory("Train 7B model in bf16 on 8 H200 GPUs, batch size 4 per GPU");
    for batch in [
        "micro-batch 4",
        "micro_batch_size=4",
        "per_device_train_batch_size=4",
        "batch_size_per_gpu: 4",
        "global batch size 1024, micro-batch-size 4",
    ] {
        let text = format!("Train 7B model in bf16 on 8 H200 GPUs, {batch}");
        assert_eq!(memory(&text), each, "{batch}");
    }
    assert!(memory("Train 7B model in bf16 on 8 H200 GPUs, batch size 4") < each);
}

#[test]
fn options_of_launchers_count() {
    let table = [
        ("vllm serve llama-8b --max-model-len 32768 --tensor-parallel-size 8", 8, 32_768),
        ("LLM(\"meta/llama-8b\", max_model_len=32768, tensor_parallel_size=8)", 8, 32_768),
        ("vLLM, llama-8b\nargs:\n- --max-model-len\n- \"32768\"\n- --tp\n- \"4\"", 4, 32_768),
        ("Serve llama-8b, launch --nproc_per_node=2, 64k-token context", 2, 65_536),
        ("Serve llama-8b, Trainer(accelerator=\"gpu\", devices=4)", 4, 4096),
    ];
    for (text, gpus, tokens) in table {
        let sizing = check(text).sizing.unwrap();
        assert_eq!(sizing.gpu_count, gpus, "{text}: {:#?}", sizing.reasons);
        let told = sizing.arithmetic.iter().any(|term| {
            term.name == "KV cache" && term.formula.contains(&format!("× {tokens} tokens"))
        });
        assert!(told, "{text}: {:#?}", sizing.arithmetic);
    }
}

#[test]
fn what_is_no_batch_of_samples_is_not_taken_for_one() {
    for text in [
        "Serve a 13B model in bf16, a batch of 12 jobs each night",
        "Serve a 13B model in bf16, batch job 3",
        "Serve a 13B model in bf16 in batch mode",
    ] {
        let reasons = check(text).sizing.unwrap().reasons;
        assert!(reasons.iter().any(|line| line == "assumed: a batch of 1"), "{text}: {reasons:?}");
    }
}

#[test]
fn a_number_that_is_not_believed_is_told() {
    let table = [
        ("Serve a 13B model in bf16, batch size 5000000", "a batch of 5000000 is not believed"),
        ("Serve a 13B model in bf16, batch size 0", "a batch of 0 is not believed"),
        ("Serve a 13B model in bf16, sequence length 4", "a sequence of 4 tokens is not believed"),
        ("Serve a 13B model in bf16 on 5000 GPUs", "5000 GPUs are not believed"),
    ];
    for (text, sentence) in table {
        let reasons = check(text).sizing.unwrap().reasons;
        assert!(reasons.iter().any(|line| line.starts_with(sentence)), "{text}: {reasons:?}");
    }
}

#[test]
fn what_fits_one_machine_is_not_spread_over_two() {
    let table = [
        ("Serve Llama-3.1-405B in bf16", 8, GpuType::H200, 1),
        ("Full fine-tuning of a 70B model in bf16 with AdamW", 16, GpuType::H200, 2),
    ];
    for (text, count, gpu, nodes) in table {
        let sizing = check(text).sizing.unwrap();
        let found = (sizing.gpu_count, sizing.gpu_type, sizing.nodes());
        assert_eq!(found, (count, gpu, nodes), "{text}: {:?}", sizing.reasons);
    }
}

#[test]
fn code_that_trains_is_training() {
    let adapted = "import torch\nfrom transformers import AutoModelForCausalLM\n\
        model = AutoModelForCausalLM.from_pretrained(\"meta-llama/Llama-3.1-8B\", torch_dtype=torch.bfloat16)\n\
        optimizer = torch.optim.AdamW(model.parameters())\n";
    let classic = "import torch\nfrom torchvision.models import resnet50\nmodel = resnet50().cuda()\n\
        opt = torch.optim.SGD(model.parameters(), lr=0.1)\nloss.backward()\nopt.step()\n";
    let keras =
        "import tensorflow as tf\nmodel = tf.keras.applications.ResNet50()\nmodel.fit(data)\n";
    let lightning = "import lightning\nclassifier = ResNet()\ntrainer.fit(classifier)\n";
    let trainer = "from transformers import Trainer\ntrainer = Trainer(model)\ntrainer.train()\n";
    for code in [adapted, classic, keras, lightning, trainer, "loss.backward(); optimizer.step()"] {
        let file = files(&[("run.py", code)]);
        assert_eq!(file.workload_type, WorkloadType::Training, "{code}");
        assert_eq!(check(code).workload_type, WorkloadType::Training, "{code}");
    }
    let sizing = files(&[("run.py", adapted)]).sizing.unwrap();
    let terms: Vec<_> = sizing.arithmetic.iter().map(|term| term.name).collect();
    assert!(terms.contains(&"optimiser states"), "{terms:?}");
}

#[test]
fn code_that_only_applies_a_model_is_not_training() {
    let serve =
        "import torch\nmodel = resnet50().cuda().eval()\nwith torch.no_grad():\n    model(x)\n";
    assert_eq!(files(&[("run.py", serve)]).workload_type, WorkloadType::Classification);
    for other in
        ["player.backward()", "step(3); counter.step()", "a conductor and a trainer", "opt.step()"]
    {
        assert!(!check(other).is_ml_workload, "{other}");
    }
}

#[test]
fn a_size_counts_beside_what_is_done_to_the_model() {
    let table = [
        ("qlora 70B", WorkloadType::FineTuning, "70B × 0.5625 bytes (frozen, 4 bits with scales)"),
        ("lora on 13B", WorkloadType::FineTuning, "13B × 2 bytes (frozen)"),
        ("fine-tune a 70B", WorkloadType::FineTuning, "70B × 2 bytes (16 bits)"),
        ("finetune 7b", WorkloadType::FineTuning, "7B × 2 bytes (16 bits)"),
        ("Serve gpt-oss-120b", WorkloadType::Inference, "120B × 0.5625 bytes (4 bits with scales)"),
        ("serve llama-70b gguf q4_K_M", WorkloadType::Inference, "70B × 0.61 bytes (GGUF Q4)"),
        ("serve llama-70b-Q8_0.gguf", WorkloadType::Inference, "70B × 1.0625 bytes (GGUF Q8)"),
        ("ollama run llama3:70b-q5", WorkloadType::Inference, "70B × 0.71 bytes (GGUF Q5)"),
        ("serve 120B mxfp4", WorkloadType::Inference, "120B × 0.5625 bytes (4 bits with scales)"),
        (
            "serve a 70B AWQ model",
            WorkloadType::Inference,
            "70B × 0.5625 bytes (4 bits with scales)",
        ),
        ("Serve Llama 70B from Q4 2026 on", WorkloadType::Inference, "70B × 2 bytes (fp16)"),
    ];
    for (text, kind, weights) in table {
        let detection = check(text);
        assert_eq!(detection.workload_type, kind, "{text}");
        let sizing = detection.sizing.unwrap();
        let formula = sizing.arithmetic.first().map(|term| term.formula.as_str());
        assert_eq!(formula, Some(weights), "{text}: {:?}", sizing.reasons);
    }
    for text in ["Bus 7B stops here", "LoRa on 13B", "LoRaWAN sensors", "Q4 report", "fine, 70B"] {
        assert!(!check(text).is_ml_workload, "{text}");
    }
}

#[test]
fn a_compressed_cache_is_that_of_the_model() {
    let sizing = check("Serve DeepSeek-V3 671B, batch 32, 32k context").sizing.unwrap();
    let weights = &sizing.arithmetic[0].formula;
    assert_eq!(weights, "671B × 1 bytes (fp8)", "{:?}", sizing.reasons);
    let cache = &sizing.arithmetic[1];
    // 61 layers of 576 values of two bytes, for a million tokens.
    assert_eq!((cache.name, cache.mib), ("KV cache", 61 * 576 * 2));
    assert!(
        !sizing.reasons.iter().any(|line| line.contains("usual shape")),
        "{:?}",
        sizing.reasons
    );
}

#[test]
fn memory_that_no_gpu_has_is_that_of_several() {
    let table = [
        ("training needs 200 GB of VRAM", 4, GpuType::A100Large, true),
        ("inference with 24 GB of VRAM", 1, GpuType::L4, true),
        ("deep learning on H100, 300 GB of VRAM in all", 4, GpuType::H100, true),
        ("deep learning on an A100 with 80 GB of VRAM", 1, GpuType::A100Large, true),
        ("deep learning on one T4 GPU, 200 GB of VRAM", 1, GpuType::T4, false),
        ("deep learning on 4 GPUs with 200 GB of VRAM", 4, GpuType::A100Large, true),
        ("deep learning with 5000000 GB of VRAM", 1, GpuType::V100, true),
    ];
    for (text, count, gpu, fits) in table {
        let detection = check(text);
        let sizing = detection.sizing.unwrap();
        let found = (sizing.gpu_count, sizing.gpu_type, sizing.fits);
        assert_eq!(found, (count, gpu, fits), "{text}: {:?}", sizing.reasons);
        assert!(sizing.gpu_memory_mib <= gpu.memory_mib(), "{text}: {}", sizing.gpu_memory_mib);
        let said = sizing.reasons.iter().any(|line| line.contains("do not have"));
        assert_eq!(said, !fits, "{text}: {:?}", sizing.reasons);
    }
}

#[test]
fn memory_beside_numbers_to_compute_from_is_spoken_of() {
    let reasons = check("Serve a 13B model in bf16, 200 GB of VRAM").sizing.unwrap().reasons;
    assert!(reasons.iter().any(|line| line.contains("190734 MiB of GPU memory")), "{reasons:?}");
}

#[test]
fn zero_gpus_clear_the_verdict_and_the_first_gpu_does_not() {
    for text in [
        "gpu: 0",
        "0 GPUs pytorch",
        "values.yaml: gpu: 0, replicas: 2",
        "pytorch with gpus=0",
        "num_gpus: 0",
        "pytorch, gpu.enabled: false",
        "PyTorch on 0 GPUs",
    ] {
        let detection = check(text);
        assert!(!detection.is_ml_workload, "{text}");
        assert!(detection.cleared_by.is_some(), "{text}");
    }
    for text in [
        "tf.device('/gpu:0')",
        "python run.py --gpu=0",
        "device: cuda:0",
        "GPU 0, GPU 1",
        "PyTorch servers scale from 0 GPUs to 8",
        "scale down to 0 GPUs at night",
        "0 GPUs are available",
        "gpu: 8",
        "10 GPUs",
    ] {
        assert!(check(text).is_ml_workload, "{text}");
    }
}
