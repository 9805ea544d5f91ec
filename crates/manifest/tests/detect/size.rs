//! Resource needs.

use agentaflow_manifest::detect::{GpuType, SizingRule};

use crate::{check, files};

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
        ("inference on 3 GPUs with 80GB each", 3, GpuType::A100Large),
        ("inference on a GPU with 24 GB of memory", 1, GpuType::L4),
        ("inference on a GPU with 64 GB RAM", 1, GpuType::V100),
        ("Train with DDP on 2 nodes x 8 A100 80GB", 16, GpuType::A100Large),
        ("deep learning on two machines with 8 GPUs each", 16, GpuType::V100),
        ("Train it on 4×8 H100", 32, GpuType::H100),
        ("Train it on 2x8 H100", 16, GpuType::H100),
        ("8 A100 on 2 nodes", 8, GpuType::A100),
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
        // One larger GPU is rented for less than a machine with two small ones.
        ("Serve a 13B model in bf16", "1×l40s", "weights: 13B × 2 bytes (bf16) = 24796 MiB"),
        // H200 are sold in machines of eight; eight H100 cost less.
        ("Serve Llama 3.1 405B in fp8", "8×h100", "weights: 405B × 1 bytes (fp8) = 386239 MiB"),
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
fn named_gpus_that_are_too_small_are_reported() {
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
        let output = sizing.arithmetic.iter().any(|term| {
            term.name == "KV cache" && term.formula.contains(&format!("× {tokens} tokens"))
        });
        assert!(output, "{text}: {:#?}", sizing.arithmetic);
    }
}

#[test]
fn batches_of_jobs_are_not_batches_of_samples() {
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
fn implausible_numbers_are_reported() {
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
fn large_models_are_trained_with_recomputed_activations() {
    let text = "train Llama 405B from scratch in bf16";
    let sizing = check(text).sizing.unwrap();
    let words = "assumed: gradient checkpointing, without which nothing up to";
    assert!(sizing.reasons.iter().any(|why| why.starts_with(words)), "{:?}", sizing.reasons);
    let output = format!("{text} with gradient checkpointing");
    assert!(size(text).starts_with("128×a100-80gb "), "{}", size(text));
    assert_eq!(size(text), size(&output));
}

#[test]
fn gradients_are_checkpointed_before_machines_are_added_or_named_gpus_are_too_few() {
    let sizing = check("Fine-tune Llama 70B in bf16 on A100s").sizing.unwrap();
    assert_eq!((sizing.gpu_count, sizing.gpu_type), (16, GpuType::A100Large));
    let words = "assumed: gradient checkpointing, without which it takes 64 × a100-80gb";
    assert!(sizing.reasons.iter().any(|why| why == words), "{:?}", sizing.reasons);
    let text = "Full fine-tune of Mistral 7B in bf16 on 2x A100 80GB, sequence length 8192";
    let sizing = check(text).sizing.unwrap();
    assert_eq!((sizing.gpu_count, sizing.fits), (2, true), "{:?}", sizing.reasons);
    let words = "assumed: gradient checkpointing, without which it does not fit";
    assert!(sizing.reasons.iter().any(|why| why.starts_with(words)), "{:?}", sizing.reasons);
    // One machine is enough without.
    let sizing = check("Full fine-tune of Mistral 7B in bf16").sizing.unwrap();
    assert!(
        !sizing.reasons.iter().any(|why| why.contains("checkpointing")),
        "{:?}",
        sizing.reasons
    );
}

#[test]
fn mxfp4_weights_are_computed_in_bf16() {
    let sizing = check("Serve gpt-oss-20b").sizing.unwrap();
    assert_eq!((sizing.gpu_count, sizing.gpu_type), (1, GpuType::L4), "{:?}", sizing.reasons);
    let sizing = check("Serve a 12B model in int4").sizing.unwrap();
    assert_eq!(sizing.gpu_type, GpuType::T4, "{:?}", sizing.reasons);
}

#[test]
fn preference_training_needs_a_reference_model() {
    let names = |text: &str| {
        let terms = check(text).sizing.unwrap().arithmetic;
        terms.into_iter().find(|term| term.name.starts_with("reference")).map(|term| term.formula)
    };
    let output = |text: &str| names(text).unwrap_or_else(|| panic!("{text}"));
    assert_eq!(output("DPO fine-tuning of Llama 3 8B"), "8B × 2 bytes (frozen)");
    assert_eq!(
        output("RLHF training of a 13B model in bf16"),
        "13B × 4 bytes (frozen, as large as the model)"
    );
    assert_eq!(names("DPO fine-tuning of Llama 3 8B with LoRA"), None);
    assert_eq!(names("Full fine-tuning of Llama 3 8B"), None);
}

#[test]
fn a_named_model_keeps_the_base_size_and_reports_the_computation() {
    let sizing = check("Serve DeepSeek-V3").sizing.unwrap();
    assert_eq!((sizing.gpu_count, sizing.gpu_type), (1, GpuType::V100));
    let words = "in fp8 the arithmetic would give 8 × h200; write a precision";
    assert!(sizing.reasons.iter().any(|why| why.starts_with(words)), "{:?}", sizing.reasons);
    let small = check("Serve resnet50").sizing.unwrap();
    assert_eq!(small.reasons.len(), 1, "{:?}", small.reasons);
}

#[test]
fn work_that_fits_one_machine_stays_on_it() {
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
        let output = sizing.reasons.iter().any(|line| line.contains("do not have"));
        assert_eq!(output, !fits, "{text}: {:?}", sizing.reasons);
    }
}

#[test]
fn memory_beside_numbers_to_compute_from_is_spoken_of() {
    let reasons = check("Serve a 13B model in bf16, 200 GB of VRAM").sizing.unwrap().reasons;
    assert!(reasons.iter().any(|line| line.contains("190734 MiB of GPU memory")), "{reasons:?}");
}

#[test]
fn key_value_caches_follow_current_models() {
    for (text, cache) in [
        // Keys and values of large models are shared among heads.
        ("Serve a 70B model in bf16", "2 × 71 layers × 1136 wide"),
        ("Serve Qwen3-235B-A22B in bf16", "2 × 94 layers × 512 wide"),
        ("Serve a 7B model in bf16", "2 × 33 layers × 4224 wide"),
        // Half a minute of sound, not a page of text.
        ("Transcription with whisper large-v3, fp16, batch 16", "× 1500 tokens × 16 sequences"),
    ] {
        let sizing = check(text).sizing.unwrap();
        let found = sizing.arithmetic.iter().find(|term| term.name == "KV cache").unwrap();
        assert!(found.formula.contains(cache), "{text}: {}", found.formula);
    }
}
