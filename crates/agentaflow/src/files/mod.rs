//! Job files: YAML or JSON, Kubernetes objects or the short form, several documents per file, `-` for stdin.

mod short;

use std::fs::{File, Metadata};
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use agentaflow_console::format;
use agentaflow_manifest::yaml::{self, DecodeError, Document, Limits};
use anyhow::Result;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use crate::backend::{SourceDocument, Submission, SubmissionContent};
use crate::failure::{bad_file, not_found, usage};
use short::ShortJob;

/// An operand is a file, not an image, if it has the form of a path or exists.
pub(crate) fn is_file(word: &str) -> bool {
    let there = || Path::new(word).metadata().is_ok_and(|found| !found.is_dir());
    looks_like_file(word) || there()
}

/// A path or an extension that no image has.
pub(crate) fn looks_like_file(word: &str) -> bool {
    let ends = |end: &str| word.to_ascii_lowercase().ends_with(end);
    let begins = |start: &str| word.starts_with(start);
    let path = begins("/") || begins("./") || begins("../");
    word == "-" || path || ends(".yaml") || ends(".yml") || ends(".json")
}

/// Rejects an image operand that is a directory.
pub(crate) fn reject_directory(word: &str) -> Result<()> {
    if !Path::new(word).is_dir() {
        return Ok(());
    }
    let folder = word.trim_end_matches('/');
    Err(usage(format!(
        "`{word}` is a directory: give its files, such as {folder}/*.yaml, or use `{folder}:latest` for the image"
    )))
}

/// Reading a named pipe may block, and a device may have no end. File descriptors of the shell, as for `<(…)`, are
/// open already.
pub(crate) fn is_finite(path: &Path, about: &Metadata) -> bool {
    about.is_file()
        || path.starts_with("/dev/fd")
        || path.starts_with("/proc/self/fd")
        || path == Path::new("/dev/stdin")
}

/// Reads the jobs of a file and applies `--set` to each document.
pub(crate) fn read(path: &str, set: &[(String, String)]) -> Result<Vec<Submission>> {
    let limits = Limits::default();
    let bytes = bytes(path, limits.bytes)?;
    let shown = if path == "-" { "stdin" } else { path };
    let documents = yaml::read(&bytes, &limits).map_err(|error| {
        let error = json_error(path, &bytes).unwrap_or_else(|| error.to_string());
        bad_file(format!("`{shown}`: {error}"))
    })?;
    let mut submissions = Vec::with_capacity(documents.len());
    for original in documents {
        let mut document = original.clone();
        for (field, value) in set {
            assign(&mut document.value, field, value).map_err(usage)?;
        }
        let content = content(&document).map_err(|error| {
            set_error(&original, set, &error)
                .map_or_else(|| bad_file(format!("`{shown}`: {error}")), usage)
        })?;
        let source = SourceDocument { file: shown.to_owned(), document, set: set.to_vec() };
        submissions.push(Submission { content, source: Some(source) });
    }
    Ok(submissions)
}

/// The error as that of the first `--set` that causes it; `None` if the file itself is invalid.
fn set_error(original: &Document, set: &[(String, String)], error: &DecodeError) -> Option<String> {
    let fails = |document: &Document| content(document).is_err_and(|it| it == *error);
    let mut document = original.clone();
    if fails(&document) {
        return None;
    }
    let (field, value) = set.iter().find(|(field, value)| {
        assign(&mut document.value, field, value).is_ok() && fails(&document)
    })?;
    // The position in the file does not apply to the override.
    Some(format!("--set {field}={value}: {}", error.message()))
}

/// The JSON error of a `.json` file. Files are parsed as YAML, whose errors would confuse.
fn json_error(path: &str, bytes: &[u8]) -> Option<String> {
    if !path.to_ascii_lowercase().ends_with(".json") || bytes.trim_ascii().is_empty() {
        return None;
    }
    let error = serde_json::from_slice::<IgnoredAny>(bytes).err()?;
    let (line, column) = (error.line(), error.column().max(1));
    let message = error.to_string();
    let message = message.split(" at line ").next().unwrap_or_default();
    Some(format!("line {line}, column {column}: invalid JSON: {message}"))
}

