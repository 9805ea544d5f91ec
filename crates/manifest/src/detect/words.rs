//! Phrases that indicate ML work: the base keywords, which always count, and further ones.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::kind::WorkloadType::{
    self, Classification, Detection, Embedding, FineTuning, Generation, Inference, Segmentation,
    Speech, Training,
};

/// Any of them makes a text ML work, unless the text states the contrary.
pub const BASE_KEYWORDS: [&str; 14] = [
    "machine learning",
    "deep learning",
    "neural network",
    "pytorch",
    "tensorflow",
    "computer vision",
    "cv",
    "object detection",
    "image classification",
    "nlp",
    "model training",
    "inference",
    "gpu",
    "cuda",
];

/// Alone enough for a verdict.
pub(super) const STRONG: f64 = 0.8;
/// Two of these are enough.
pub(super) const MIDDLE: f64 = 0.4;
pub(super) const WEAK: f64 = 0.2;
/// No evidence; only determines the workload type.
pub(super) const HINT: f64 = 0.0;

/// Phrase with its meaning.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// Lower case; a trailing `*` matches any ending. Hyphens and underscores between words are ignored.
    pub(super) phrase: &'static str,
    /// From 0 to 1.
    pub(super) weight: f64,
    /// Workload type that the phrase indicates.
    pub(super) hint: Option<WorkloadType>,
}

/// Weight and workload type of a base keyword.
pub(super) fn base(keyword: &str) -> (f64, Option<WorkloadType>) {
    match keyword {
        "cv" | "nlp" => (0.7, None),
        "inference" => (0.7, Some(Inference)),
        "object detection" => (0.9, Some(Detection)),
        "image classification" => (0.9, Some(Classification)),
        "model training" => (0.9, Some(Training)),
        _ => (0.9, None),
    }
}

impl Entry {
    /// Canonical name for counting and display.
    pub(super) fn name(&self) -> &'static str {
        match self.phrase {
            "fine tun*" | "finetun*" => "fine-tuning",
            "instruction tun*" | "instruct tun*" => "instruction tuning",
            "transcri*" => "transcription",
            "quantis*" | "quantiz*" => "quantisation",
            phrase => phrase.trim_end_matches('*'),
        }
    }
}

/// True if a word names a GPU: "no …" then means that none is needed.
pub(super) fn names_gpu(word: &str) -> bool {
    matches!(word, "gpu" | "cuda" | "nvidia" | "vram" | "cudnn") || GPU_MODELS.contains(&word)
}

/// GPU models with an unambiguous name.
pub(super) const GPU_MODELS: [&str; 11] = [
    "a100", "h100", "h200", "b200", "v100", "l40s", "a10g", "a6000", "rtx4090", "rtx3090", "gh200",
];

/// Entries that start with this word, longest phrase first.
pub(super) fn beginning_with(word: &str) -> &'static [Entry] {
    BY_FIRST_WORD.get(word).map_or(&[], Vec::as_slice)
}

/// The entry of one word with any ending that this word matches.
pub(super) fn with_beginning(word: &str) -> Option<Entry> {
    BEGINNINGS.iter().find(|entry| word.starts_with(entry.phrase.trim_end_matches('*'))).copied()
}

static BY_FIRST_WORD: LazyLock<HashMap<&'static str, Vec<Entry>>> = LazyLock::new(|| {
    let mut map: HashMap<_, Vec<_>> = HashMap::new();
    for (weight, hint, phrases) in PHRASES {
        for phrase in phrases.split(',').map(str::trim) {
            let first = phrase.split(' ').next().unwrap_or_default();
            map.entry(first).or_default().push(Entry { phrase, weight: *weight, hint: *hint });
        }
    }
    for entries in map.values_mut() {
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.phrase.split(' ').count()));
    }
    map
});

const fn beginning(phrase: &'static str, weight: f64, hint: WorkloadType) -> Entry {
    Entry { phrase, weight, hint: Some(hint) }
}

const BEGINNINGS: [Entry; 13] = [
    beginning("finetun*", 0.5, FineTuning),
    beginning("pretraining*", STRONG, Training),
    beginning("retrain*", HINT, Training),
    beginning("hyperparameter*", MIDDLE, Training),
    beginning("classif*", HINT, Classification),
    beginning("segment*", HINT, Segmentation),
    beginning("detect*", HINT, Detection),
    beginning("transcri*", MIDDLE, Speech),
    beginning("summari*", HINT, Generation),
    beginning("predict*", HINT, Inference),
    beginning("deploy*", HINT, Inference),
    beginning("quantiz*", WEAK, Inference),
    beginning("quantis*", WEAK, Inference),
];

