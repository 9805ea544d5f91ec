//! Finds the files to check, reads them, and writes them back.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use agentaflow_manifest::lint::{self, Input, Unreadable};
use agentaflow_manifest::yaml::{self, Limits, Problem, YamlError};
use anyhow::{Context as _, Result};

use super::kustomize;
use crate::output;
use crate::{failure, files};

/// Exit code for a file that is not there.
const NOT_FOUND: u8 = 3;

/// What was found and read.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    /// Names and texts.
    pub(super) texts: Vec<(String, String)>,
    /// What was asked for by name and is no text.
    pub(super) unreadable: Vec<Unreadable>,
    /// What was asked for by name, and so must hold something to check.
    pub(super) named: HashSet<String>,
    /// What was left out, and why.
    pub(super) notes: Vec<Skipped>,
}

/// Something that was not checked.
#[derive(Clone, Debug)]
pub(super) struct Skipped {
    pub(super) name: String,
    pub(super) why: String,
}

impl Skipped {
    pub(super) fn new(name: impl Into<String>, why: impl Into<String>) -> Self {
        Self { name: name.into(), why: why.into() }
    }
}

/// A file that cannot be had.
#[derive(Debug)]
pub(super) struct Missing {
    error: anyhow::Error,
    absent: bool,
}

impl Missing {
    /// Says so, and with which code to end.
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

/// Reads all files that are named, and those in the folders that are named.
pub(super) fn gather(paths: &[PathBuf]) -> Result<Gathered, Missing> {
    let mut gathered = Gathered::default();
    for path in paths {
        if path.as_os_str() == "-" {
            let bytes = bounded(io::stdin().lock()).map_err(|error| Missing::new(path, error))?;
            gathered.take_named("-".to_owned(), &bytes);
        } else if path.is_dir() {
            let mut files = Vec::new();
            walk(path, &mut files).map_err(|error| Missing::new(path, error))?;
            let patches = kustomize::patches(&files);
            for file in files {
                if kustomize::is_patch(&file, &patches) {
                    let name = file.strip_prefix(".").unwrap_or(&file).display().to_string();
                    gathered.notes.push(Skipped::new(name, kustomize::PATCH));
                } else {
                    gathered.take_from_folder(&file)?;
                }
            }
        } else {
            gathered.take_named(path.display().to_string(), &read(path)?);
        }
    }
    gathered.texts.dedup_by(|one, other| one.0 == other.0);
    Ok(gathered)
}

/// What to do about a text that cannot be read as YAML. A file of a folder that has nothing in it has nothing wrong
/// in it; who names a file, or pipes one in, means it to be checked.
pub(super) fn unread(gathered: &mut Gathered, name: &str, text: &str, error: &YamlError) {
    let message = match error.problem {
        Problem::Empty if name == "-" => {
            "nothing came through the pipe: the command before it may have failed".to_owned()
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

/// Notes what was read and is nothing to check: a failure where it was asked for by name.
pub(super) fn without_objects(gathered: &mut Gathered, input: &Input) {
    let others = input.documents.iter().filter(|document| !lint::is_kubernetes(document)).count();
    if others == 0 {
        return;
    }
    if others == input.documents.len() && gathered.named.contains(&input.name) {
        let message = "there is no Kubernetes object in it".to_owned();
        gathered.unreadable.push(Unreadable { name: input.name.clone(), position: None, message });
        return;
    }
    let what = if others == 1 { "a document that is" } else { "documents that are" };
    let why = format!("{what} no Kubernetes object was not checked");
    gathered.notes.push(Skipped::new(&input.name, why));
}

/// Writes mended texts to where they came from; what came through a pipe goes on to the output.
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

/// Swaps a file in whole, so that nobody ever sees half of it. Its rights stay, and a link stays a link.
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
    fn take_named(&mut self, name: String, bytes: &[u8]) {
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

    /// Folders hold many things; only what is surely meant to be a manifest may be wrong.
    fn take_from_folder(&mut self, path: &Path) -> Result<(), Missing> {
        let path = path.strip_prefix(".").unwrap_or(path);
        let name = path.display().to_string();
        if fs::metadata(path).is_ok_and(|about| !about.is_file()) {
            self.notes.push(Skipped::new(name, "it is neither a file nor a folder"));
            return Ok(());
        }
        let bytes = read(path)?;
        let readable = yaml::text(&bytes, &Limits::default());
        let Ok(text) = readable else {
            self.notes.push(Skipped::new(name, "it is no text"));
            return Ok(());
        };
        match yaml::read_text(text, &Limits::default()) {
            Err(error) if text.contains("{{") => {
                self.notes.push(Skipped::new(name, lint::unreadable(text, &error)));
            }
            Err(error) if !text.contains("apiVersion") => {
                let why = format!("it is no manifest ({})", error.problem);
                self.notes.push(Skipped::new(name, why));
            }
            _ => self.texts.push((name, text.to_owned())),
        }
        Ok(())
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Missing> {
    let about = fs::metadata(path).map_err(|error| Missing::new(path, error))?;
    if !files::comes_to_an_end(path, &about) {
        let why = "it is neither a file nor a folder: name one, or write `-` for what comes through a pipe";
        return Err(Missing::new(path, io::Error::other(why)));
    }
    let file = fs::File::open(path).map_err(|error| Missing::new(path, error))?;
    bounded(file).map_err(|error| Missing::new(path, error))
}

/// One byte more than may be, so that what is too long is seen to be.
fn bounded(reader: impl io::Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader.take(Limits::default().bytes as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Every manifest below a folder, in order. Hidden folders and links to folders are left out.
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