/// Reads at most one byte more than the limit, to detect a longer file.
fn bytes(path: &str, most: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let about = |error: io::Error| {
        let about = format!("cannot read `{path}`");
        match error.kind() {
            ErrorKind::NotFound => not_found(format!("{about}: no such file or directory")),
            ErrorKind::IsADirectory => bad_file(format!("{about}: is a directory")),
            _ => anyhow::Error::from(error).context(about),
        }
    };
    let mut from: Box<dyn Read> = if path == "-" {
        Box::new(io::stdin())
    } else {
        let file = File::open(Path::new(path)).map_err(about)?;
        let size = file.metadata().map_err(about)?.len();
        if size > most as u64 {
            let size = format::memory(size >> 20);
            return Err(bad_file(format!(
                "`{path}` is too large: {size}, limit {}",
                format::memory(most as u64 >> 20)
            )));
        }
        Box::new(file)
    };
    from.by_ref().take(most as u64 + 1).read_to_end(&mut bytes).map_err(about)?;
    if bytes.len() > most {
        let most = format::memory(most as u64 >> 20);
        let name = if path == "-" { "stdin".to_owned() } else { format!("`{path}`") };
        return Err(bad_file(format!("{name} is too large: limit {most}")));
    }
    Ok(bytes)
}

/// A document with `apiVersion` or `kind` is a Kubernetes object, else the short form.
fn content(document: &Document) -> Result<SubmissionContent, DecodeError> {
    let at = |position, path: &str, problem: String| DecodeError {
        position,
        path: path.to_owned(),
        problem,
    };
    let object = document.value.as_object().ok_or_else(|| {
        let problem = "expected fields, such as `image: pytorch/pytorch`";
        at(document.root.position, "", problem.to_owned())
    })?;
    if !object.contains_key("apiVersion") && !object.contains_key("kind") {
        let short: ShortJob = document.decode()?;
        return Ok(SubmissionContent::Job(Box::new(short.job())));
    }
    let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default();
    for key in ["apiVersion", "kind"] {
        if text(key).is_empty() {
            let problem = format!("missing `{key}`, such as `{}`", sample(key));
            return Err(at(document.root.position, "", problem));
        }
    }
    let ours = text("apiVersion").starts_with("agentaflow.io/");
    if ours && text("kind") != "GPUWorkload" {
        let kind = text("kind");
        let problem = format!("`{kind}` cannot be submitted; use GPUWorkload, or `kubectl apply`");
        return Err(at(document.position(&["kind"]), "kind", problem));
    }
    if let Some((position, mistake)) = agentaflow_manifest::lint::first_violation(document) {
        return Err(at(position, "", mistake.clone()));
    }
    Ok(SubmissionContent::Object(document.value.clone()))
}

fn sample(key: &str) -> &'static str {
    if key == "kind" { "kind: GPUWorkload" } else { "apiVersion: agentaflow.io/v1" }
}