type Group = (f64, Option<WorkloadType>, &'static str);

const PHRASES: &[Group] = &[
    // The base keywords again, for other ways to write them.
    (0.9, None, "machine learning, deep learning, neural network*, computer vision"),
    (0.9, Some(Detection), "object detection"),
    (0.9, Some(Classification), "image classification"),
    (0.9, Some(Training), "model training"),
    // Hardware, drivers and libraries.
    (STRONG, None, "nvidia, vram, cudnn, nccl, nvlink, nvenc, rocm, cudf, cupy"),
    (
        STRONG,
        None,
        "a100, a100s, h100, h100s, h200, h200s, b200, gh200, v100, v100s, l40s, a10g, a6000",
    ),
    (STRONG, None, "rtx 3090, rtx 4090, rtx 5090, rtx 6000, rtx a6000, geforce, optix, cuml"),
    (STRONG, None, "dgx, hgx, neural net, neural nets, isaac lab, isaac sim"),
    (
        STRONG,
        None,
        "a cnn, a gan, crnn, gnn, gnns, temporal fusion transformer*, neural radiance field*",
    ),
    (
        STRONG,
        None,
        "gaussian splatting, nerf reconstruction, alphafold, alphafold2, alphafold3, protein folding",
    ),
    (MIDDLE, None, "chatgpt"),
    (MIDDLE, None, "tpu, tpus, graphics card*, mixed precision"),
    // Names of the field.
    (
        STRONG,
        None,
        "convolutional, lstm, autoencoder, autoencoders, transformer model*, vision transformer*",
    ),
    (
        STRONG,
        None,
        "hugging face, huggingface, keras, monai, opencv, pose estimation, face recognition",
    ),
    (STRONG, None, "image recognition, named entity recognition, vision model*"),
    (MIDDLE, None, "ml, artificial intelligence, jax, kubeflow, mlflow, cnn, cnns, gan, gans"),
    (MIDDLE, None, "depth estimation, super resolution, isaac gym"),
    (WEAK, None, "ai, data science, checkpoint, tensors, rag, batch size, early stopping"),
    // Learning without a GPU.
    (WEAK, None, "scikit learn, sklearn, xgboost, lightgbm, spacy"),
    // Training.
    (
        STRONG,
        Some(Training),
        "reinforcement learning, backpropagation, horovod, deepspeed, federated learning",
    ),
    (
        MIDDLE,
        Some(Training),
        "self supervised, distributed training, gradient descent, pre training, pre train",
    ),
    (STRONG, Some(Training), "fsdp, knowledge distillation, stable baselines*, ppo agent*"),
    (STRONG, Some(Training), "torchrun"),
    (MIDDLE, Some(Training), "training loop, training run, epochs, pretrain"),
    (HINT, Some(Training), "train, trains, training, trained"),
    // Adaptation of models.
    (0.5, Some(FineTuning), "fine tun*"),
    (
        STRONG,
        Some(FineTuning),
        "transfer learning, instruction tun*, qlora, peft, rlhf, dreambooth",
    ),
    (
        MIDDLE,
        Some(FineTuning),
        "preference pairs, preference optimi*, dpo run, dpo training, grpo, reward model*",
    ),
    (MIDDLE, Some(FineTuning), "instruction tuned, instruct tun*, sft, lora adapter*"),
    // Serving.
    (STRONG, Some(Inference), "onnx, tensorrt, vllm, torchserve, ollama, speculative decoding"),
    (
        STRONG,
        Some(Inference),
        "text generation inference, triton inference server, tensorflow serving",
    ),
    (MIDDLE, Some(Inference), "triton, kserve, model serving, model server*, savedmodel, kv cache"),
    (HINT, Some(Inference), "serve, serves, serving, host, hosting, endpoint, score the, scoring"),
    // Tasks.
    (
        STRONG,
        Some(Segmentation),
        "semantic segmentation, instance segmentation, panoptic segmentation",
    ),
    (STRONG, Some(Segmentation), "image segmentation, video segmentation, segment anything"),
    (STRONG, Some(Detection), "face detection, pedestrian detection, keypoint detection"),
    (
        MIDDLE,
        Some(Detection),
        "anomaly detection, defect detection, plate detection, vehicle detection",
    ),
    (STRONG, Some(Classification), "sentiment analysis, text classification, audio classification"),
    (STRONG, Some(Classification), "intent classification, zero shot classification"),
    (
        STRONG,
        Some(Generation),
        "large language model*, language model*, llm, llms, diffusion model*",
    ),
    (
        STRONG,
        Some(Generation),
        "generative ai, image generation, text to image, text to video, machine translation",
    ),
    (STRONG, Some(Generation), "retrieval augmented generation"),
    (MIDDLE, Some(Generation), "text generation, music generation, video generation"),
    (WEAK, Some(Generation), "chatbot, chatbots"),
    (HINT, Some(Generation), "generation, generate, generates, translation"),
    (
        STRONG,
        Some(Embedding),
        "sentence embedding*, text embedding*, image embedding*, word embedding*",
    ),
    (
        STRONG,
        Some(Embedding),
        "vector embedding*, embedding model*, cross encoder*, clip vectors, protein embeddings",
    ),
    (MIDDLE, Some(Embedding), "reranker, rerankers, reranking"),
    (MIDDLE, Some(Embedding), "embeddings, embedding service, semantic search, similarity search"),
    (HINT, Some(Embedding), "embed, embedding"),
    (STRONG, Some(Speech), "speech recognition, speech to text, text to speech, voice cloning"),
    (
        STRONG,
        Some(Speech),
        "diarization, diarisation, diarise, diarize, source separation, voice conversion, speech translation",
    ),
    (MIDDLE, Some(Speech), "asr, tts, kokoro, parakeet"),
    (HINT, Some(Speech), "speech"),
];
