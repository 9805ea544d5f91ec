//! Finds, reads and rewrites the files to check.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use agentaflow_console::format::counted;
use agentaflow_manifest::lint::{self, Input, Unreadable};
use agentaflow_manifest::yaml::{self, Limits, Problem, YamlError};
use anyhow::{Context as _, Result};

use super::kustomize;
use crate::output;
use crate::{failure, files};

/// Exit code for a missing file.
const NOT_FOUND: u8 = 3;

#[derive(Debug, Default)]
pub(super) struct Gathered {
    pub(super) texts: Vec<(String, String)>,
    /// Operands that are not text.
    pub(super) unreadable: Vec<Unreadable>,
    /// Operands, which must contain an object.
    pub(super) named: HashSet<String>,
    pub(super) notes: Vec<Skipped>,
}

#[derive(Clone, Debug)]
pub(super) struct Skipped {
    pub(super) name: String,
    pub(super) reason: String,
}

impl Skipped {
    pub(super) fn new(name: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { name: name.into(), reason: reason.into() }
    }
}

/// A file that cannot be read.
#[derive(Debug)]
pub(super) struct ReadError {
    error: anyhow::Error,
    absent: bool,
}

impl ReadError {
    /// Prints the error and returns the exit code.
    pub(super) fn report(&self) -> ExitCode {
        let code = failure::report(&self.error);
        if self.absent { ExitCode::from(NOT_FOUND) } else { code }
    }

    fn new(path: &Path, error: io::Error) -> Self {
        let absent = error.kind() == io::ErrorKind::NotFound;
        let error = anyhow::Error::new(error).context(format!("cannot read `{}`", path.display()));
        Self { error, absent }
    }
}

/// Reads files, and the manifests of directories.
pub(super) fn gather(paths: &[PathBuf]) -> Result<Gathered, ReadError> {
    let mut gathered = Gathered::default();
    for path in paths {
        if path.as_os_str() == "-" {
            let bytes = bounded(io::stdin().lock()).map_err(|error| ReadError::new(path, error))?;
            gathered.add_operand("-".to_owned(), &bytes);
        } else if path.is_dir() {
            let mut files = Vec::new();
            walk(path, &mut files).map_err(|error| ReadError::new(path, error))?;
            let patches = kustomize::patches(&files);
            for file in files {
                if kustomize::is_patch(&file, &patches) {
                    let name = file.strip_prefix(".").unwrap_or(&file).display().to_string();
                    gathered.notes.push(Skipped::new(name, kustomize::PATCH));
                } else {
                    gathered.add_from_directory(&file)?;
                }
            }
        } else {
            gathered.add_operand(path.display().to_string(), &read(path)?);
        }
    }
    gathered.texts.dedup_by(|one, other| one.0 == other.0);
    Ok(gathered)
}

/// Handles a text that is not valid YAML. An empty file of a directory is skipped; an empty operand is an error.
pub(super) fn add_unreadable(gathered: &mut Gathered, name: &str, text: &str, error: &YamlError) {
    let message = match error.problem {
        Problem::Empty if name == "-" => {
            "stdin is empty: the command before the pipe may have failed".to_owned()
        }
        Problem::Empty | Problem::OnlyComments if !gathered.named.contains(name) => {
            gathered.notes.push(Skipped::new(name, error.problem.to_string()));
            return;
        }
        _ => lint::unreadable(text, error),
    };
    let name = name.to_owned();
    gathered.unreadable.push(Unreadable { name, position: error.position, message });
}

/// Notes documents without a Kubernetes object; an operand without any object is an error.
pub(super) fn check_objects(gathered: &mut Gathered, input: &Input) {
    let others = input.documents.iter().filter(|document| !lint::is_kubernetes(document)).count();
    if others == 0 {
        return;
    }
    if others == input.documents.len() && gathered.named.contains(&input.name) {
        let message = "no Kubernetes object".to_owned();
        gathered.unreadable.push(Unreadable { name: input.name.clone(), position: None, message });
        return;
    }
    let reason = format!("skipped {} without a Kubernetes object", counted(others, "document"));
    gathered.notes.push(Skipped::new(&input.name, reason));
}

/// Writes fixed texts to their files, and stdin to stdout.
pub(super) fn write(texts: &mut [(String, String)], new: Vec<String>) -> Result<()> {
    for ((name, text), new) in texts.iter_mut().zip(new) {
        if name == "-" {
            output::print(&new)?;
        } else if *text != new {
            replace(Path::new(name), &new).with_context(|| format!("cannot write `{name}`"))?;
        }
        *text = new;
    }
    Ok(())
}

/// Replaces a file atomically. Permissions and symbolic links are preserved.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let path = fs::canonicalize(path)?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let beside = path.with_file_name(name);
    let written = fs::write(&beside, text)
        .and_then(|()| fs::set_permissions(&beside, fs::metadata(&path)?.permissions()))
        .and_then(|()| fs::rename(&beside, &path));
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written
}

impl Gathered {
    fn add_operand(&mut self, name: String, bytes: &[u8]) {
        self.named.insert(name.clone());
        match yaml::text(bytes, &Limits::default()) {
            Ok(text) => self.texts.push((name, text.to_owned())),
            Err(error) => self.unreadable.push(Unreadable {
                name,
                position: error.position,
                message: error.problem.to_string(),
            }),
        }
    }

    /// Files of a directory that are no manifests are skipped.
    fn add_from_directory(&mut self, path: &Path) -> Result<(), ReadError> {
        let path = path.strip_prefix(".").unwrap_or(path);
        let name = path.display().to_string();
        if fs::metadata(path).is_ok_and(|about| !about.is_file()) {
            self.notes.push(Skipped::new(name, "neither a file nor a directory"));
            return Ok(());
        }
        let bytes = read(path)?;
        let readable = yaml::text(&bytes, &Limits::default());
        let Ok(text) = readable else {
            self.notes.push(Skipped::new(name, "not text"));
            return Ok(());
        };
        match yaml::read_text(text, &Limits::default()) {
            Err(error) if text.contains("{{") => {
                self.notes.push(Skipped::new(name, lint::unreadable(text, &error)));
            }
            Err(error) if !text.contains("apiVersion") => {
                let reason = format!("not a manifest ({})", error.problem);
                self.notes.push(Skipped::new(name, reason));
            }
            _ => self.texts.push((name, text.to_owned())),
        }
        Ok(())
    }
}

fn read(path: &Path) -> Result<Vec<u8>, ReadError> {
    let about = fs::metadata(path).map_err(|error| ReadError::new(path, error))?;
    if !files::is_finite(path, &about) {
        return Err(ReadError::new(path, io::Error::other("neither a file nor a directory")));
    }
    let file = fs::File::open(path).map_err(|error| ReadError::new(path, error))?;
    bounded(file).map_err(|error| ReadError::new(path, error))
}

/// Reads at most one byte more than the limit, to detect a longer file.
fn bounded(reader: impl io::Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader.take(Limits::default().bytes as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Manifests of a directory tree in order of names, without hidden directories and linked directories.
fn walk(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    let mut entries = fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let hidden = entry.file_name().to_string_lossy().starts_with('.');
        let kind = entry.file_type()?;
        let path = entry.path();
        if kind.is_dir() && !hidden && entry.file_name() != "node_modules" {
            walk(&path, files)?;
        } else if !kind.is_dir() && !path.is_dir() && is_manifest(&path) {
            files.push(path);
        }
    }
    Ok(())
}

fn is_manifest(path: &Path) -> bool {
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    ["yaml", "yml", "json"].iter().any(|known| ending.eq_ignore_ascii_case(known))
}
