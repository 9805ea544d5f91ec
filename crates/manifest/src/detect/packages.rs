//! Packages that code imports or that files require.

use std::ops::Range;

use super::kind::WorkloadType::{
    self, Detection, Embedding, FineTuning, Generation, Inference, Segmentation, Speech, Training,
};
use super::sources::Format;
use super::text::Text;

#[derive(Clone, Debug)]
pub(super) struct Package {
    pub(super) name: String,
    /// Byte range in the lower-case text.
    pub(super) bytes: Range<usize>,
    pub(super) weight: f64,
    pub(super) hint: Option<WorkloadType>,
}

/// Packages that the text imports, installs or requires.
pub(super) fn find(text: &Text<'_>, format: Format) -> Vec<Package> {
    let mut found = Vec::new();
    for (start, line) in text.lines() {
        for range in names(line, format) {
            let name = line[range.clone()].replace('_', "-");
            if let Some((weight, hint)) = known(&name) {
                let bytes = start + range.start..start + range.end;
                found.push(Package { name, bytes, weight, hint });
            }
        }
    }
    found
}

/// Requests for package builds without GPU support.
pub(super) fn cpu_builds(text: &Text<'_>) -> Vec<Range<usize>> {
    ["whl/cpu", "+cpu", "tensorflow-cpu", "cpuonly"]
        .into_iter()
        .flat_map(|mark| text.lower.match_indices(mark))
        .map(|(at, mark)| at..at + mark.len())
        .collect()
}

fn names(line: &str, format: Format) -> Vec<Range<usize>> {
    let mut names = imported(line);
    names.extend(installed(line));
    match format {
        Format::Requirements => names.extend(required(line)),
        Format::Project => names.extend(quoted_or_key(line)),
        _ if line.contains("==") || line.contains(">=") || line.contains("~=") => {
            names.extend(required(line));
        }
        _ => {}
    }
    names
}

/// `import torch.nn as nn, cv2` and `from transformers import AutoModel`, but not prose.
fn imported(line: &str) -> Vec<Range<usize>> {
    let body = line.trim_start();
    let indent = line.len() - body.len();
    if let Some(rest) = body.strip_prefix("from ") {
        let name = module(rest);
        let after = rest[name.len()..].trim_start_matches(|letter: char| is_module(letter));
        let start = indent + "from ".len();
        let whole = !name.is_empty() && after.trim_start().starts_with("import ");
        return whole.then_some(start..start + name.len()).into_iter().collect();
    }
    let Some(rest) = body.strip_prefix("import ") else { return Vec::new() };
    let rest = rest.split('#').next().unwrap_or_default();
    let mut at = indent + "import ".len();
    let mut found = Vec::new();
    for part in rest.split(',') {
        let trimmed = part.trim_start();
        let start = at + part.len() - trimmed.len();
        at += part.len() + 1;
        let words: Vec<_> = trimmed.split_whitespace().collect();
        let well_formed = matches!(words.as_slice(), [_] | [_, "as", _]);
        let name = module(trimmed);
        if !well_formed || name.is_empty() || !words[0].trim_end_matches(';').chars().all(is_module)
        {
            return Vec::new();
        }
        found.push(start..start + name.len());
    }
    found
}

/// `pip install torch torchvision`, up to the end of the command.
fn installed(line: &str) -> Vec<Range<usize>> {
    let Some(at) = ["pip install ", "pip3 install ", "conda install ", "uv add ", "poetry add "]
        .into_iter()
        .find_map(|command| line.find(command).map(|at| at + command.len()))
    else {
        return Vec::new();
    };
    let end = ["&&", ";", "`", "#"].into_iter().filter_map(|stop| line[at..].find(stop)).min();
    words(line, at..end.map_or(line.len(), |end| at + end))
}

fn words(line: &str, within: Range<usize>) -> Vec<Range<usize>> {
    let mut at = within.start;
    let mut found = Vec::new();
    for word in line[within].split(' ') {
        let quotes = word.len() - word.trim_start_matches(['"', '\'']).len();
        let name = package(&word[quotes..]);
        if !name.is_empty() {
            found.push(at + quotes..at + quotes + name.len());
        }
        at += word.len() + 1;
    }
    found
}

/// `torch==2.3`, `- torch>=2`, `torch[extra] ; python_version > "3.8"`.
fn required(line: &str) -> Option<Range<usize>> {
    let body = line.trim_start_matches([' ', '\t', '-', '"', '\'']);
    let start = line.len() - body.len();
    let name = package(body);
    let rest = body[name.len()..].trim_start_matches(' ');
    let versioned = rest.is_empty()
        || rest.starts_with(['=', '<', '>', '~', '!', '[', ';', '#', '@', '"', '\'', ',']);
    (!name.is_empty() && versioned).then_some(start..start + name.len())
}

