//! Model names: weight, workload type, and size if the name contains it.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::kind::WorkloadType::{
    self, Classification, Detection, Embedding, Generation, Segmentation, Speech,
};
use super::size::memory::Precision;
use super::text::Text;
use super::words::{MIDDLE, STRONG, WEAK};

/// Model name in a text.
#[derive(Clone, Debug)]
pub(super) struct NamedModel {
    /// The family, in lower case without spaces.
    pub(super) name: &'static str,
    pub(super) tokens: usize,
    pub(super) weight: f64,
    pub(super) hint: Option<WorkloadType>,
}

/// Model of known size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct KnownModel {
    /// In lower case without spaces: `resnet50`.
    pub(super) name: &'static str,
    pub(super) millions: f64,
    pub(super) shape: Shape,
}

/// Dimensions that determine the memory of activations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Shape {
    /// Transformer: layers, width, and the width of its cached keys and values (0 without a cache).
    Layers { layers: f64, width: f64, kept: f64 },
    /// MiB of activations per image for training in 32 bits, at the usual image size.
    Pictures { mib: f64 },
}

/// The family named at a token, the longest name first.
pub(super) fn named(text: &Text<'_>, index: usize) -> Option<NamedModel> {
    (1..=3).rev().find_map(|words| {
        let (name, last) = squashed(text, index, words)?;
        // A version is stripped from a single word only: in "llama-3 70B" it is separate from the name.
        let (letters, version) = if words == 1 { without_version(&name) } else { ("", "") };
        let (family, weight, hint) = family(&name).or_else(|| family(letters))?;
        let sure = weight >= STRONG
            || !version.is_empty() && version != name && weight > WEAK
            || cased(text, index, family)
            || qualified(text, last, weight > WEAK);
        let weight = if sure { STRONG } else { weight };
        Some(NamedModel { name: family, tokens: last + 1 - index, weight, hint })
    })
}

