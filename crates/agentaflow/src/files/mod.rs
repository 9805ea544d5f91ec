//! Work written in files: YAML or JSON, a `GPUWorkload` or the short form, several documents, `-` for stdin.

mod short;

use std::fs::{File, Metadata};
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use agentaflow_console::format;
use agentaflow_manifest::yaml::{self, Document, Limits};
use anyhow::{Result, anyhow};
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use crate::backend::{Said, Work, Written};
use crate::failure::{bad_file, not_there, usage};
use short::ShortJob;

/// Whether a word on the command line means a file and not an image: it is called like one, or there is one.
pub(crate) fn is_file(word: &str) -> bool {
    let there = || Path::new(word).metadata().is_ok_and(|found| !found.is_dir());
    is_called_file(word) || there()
}

/// Whether a word is called as files are and images are not.
pub(crate) fn is_called_file(word: &str) -> bool {
    let ends = |end: &str| word.to_ascii_lowercase().ends_with(end);
    let begins = |start: &str| word.starts_with(start);
    let path = begins("/") || begins("./") || begins("../");
    word == "-" || path || ends(".yaml") || ends(".yml") || ends(".json")
}

/// Refuses a word that could be an image but is a folder here: nobody would ever find that image.
pub(crate) fn not_a_folder(word: &str) -> Result<()> {
    if !Path::new(word).is_dir() {
        return Ok(());
    }
    let folder = word.trim_end_matches('/');
    Err(usage(format!(
        "`{word}` is a folder: name the files in it, such as {folder}/*.yaml; an image of that name is `{folder}:latest`"
    )))
}

/// Whether reading what is there comes to an end: a named pipe waits until somebody writes, and a device may have no
/// end. What the shell puts behind a number, as for `<(…)`, is open already.
pub(crate) fn comes_to_an_end(path: &Path, about: &Metadata) -> bool {
    about.is_file()
        || path.starts_with("/dev/fd")
        || path.starts_with("/proc/self/fd")
        || path == Path::new("/dev/stdin")
}

/// All work in a file, with `--set` carried out on each document.
pub(crate) fn read(path: &str, set: &[(String, String)]) -> Result<Vec<Work>> {
    let limits = Limits::default();
    let bytes = bytes(path, limits.bytes)?;
    let shown = if path == "-" { "stdin" } else { path };
    let documents = yaml::read(&bytes, &limits).map_err(|error| {
        let error = not_json(path, &bytes).unwrap_or_else(|| error.to_string());
        bad_file(format!("`{shown}`: {error}"))
    })?;
    let mut work = Vec::with_capacity(documents.len());
    for written in documents {
        let mut document = written.clone();
        for (field, value) in set {
            assign(&mut document.value, field, value).map_err(usage)?;
        }
        let said = one(&document).map_err(|error| {
            blamed(&written, set, &error)
                .map_or_else(|| bad_file(format!("`{shown}`, {error}")), usage)
        })?;
        let written = Written { file: shown.to_owned(), document, set: set.to_vec() };
        work.push(Work { said, written: Some(written) });
    }
    Ok(work)
}

/// What is wrong with a `--set` and not with the file: the first with which the document is wrong in this way.
fn blamed(written: &Document, set: &[(String, String)], wrong: &anyhow::Error) -> Option<String> {
    let wrong = wrong.to_string();
    let so_wrong = |document: &Document| one(document).is_err_and(|it| it.to_string() == wrong);
    let mut document = written.clone();
    if so_wrong(&document) {
        return None;
    }
    let (field, value) = set.iter().find(|(field, value)| {
        assign(&mut document.value, field, value).is_ok() && so_wrong(&document)
    })?;
    // The line is the file's, and what is wrong does not stand there.
    let what = match wrong.split_once(": ") {
        Some((place, what)) if place.starts_with("line ") => what,
        _ => &wrong,
    };
    Some(format!("--set {field}={value}: {what}"))
}