/// `"torch>=2"` in a list, and `torch = "^2"`.
fn quoted_or_key(line: &str) -> Vec<Range<usize>> {
    let mut found: Vec<_> = required(line).into_iter().collect();
    let mut at = 0;
    for (index, part) in line.split(['"', '\'']).enumerate() {
        let name = package(part);
        if index % 2 == 1 && !name.is_empty() {
            found.push(at..at + name.len());
        }
        at += part.len() + 1;
    }
    found.sort_by_key(|range| range.start);
    found.dedup();
    found
}

fn module(text: &str) -> &str {
    let end = text.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    &text[..end.unwrap_or(text.len())]
}

fn package(text: &str) -> &str {
    let end =
        text.find(|letter: char| !letter.is_ascii_alphanumeric() && !matches!(letter, '_' | '-'));
    &text[..end.unwrap_or(text.len())]
}

fn is_module(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '_' | '.')
}

fn known(name: &str) -> Option<(f64, Option<WorkloadType>)> {
    if name.starts_with("nvidia-") || name.starts_with("cupy") || name.starts_with("tensorflow") {
        return Some((0.9, None));
    }
    PACKAGES.iter().find_map(|(weight, hint, names)| {
        names.split(' ').any(|known| known == name).then_some((*weight, *hint))
    })
}

type Group = (f64, Option<WorkloadType>, &'static str);

const PACKAGES: &[Group] = &[
    (
        0.9,
        None,
        "torch torchvision torchaudio pytorch keras jax jaxlib flax transformers lightning timm",
    ),
    (
        0.9,
        None,
        "pytorch-lightning monai pycuda cudf cuml cugraph xformers flash-attn tensorrt paddlepaddle",
    ),
    (0.6, None, "mmcv accelerate onnx"),
    // Its wheels have no GPU support, and most users only scale or crop images.
    (0.4, None, "cv2 opencv-python opencv-python-headless opencv-contrib-python"),
    (0.2, None, "sklearn scikit-learn xgboost lightgbm spacy datasets mlflow"),
    (0.2, None, "numba evaluate nltk gensim"),
    (0.9, Some(Training), "deepspeed horovod fairscale torchrl stable-baselines3"),
    (0.4, Some(Training), "gymnasium wandb optuna"),
    (0.9, Some(FineTuning), "peft trl axolotl unsloth"),
    (0.8, None, "bitsandbytes torch-geometric dgl optax optimum paddleocr easyocr dask-cuda"),
    (
        0.9,
        Some(Inference),
        "vllm onnxruntime-gpu llama-cpp-python llama-cpp tritonclient sglang ctranslate2",
    ),
    // The plain build has no GPU support.
    (0.4, Some(Inference), "onnxruntime"),
    (0.9, Some(Generation), "diffusers"),
    (0.9, Some(Embedding), "sentence-transformers faiss-gpu flagembedding"),
    (0.4, Some(Embedding), "faiss faiss-cpu qdrant-client"),
    (0.9, Some(Detection), "ultralytics detectron2 mmdet"),
    (0.9, Some(Segmentation), "segment-anything segmentation-models-pytorch mmsegmentation"),
    (
        0.9,
        Some(Speech),
        "whisper openai-whisper faster-whisper whisperx pyannote nemo-toolkit speechbrain tts",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn found(line: &str, format: Format) -> Vec<String> {
        let text = Text::new(line, None, None);
        find(&text, format).into_iter().map(|package| package.name).collect()
    }

    #[test]
    fn packages_are_found_where_code_and_files_name_them() {
        let table: [(&str, Format, &[&str]); 12] = [
            ("import torch", Format::Prose, &["torch"]),
            ("import os, cv2 as vision", Format::Python, &["cv2"]),
            ("    from torch.nn import Module", Format::Python, &["torch"]),
            ("import torch and lamp goods", Format::Prose, &[]),
            ("from torch to candle, a history", Format::Prose, &[]),
            ("torch==2.3.0", Format::Prose, &["torch"]),
            ("torch", Format::Requirements, &["torch"]),
            ("torch", Format::Prose, &[]),
            ("  \"sentence_transformers>=2\",", Format::Project, &["sentence-transformers"]),
            ("peft = \"^0.11\"", Format::Project, &["peft"]),
            (
                "RUN pip install --no-cache-dir torch 'vllm==0.5' && rm -r x",
                Format::Docker,
                &["torch", "vllm"],
            ),
            ("- transformers=4.41", Format::Requirements, &["transformers"]),
        ];
        for (line, format, expected) in table {
            assert_eq!(found(line, format), expected, "{line}");
        }
    }
}