/// Model of known size at a token.
pub(super) fn known(text: &Text<'_>, index: usize) -> Option<&'static KnownModel> {
    (1..=3).rev().find_map(|words| {
        let (name, _) = squashed(text, index, words)?;
        KNOWN.iter().find(|known| known.name == name)
    })
}

/// Shape of a model of this size, of this family if known.
pub(super) fn shape(family: Option<&str>, billions: f64) -> Option<Shape> {
    let near = |size: f64| (size - billions).abs() <= 0.12 * size;
    let found = SHAPES.iter().find(|row| family == Some(row.0) && near(row.1))?;
    Some(Shape::Layers { layers: found.2, width: found.3, kept: found.4 })
}

/// Published precision of a model family, if it is not 16 bits.
pub(super) fn published(name: Option<&str>, billions: f64) -> Option<Precision> {
    match name? {
        "gptoss" => Some(Precision::Float4),
        "deepseek" | "deepseekv3" | "deepseekr1" | "kimik2" if billions > 600.0 => {
            Some(Precision::Float8)
        }
        _ => None,
    }
}

/// Words from a token on, concatenated: `mask r-cnn` is `maskrcnn`.
fn squashed(text: &Text<'_>, index: usize, words: usize) -> Option<(String, usize)> {
    let mut name = text.word(index).to_owned();
    let mut last = index;
    for _ in 1..words {
        last = text.after(last)?;
        name.push_str(text.word(last));
    }
    (!name.is_empty() && name.len() <= 40).then_some((name, last))
}

/// `yolov8m` is `yolo` and `8m`, `llama3` is `llama` and `3`.
fn without_version(name: &str) -> (&str, &str) {
    let digits = name.find(|letter: char| letter.is_ascii_digit()).unwrap_or(name.len());
    let (letters, version) = name.split_at(digits);
    (letters.strip_suffix('v').filter(|_| !version.is_empty()).unwrap_or(letters), version)
}

fn family(name: &str) -> Option<(&'static str, f64, Option<WorkloadType>)> {
    BY_NAME.get_key_value(name).map(|(name, (weight, hint))| (*name, *weight, *hint))
}

static BY_NAME: LazyLock<HashMap<&'static str, (f64, Option<WorkloadType>)>> =
    LazyLock::new(|| {
        let named =
            |group: &'static Families| group.2.split(' ').map(|name| (name, (group.0, group.1)));
        FAMILIES.iter().flat_map(named).collect()
    });

/// Names that are ordinary words unless capitalized.
fn cased(text: &Text<'_>, index: usize, family: &str) -> bool {
    let capitals =
        |name: &str| text.tokens.get(index).is_some_and(|token| text.written(&token.range) == name);
    // `toxic-bert`
    let derived = index.checked_sub(1).is_some_and(|before| text.mark(before) == Some('-'));
    family == "bert" && (derived || capitals("BERT"))
        || family == "clip" && capitals("CLIP")
        || family == "vit" && capitals("ViT")
}

/// True if a size or version follows: `bert-large`, `llama 70B`, `falcon-40b`.
fn qualified(text: &Text<'_>, last: usize, versions: bool) -> bool {
    let next = match text.mark(last + 1) {
        Some(':' | '.') => last + 2,
        _ => text.after(last).unwrap_or(usize::MAX),
    };
    let word = text.word(next);
    let size = matches!(
        word,
        "tiny" | "mini" | "small" | "base" | "medium" | "large" | "xl" | "instruct" | "chat"
    );
    let digits = word.trim_start_matches('v').starts_with(|letter: char| letter.is_ascii_digit());
    let parameters = digits && word.ends_with('b');
    size || parameters || versions && digits
}

type Families = (f64, Option<WorkloadType>, &'static str);

const FAMILIES: &[Families] = &[
    (STRONG, Some(Classification), "resnet efficientnet mobilenet vgg densenet convnext layoutlm"),
    (STRONG, Some(Classification), "roberta deberta distilbert paddleocr easyocr trocr"),
    (MIDDLE, Some(Classification), "bert vit swin"),
    (STRONG, Some(Detection), "yolo retinaface fasterrcnn detr retinanet efficientdet"),
    (
        STRONG,
        Some(Segmentation),
        "unet pointnet nnunet u2net maskrcnn deeplab segformer segmentanything",
    ),
    (WEAK, Some(Segmentation), "sam"),
    (
        STRONG,
        Some(Generation),
        "mixtral qwen deepseek starcoder codellama vicuna gptj gptneo gptneox gpt2 gptoss kimik2",
    ),
    (
        STRONG,
        Some(Generation),
        "nemotron pixtral codestral devstral ministral smollm tinyllama internlm internvl llava chatglm cogvideox",
    ),
    (
        STRONG,
        Some(Generation),
        "stablediffusion sdxl controlnet musicgen nllb flant5 graphcast esrgan realesrgan",
    ),
    (MIDDLE, Some(Generation), "blip llama mistral gemma phi t5"),
    (WEAK, Some(Generation), "falcon flux bloom yi granite glm"),
    (STRONG, Some(Embedding), "sentencetransformers minilm sbert bertopic"),
    (MIDDLE, Some(Embedding), "bge faiss milvus qdrant word2vec"),
    (WEAK, Some(Embedding), "clip e5"),
    (STRONG, Some(Speech), "demucs seamlessm4t wav2vec wav2vec2 pyannote xtts fasterwhisper"),
    (MIDDLE, Some(Speech), "whisper"),
    (WEAK, Some(Speech), "nemo hubert"),
];

const fn pictures(name: &'static str, millions: f64, mib: f64) -> KnownModel {
    KnownModel { name, millions, shape: Shape::Pictures { mib } }
}

const fn reader(name: &'static str, millions: f64, layers: f64, width: f64) -> KnownModel {
    KnownModel { name, millions, shape: Shape::Layers { layers, width, kept: 0.0 } }
}

const fn writer(
    name: &'static str,
    millions: f64,
    layers: f64,
    width: f64,
    kept: f64,
) -> KnownModel {
    KnownModel { name, millions, shape: Shape::Layers { layers, width, kept } }
}

const KNOWN: &[KnownModel] = &[
    pictures("resnet18", 11.7, 25.0),
    pictures("resnet34", 21.8, 40.0),
    pictures("resnet50", 25.6, 90.0),
    pictures("resnet101", 44.5, 135.0),
    pictures("resnet152", 60.2, 190.0),
    pictures("vgg16", 138.4, 110.0),
    pictures("mobilenetv2", 3.5, 65.0),
    pictures("efficientnetb0", 5.3, 85.0),
    pictures("efficientnetb7", 66.3, 900.0),
    pictures("yolov5s", 7.2, 200.0),
    pictures("yolov5m", 21.2, 380.0),
    pictures("yolov8n", 3.2, 130.0),
    pictures("yolov8s", 11.2, 230.0),
    pictures("yolov8m", 25.9, 430.0),
    pictures("yolov8l", 43.7, 650.0),
    pictures("yolov8x", 68.2, 850.0),
    pictures("yolo11n", 2.6, 130.0),
    pictures("yolo11s", 9.4, 230.0),
    pictures("yolo11m", 20.1, 430.0),
    pictures("yolo11l", 25.3, 650.0),
    pictures("yolo11x", 56.9, 850.0),
    pictures("maskrcnn", 44.4, 1500.0),
    pictures("fasterrcnn", 41.8, 1300.0),
    pictures("stablediffusion", 1070.0, 4096.0),
    pictures("stablediffusionxl", 3500.0, 9216.0),
    pictures("sdxl", 3500.0, 9216.0),
    reader("vitb", 86.6, 12.0, 768.0),
    reader("vitl", 304.0, 24.0, 1024.0),
    reader("vith", 632.0, 32.0, 1280.0),
    reader("vitbase", 86.6, 12.0, 768.0),
    reader("vitlarge", 304.0, 24.0, 1024.0),
    reader("vithuge", 632.0, 32.0, 1280.0),
    reader("bgesmall", 33.4, 12.0, 384.0),
    reader("bgebase", 109.0, 12.0, 768.0),
    reader("bgelarge", 335.0, 24.0, 1024.0),
    reader("bgem3", 568.0, 24.0, 1024.0),
    reader("e5large", 335.0, 24.0, 1024.0),
    reader("minilml6", 22.7, 6.0, 384.0),
    reader("bertbase", 110.0, 12.0, 768.0),
    reader("bertlarge", 340.0, 24.0, 1024.0),
    reader("robertabase", 125.0, 12.0, 768.0),
    reader("robertalarge", 355.0, 24.0, 1024.0),
    reader("distilbert", 66.0, 6.0, 768.0),
    writer("gpt2", 124.0, 12.0, 768.0, 768.0),
    writer("gpt2xl", 1558.0, 48.0, 1600.0, 1600.0),
    writer("gptj", 6050.0, 28.0, 4096.0, 4096.0),
    writer("deepseekv3", 671_000.0, 61.0, 7168.0, 288.0),
    writer("deepseekr1", 671_000.0, 61.0, 7168.0, 288.0),
    writer("kimik2", 1_026_000.0, 61.0, 7168.0, 288.0),
    writer("llama4scout", 109_000.0, 48.0, 5120.0, 1024.0),
    writer("llama4maverick", 400_000.0, 48.0, 5120.0, 1024.0),
    writer("mistrallarge", 123_000.0, 88.0, 12288.0, 1024.0),
    writer("phi3mini", 3820.0, 32.0, 3072.0, 3072.0),
    writer("whispersmall", 244.0, 24.0, 768.0, 768.0),
    writer("whispermedium", 769.0, 48.0, 1024.0, 1024.0),
    writer("whisperlarge", 1550.0, 64.0, 1280.0, 1280.0),
];

/// Family, billions of parameters, layers, width, width of keys and values. For compressed key-value caches the last
/// is half of the stored width: 512 values and 64 of the position in the layers of `DeepSeek`.
const SHAPES: &[(&str, f64, f64, f64, f64)] = &[
    ("llama", 1.2, 16.0, 2048.0, 512.0),
    ("llama", 3.2, 28.0, 3072.0, 1024.0),
    ("llama", 6.7, 32.0, 4096.0, 4096.0),
    ("llama", 8.0, 32.0, 4096.0, 1024.0),
    ("llama", 13.0, 40.0, 5120.0, 5120.0),
    ("llama", 70.0, 80.0, 8192.0, 1024.0),
    ("llama", 109.0, 48.0, 5120.0, 1024.0),
    ("llama", 405.0, 126.0, 16384.0, 1024.0),
    ("mistral", 7.2, 32.0, 4096.0, 1024.0),
    ("mixtral", 46.7, 32.0, 4096.0, 1024.0),
    ("mixtral", 141.0, 56.0, 6144.0, 1024.0),
    ("qwen", 7.6, 28.0, 3584.0, 512.0),
    ("qwen", 4.0, 36.0, 2560.0, 1024.0),
    ("qwen", 14.7, 48.0, 5120.0, 1024.0),
    ("qwen", 30.0, 48.0, 2048.0, 512.0),
    ("qwen", 32.8, 64.0, 5120.0, 1024.0),
    ("qwen", 72.7, 80.0, 8192.0, 1024.0),
    ("qwen", 235.0, 94.0, 4096.0, 512.0),
    ("gemma", 9.2, 42.0, 3584.0, 2048.0),
    ("gemma", 12.2, 48.0, 3840.0, 2048.0),
    ("gemma", 27.2, 46.0, 4608.0, 2048.0),
    ("deepseek", 15.7, 27.0, 2048.0, 288.0),
    ("deepseek", 236.0, 60.0, 5120.0, 288.0),
    ("deepseek", 671.0, 61.0, 7168.0, 288.0),
    ("gptoss", 20.9, 24.0, 2880.0, 512.0),
    ("gptoss", 116.8, 36.0, 2880.0, 512.0),
    ("phi", 14.7, 40.0, 5120.0, 1280.0),
    ("falcon", 40.0, 60.0, 8192.0, 512.0),
];