/// Applies `--set a.b.0.c=value`; the value is parsed as YAML.
fn assign(document: &mut Value, field: &str, value: &str) -> Result<(), String> {
    let value: Value = yaml::read_text(value, &Limits::default())
        .ok()
        .and_then(|mut documents| documents.pop())
        .map_or_else(|| Value::String(value.to_owned()), |document| document.value);
    let mut place = document;
    for step in field.split('.') {
        if step.is_empty() {
            return Err(format!("--set `{field}`: empty name between two dots"));
        }
        if place.is_null() {
            *place = Value::Object(Map::new());
        }
        place = match place {
            Value::Object(map) => map.entry(step).or_insert(Value::Null),
            Value::Array(items) => {
                let count = items.len();
                let item = step.parse::<usize>().ok().and_then(|index| items.get_mut(index));
                item.ok_or_else(|| {
                    format!("--set `{field}`: `{step}` is not an index below {count}")
                })?
            }
            _ => {
                return Err(format!("--set `{field}`: the field before `{step}` has no fields"));
            }
        };
    }
    *place = value;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str, set: &[(&str, &str)]) -> Result<Vec<Submission>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("work.yaml");
        std::fs::write(&path, text).unwrap();
        let set: Vec<_> =
            set.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        read(&path.display().to_string(), &set)
    }

    fn error_of(text: &str) -> String {
        let error = read_text(text, &[]).unwrap_err();
        format!("{error:#}")
            .rsplit_once("work.yaml`")
            .unwrap()
            .1
            .trim_start_matches([',', ':', ' '])
            .to_owned()
    }

    #[test]
    fn the_short_form_has_the_names_of_the_options() {
        let text = "name: train\nimage: lab/train:v2\ncommand: [python, train.py]\ngpus: 2\n\
                    gpu_memory: 8G\nmemory: 4096\ncpu: 1.5\nenv: {STEPS: 10, FAST: true}\ntimeout: 1h30m\n";
        let jobs = read_text(text, &[("gpus", "4"), ("env.STEPS", "\"20\"")]).unwrap();
        let [Submission { content: SubmissionContent::Job(job), .. }] = &jobs[..] else {
            panic!("{jobs:?}")
        };
        let spec = &job.spec;
        assert_eq!(spec.docker_image.as_deref(), Some("lab/train"));
        assert_eq!((spec.docker_tag.as_deref(), spec.gpu_count), (Some("v2"), Some(4)));
        assert_eq!((spec.gpu_memory_required, spec.memory_required), (Some(8192), Some(4096)));
        assert_eq!(spec.timeout_seconds, Some(5400));
        assert_eq!(spec.env["STEPS"], "20");
        assert_eq!(spec.env["FAST"], "true");
    }

    #[test]
    fn a_file_may_mix_objects_and_short_forms() {
        let text = "image: a\n---\napiVersion: agentaflow.io/v1\nkind: GPUWorkload\nmetadata: {name: b}\n\
                    spec: {gpuMemoryRequired: 0, podTemplate: {}}\n---\n";
        let jobs = read_text(text, &[]).unwrap();
        let [first, second] = &jobs[..] else { panic!("{jobs:?}") };
        assert!(matches!(first.content, SubmissionContent::Job(_)));
        assert!(
            matches!(&second.content, SubmissionContent::Object(object) if object["metadata"]["name"] == "b")
        );
    }

    #[test]
    fn errors_have_a_position() {
        for (text, expected) in [
            ("", "empty"),
            ("image: a\ngpusx: 2\n", "line 2, column 1: gpusx: unknown field `gpusx`"),
            ("image: a\nimage: b\n", "line 2"),
            ("env:\n\tA: b\n", "line 2"),
            ("image: a\nmemory: lots\n", "line 2, column 1: memory: "),
            ("- a\n", "line 1, column 1: expected fields"),
            ("kind: GPUWorkload\n", "line 1, column 1: missing `apiVersion`"),
            (
                "apiVersion: agentaflow.io/v1\nkind: GPUNode\n",
                "line 2, column 1: kind: `GPUNode` cannot be submitted",
            ),
            (
                "a: &a [x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\n\
              e: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\ng: &g [*f,*f,*f,*f,*f,*f,*f,*f,*f]\n\
              h: [*g,*g,*g,*g,*g,*g,*g,*g,*g]\n",
                "line",
            ),
        ] {
            let error = error_of(text);
            assert!(error.contains(expected), "{text:?}: {error}");
        }
    }

    #[test]
    fn an_invalid_set_is_explained() {
        for (field, expected) in [
            ("command.9", "`9` is not an index below 1"),
            ("image.x", "the field before `x` has no fields"),
            ("a..b", "empty name between two dots"),
        ] {
            let error =
                read_text("image: a\ncommand: [x]\n", &[(field, "1")]).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
