//! Small files in, text out; nothing is overwritten by accident.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write as _};
use std::path::Path;

use agentaflow_manifest::yaml::{self, Limits};
use anyhow::{Context as _, Result};

use crate::failure::{not_there, usage};
use crate::output;

/// No recipe and no catalogue is longer.
const MOST: u64 = 1 << 20;

/// Writes to stdout, or to a file that must not be there.
pub(super) fn write(text: &str, file: Option<&Path>, force: bool) -> Result<()> {
    let Some(file) = file.filter(|file| *file != Path::new("-")) else {
        return output::print(text);
    };
    let mut options = OpenOptions::new();
    options.write(true);
    if force {
        options.create(true).truncate(true)
    } else {
        options.create_new(true)
    };
    let opened = match options.open(file) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            return Err(usage(format!(
                "`{}` is there already: --force overwrites it",
                file.display()
            )));
        }
        opened => opened,
    };
    let written =
        opened.and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()));
    written.with_context(|| format!("cannot write `{}`", file.display()))
}

/// Reads a small file, or stdin.
pub(super) fn read(file: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    let read = if is_stdin(file) {
        io::stdin().lock().take(MOST + 1).read_to_end(&mut bytes)
    } else {
        File::open(file).and_then(|file| file.take(MOST + 1).read_to_end(&mut bytes))
    };
    let name = name(file);
    if read.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
        return Err(not_there(format!("cannot read {name}: there is no such file")));
    }
    read.with_context(|| format!("cannot read {name}"))?;
    if bytes.len() as u64 > MOST {
        return Err(usage(format!("{name} is longer than a MiB: is it the right file?")));
    }
    let text = yaml::text(&bytes, &Limits::default());
    text.map(str::to_owned).map_err(|error| usage(format!("{name}: {error}")))
}

/// A file as messages name it.
pub(super) fn name(file: &Path) -> String {
    if is_stdin(file) { "stdin".to_owned() } else { format!("`{}`", file.display()) }
}

fn is_stdin(file: &Path) -> bool {
    file == Path::new("-")
}
