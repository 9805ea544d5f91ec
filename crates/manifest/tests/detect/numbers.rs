//! Numbers of a text: parameters, batches, GPUs.

use agentaflow_manifest::detect::{GpuType, WorkloadType};

use crate::check;

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
fn a_parameter_count_needs_a_precision_or_a_batch() {
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
    for text in [
        "Copy the model to a 10T disk",
        "trained on 15T tokens",
        "Bus 7B stops here",
        "LoRa on 13B",
        "LoRaWAN sensors",
        "Q4 report",
        "fine, 70B",
    ] {
        assert!(!check(text).is_ml_workload, "{text}");
    }
}

#[test]
fn concurrent_requests_are_a_batch() {
    let table = [
        ("Serve Llama-3 70B in bf16 for 16 concurrent users", Some(16)),
        ("Serve Llama-3 70B, 16 concurrent chat requests", Some(16)),
        ("Serve Llama-3 70B to 16 users at the same time", Some(16)),
        ("Serve Llama-3 70B, concurrency of 16", Some(16)),
        ("Serve Llama-3 70B, max_concurrent_requests=16", Some(16)),
        // An upper bound, not an actual number.
        ("vllm serve Llama-3-70B --max-num-seqs 16", None),
        ("Serve Llama-3 70B, batch 4, 16 concurrent users", Some(4)),
        ("Serve Llama-3 70B to 1,000 concurrent users", Some(256)),
        ("Serve Llama-3 70B with 16 concurrent jobs", None),
        ("Serve Llama-3 70B for 16 users", None),
        ("Fine-tune Llama-3 70B for 16 concurrent users", None),
    ];
    for (text, batch) in table {
        let sizing = check(text).sizing.unwrap();
        let formulas: Vec<_> = sizing.arithmetic.iter().map(|term| &term.formula).collect();
        let sequences = format!("× {} sequences", batch.unwrap_or(1));
        let training = text.starts_with("Fine");
        let found = formulas.iter().any(|formula| formula.contains(&sequences));
        assert!(training || found, "{text}: {formulas:?}");
        let assumed = sizing.reasons.iter().any(|line| line == "assumed: a batch of 1");
        assert_eq!(assumed, batch.is_none(), "{text}: {:?}", sizing.reasons);
    }
    let reasons = check("Serve Llama-3 70B to 1,000 concurrent users").sizing.unwrap().reasons;
    assert!(
        reasons.iter().any(|line| line.contains("a batch of 256; the others wait")),
        "{reasons:?}"
    );
}

#[test]
fn sizes_of_models_are_read_by_the_words_around_them() {
    for (text, weights) in [
        ("pretrain a 1.3B GPT, batch 512, seq length 2048, bf16", "1.3B × 2 bytes (16 bits)"),
        ("We distil a 13B teacher for three epochs", "13B × 2 bytes (16 bits)"),
        ("embed documents with bge-large, batch 64, fp16", "335M × 2 bytes (fp16)"),
        ("train vit-large, batch 64, fp16", "304M × 2 bytes (16 bits)"),
        ("train ViT-B/16 at batch 1024 in fp32", "86.6M × 4 bytes (fp32)"),
        ("Serve 70B in 4-bit", "70B × 0.5625 bytes (4 bits with scales)"),
        ("bf16 training of 175B, batch 1536, adamw", "175B × 2 bytes (16 bits)"),
        ("13B full fine-tune with ZeRO-3, micro-batch 1", "13B × 2 bytes (16 bits)"),
        ("Serve Mistral-Large-2 123B", "123B × 2 bytes (fp16)"),
        ("Serve Codestral 22B", "22B × 2 bytes (fp16)"),
        ("Serve a model with 1 trillion parameters in fp8", "1000B × 1 bytes (fp8)"),
        ("Serve a 1T-parameter MoE in fp8", "1000B × 1 bytes (fp8)"),
    ] {
        let sizing = check(text).sizing.unwrap_or_else(|| panic!("{text}"));
        let formula = sizing.arithmetic.first().map(|term| term.formula.as_str());
        assert_eq!(formula, Some(weights), "{text}");
    }
}

#[test]
fn gpus_are_counted_however_count_and_model_are_joined() {
    for (text, count, gpu) in [
        ("Fine-tuning job on 8xH100 using FSDP", 8, GpuType::H100),
        ("Fine-tuning job on 8x H100 using FSDP", 8, GpuType::H100),
        ("Train ResNet-50 on 4x V100", 4, GpuType::V100),
        ("Train on 16 nodes of 8x NVIDIA H100", 128, GpuType::H100),
        ("Pretraining on 8 x 80GB A100", 8, GpuType::A100Large),
        ("Pretraining on 8x80GB A100", 8, GpuType::A100Large),
        ("Pretraining on 8x 40GB A100", 8, GpuType::A100),
        ("Pretraining on 2x8 A100", 16, GpuType::A100),
        ("Pretraining on six A100", 6, GpuType::A100),
        ("Pretraining on sixteen A100", 16, GpuType::A100),
        ("inference on 4x T4", 4, GpuType::T4),
        ("inference, 2xL4", 2, GpuType::L4),
    ] {
        let sizing = check(text).sizing.unwrap_or_else(|| panic!("{text}"));
        assert_eq!((sizing.gpu_count, sizing.gpu_type), (count, gpu), "{text}");
    }
}

#[test]
fn a_launcher_option_sets_the_gpu_count() {
    for (output, count) in [
        ("tensor parallel 4", 4),
        ("tensor parallelism of 4", 4),
        ("tensor-parallel degree 4", 4),
        ("4-way tensor parallelism", 4),
        ("--tensor-parallel-size 4", 4),
        ("tensor_parallel_size=4, pipeline_parallel_size=2", 8),
        ("--pipeline-parallel-size 2 --tensor-parallel-size 8", 16),
    ] {
        let text = format!("Serve Llama-3 70B in bf16 with {output}");
        assert_eq!(check(&text).sizing.unwrap().gpu_count, count, "{text}");
    }
}

#[test]
fn a_gpu_that_something_runs_on_is_meant() {
    for (text, count, gpu) in [
        ("inference on a T4", 1, GpuType::T4),
        ("inference on L4", 1, GpuType::L4),
        ("a gpu with 24GB", 1, GpuType::L4),
        ("a GPU with 64 GB RAM", 1, GpuType::V100),
        ("deep learning for T4 levels of the thyroid", 1, GpuType::V100),
    ] {
        let sizing = check(text).sizing.unwrap();
        assert_eq!((sizing.gpu_count, sizing.gpu_type), (count, gpu), "{text}");
    }
}