/// What is wrong with a file that is called JSON, in the words of JSON: it is read as YAML, which has others.
fn not_json(path: &str, bytes: &[u8]) -> Option<String> {
    if !path.to_ascii_lowercase().ends_with(".json") || bytes.trim_ascii().is_empty() {
        return None;
    }
    let error = serde_json::from_slice::<IgnoredAny>(bytes).err()?;
    let (line, column) = (error.line(), error.column().max(1));
    let said = error.to_string();
    let said = said.split(" at line ").next().unwrap_or_default();
    let said = said.replace("EOF while parsing", "the file ends within");
    let said = said
        .strip_prefix("the file ends within a value")
        .map_or(said.as_str(), |_| "a value is missing");
    Some(format!("line {line}, column {column}: it is not JSON: {said}"))
}

/// A file is read to its limit and a byte more: whether it is longer is all that matters then.
fn bytes(path: &str, most: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let about = |error: io::Error| {
        let about = format!("cannot read `{path}`");
        match error.kind() {
            ErrorKind::NotFound => not_there(format!("{about}: there is no such file or folder")),
            ErrorKind::IsADirectory => bad_file(format!("{about}: it is a folder, not a file")),
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
                "`{path}` has {size}: a manifest has at most {}",
                format::memory(most as u64 >> 20)
            )));
        }
        Box::new(file)
    };
    from.by_ref().take(most as u64 + 1).read_to_end(&mut bytes).map_err(about)?;
    if bytes.len() > most {
        let most = format::memory(most as u64 >> 20);
        let place = if path == "-" { "on stdin".to_owned() } else { format!("in `{path}`") };
        return Err(bad_file(format!(
            "there is more than {most} {place}: a manifest has at most that"
        )));
    }
    Ok(bytes)
}

/// One document: a Kubernetes object if it says so, else the short form.
fn one(document: &Document) -> Result<Said> {
    let object = document.value.as_object().ok_or_else(|| {
        let position = document.root.position;
        anyhow!(
            "{position}: work is written as fields with values, such as `image: pytorch/pytorch`"
        )
    })?;
    if !object.contains_key("apiVersion") && !object.contains_key("kind") {
        let short: ShortJob = document.decode().map_err(|error| anyhow!(error.to_string()))?;
        return Ok(Said::Job(Box::new(short.job())));
    }
    let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default();
    for key in ["apiVersion", "kind"] {
        if text(key).is_empty() {
            let position = document.root.position;
            return Err(anyhow!(
                "{position}: a Kubernetes object needs `{key}`, such as `{}`",
                sample(key)
            ));
        }
    }
    let ours = text("apiVersion").starts_with("agentaflow.io/");
    if ours && text("kind") != "GPUWorkload" {
        let position = document.position(&["kind"]);
        return Err(anyhow!(
            "{position}: kind: `{}` is not work; write GPUWorkload, or use `kubectl apply`",
            text("kind")
        ));
    }
    if let Some((position, mistake)) = agentaflow_manifest::lint::first_violation(document) {
        return Err(anyhow!("{position}: {mistake}"));
    }
    Ok(Said::Object(document.value.clone()))
}

fn sample(key: &str) -> &'static str {
    if key == "kind" { "kind: GPUWorkload" } else { "apiVersion: agentaflow.io/v1" }
}

