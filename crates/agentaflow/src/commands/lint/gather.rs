//! Finds the files to check, reads them, and writes them back.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use agentaflow_manifest::lint::{self, Unreadable};
use agentaflow_manifest::yaml::{self, Limits, Problem, YamlError};
use anyhow::{Context as _, Result};

use crate::failure;
use crate::output;

/// Exit code for a file that is not there.
const NOT_FOUND: u8 = 3;

/// What was found and read.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    /// Names and texts.
    pub(super) texts: Vec<(String, String)>,
    /// What was asked for by name and is no text.
    pub(super) unreadable: Vec<Unreadable>,
    /// What was left out, and why.
    pub(super) notes: Vec<String>,
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
            gathered.take("-".to_owned(), &bytes);
        } else if path.is_dir() {
            let mut files = Vec::new();
            walk(path, &mut files).map_err(|error| Missing::new(path, error))?;
            for file in files {
                gathered.take_from_folder(&file)?;
            }
        } else {
            gathered.take(path.display().to_string(), &read(path)?);
        }
    }
    gathered.texts.dedup_by(|one, other| one.0 == other.0);
    Ok(gathered)
}

/// What to do about a text that cannot be read as YAML. One that has nothing in it has nothing wrong in it.
pub(super) fn unread(
    name: &str,
    text: &str,
    error: &YamlError,
    notes: &mut Vec<String>,
    unreadable: &mut Vec<Unreadable>,
) {
    match error.problem {
        Problem::Empty | Problem::OnlyComments => notes.push(format!("{name}: {}", error.problem)),
        _ => unreadable.push(Unreadable {
            name: name.to_owned(),
            place: error.place,
            message: lint::unreadable(text, error),
        }),
    }
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
    fn take(&mut self, name: String, bytes: &[u8]) {
        match yaml::text(bytes, &Limits::default()) {
            Ok(text) => self.texts.push((name, text.to_owned())),
            Err(error) => self.unreadable.push(Unreadable {
                name,
                place: error.place,
                message: error.problem.to_string(),
            }),
        }
    }

    /// Folders hold many things; only what is surely meant to be a manifest may be wrong.
    fn take_from_folder(&mut self, path: &Path) -> Result<(), Missing> {
        let path = path.strip_prefix(".").unwrap_or(path);
        let name = path.display().to_string();
        let bytes = read(path)?;
        let readable = yaml::text(&bytes, &Limits::default());
        let Ok(text) = readable else {
            self.notes.push(format!("{name}: it is no text"));
            return Ok(());
        };
        match yaml::read_text(text, &Limits::default()) {
            Err(error) if text.contains("{{") => {
                self.notes.push(format!("{name}: {}", lint::unreadable(text, &error)));
            }
            Err(error) if !text.contains("apiVersion") => {
                self.notes.push(format!("{name}: it is no manifest ({})", error.problem));
            }
            _ => self.texts.push((name, text.to_owned())),
        }
        Ok(())
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Missing> {
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