/// Carries out `--set a.b.0.c=value`; the value is read as YAML.
fn assign(document: &mut Value, field: &str, value: &str) -> Result<(), String> {
    let value: Value = yaml::read_text(value, &Limits::default())
        .ok()
        .and_then(|mut documents| documents.pop())
        .map_or_else(|| Value::String(value.to_owned()), |document| document.value);
    let mut place = document;
    for step in field.split('.') {
        if step.is_empty() {
            return Err(format!("--set `{field}`: a name is missing between two dots"));
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
                    format!("--set `{field}`: `{step}` is not one of {count} items")
                })?
            }
            _ => {
                return Err(format!(
                    "--set `{field}`: there is nothing below what comes before `{step}`"
                ));
            }
        };
    }
    *place = value;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str, set: &[(&str, &str)]) -> Result<Vec<Work>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("work.yaml");
        std::fs::write(&path, text).unwrap();
        let set: Vec<_> =
            set.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        read(&path.display().to_string(), &set)
    }

    fn wrong(text: &str) -> String {
        let error = read_text(text, &[]).unwrap_err();
        format!("{error:#}")
            .rsplit_once("work.yaml`")
            .unwrap()
            .1
            .trim_start_matches([',', ':', ' '])
            .to_owned()
    }

    #[test]
    fn the_short_form_has_the_words_of_the_options() {
        let text = "name: train\nimage: lab/train:v2\ncommand: [python, train.py]\ngpus: 2\n\
                    gpu_memory: 8G\nmemory: 4096\ncpu: 1.5\nenv: {STEPS: 10, FAST: true}\ntimeout: 1h30m\n";
        let work = read_text(text, &[("gpus", "4"), ("env.STEPS", "\"20\"")]).unwrap();
        let [Work { said: Said::Job(job), .. }] = &work[..] else { panic!("{work:?}") };
        let spec = &job.spec;
        assert_eq!(spec.docker_image.as_deref(), Some("lab/train"));
        assert_eq!((spec.docker_tag.as_deref(), spec.gpu_count), (Some("v2"), Some(4)));
        assert_eq!((spec.gpu_memory_required, spec.memory_required), (Some(8192), Some(4096)));
        assert_eq!(spec.timeout_seconds, Some(5400));
        assert_eq!(spec.env["STEPS"], "20");
        assert_eq!(spec.env["FAST"], "true");
    }

    #[test]
    fn several_documents_of_both_kinds_are_work() {
        let text = "image: a\n---\napiVersion: agentaflow.io/v1\nkind: GPUWorkload\nmetadata: {name: b}\n\
                    spec: {gpuMemoryRequired: 0, podTemplate: {}}\n---\n";
        let work = read_text(text, &[]).unwrap();
        let [first, second] = &work[..] else { panic!("{work:?}") };
        assert!(matches!(first.said, Said::Job(_)));
        assert!(matches!(&second.said, Said::Object(object) if object["metadata"]["name"] == "b"));
    }

    #[test]
    fn bad_files_are_told_by_their_line() {
        for (text, expected) in [
            ("", "empty"),
            ("image: a\ngpusx: 2\n", "line 2, column 1: gpusx: unknown field `gpusx`"),
            ("image: a\nimage: b\n", "line 2"),
            ("env:\n\tA: b\n", "line 2"),
            ("image: a\nmemory: lots\n", "line 2, column 1: memory: "),
            ("- a\n", "line 1, column 1: work is written as fields"),
            ("kind: GPUWorkload\n", "line 1, column 1: a Kubernetes object needs `apiVersion`"),
            (
                "apiVersion: agentaflow.io/v1\nkind: GPUNode\n",
                "line 2, column 1: kind: `GPUNode` is not work",
            ),
            (
                "a: &a [x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\n\
              e: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\ng: &g [*f,*f,*f,*f,*f,*f,*f,*f,*f]\n\
              h: [*g,*g,*g,*g,*g,*g,*g,*g,*g]\n",
                "line",
            ),
        ] {
            let said = wrong(text);
            assert!(said.contains(expected), "{text:?}: {said}");
        }
    }

    #[test]
    fn what_cannot_be_set_says_why() {
        for (field, expected) in [
            ("command.9", "`9` is not one of 1 items"),
            ("image.x", "there is nothing below what comes before `x`"),
            ("a..b", "a name is missing between two dots"),
        ] {
            let error =
                read_text("image: a\ncommand: [x]\n", &[(field, "1")]).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
