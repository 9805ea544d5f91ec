//! Program, arguments and environment in the form that the kernel takes.

use std::ffi::{CStr, CString, c_char};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

/// `PATH` of a process without one, as in the C library.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// Program of a process, with arguments, environment and working directory.
#[derive(Debug)]
pub struct ProcessImage {
    /// Files to try, in this order.
    programs: Vec<CString>,
    argv: Vec<CString>,
    env: Vec<CString>,
    working_dir: CString,
}

/// Arrays of pointers into a [`ProcessImage`], each with a null pointer at its end.
#[derive(Debug)]
pub(super) struct Pointers<'a> {
    argv: Vec<*const c_char>,
    env: Vec<*const c_char>,
    /// Keeps the image alive.
    programs: &'a [CString],
}

impl ProcessImage {
    /// Finds a program without a slash in the `PATH` of `env`. Fails for a null byte and for an empty program.
    pub fn new<'a>(
        argv: &[String],
        env: impl IntoIterator<Item = (&'a str, &'a str)>,
        working_dir: &Path,
    ) -> io::Result<Self> {
        let mut path = DEFAULT_PATH;
        let mut variables = Vec::new();
        for (name, value) in env {
            if name == "PATH" {
                path = value;
            }
            variables.push(CString::new(format!("{name}={value}"))?);
        }
        let program = argv.first().filter(|program| !program.is_empty());
        let program = program.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Self {
            programs: candidates(program, path)?,
            argv: argv.iter().map(|arg| Ok(CString::new(&**arg)?)).collect::<io::Result<_>>()?,
            env: variables,
            working_dir: CString::new(working_dir.as_os_str().as_bytes())?,
        })
    }

    pub(super) fn working_dir(&self) -> &CStr {
        &self.working_dir
    }

    pub(super) fn pointers(&self) -> Pointers<'_> {
        let array = |strings: &[CString]| {
            strings.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect()
        };
        Pointers { argv: array(&self.argv), env: array(&self.env), programs: &self.programs }
    }
}

impl Pointers<'_> {
    /// Replaces this process by the program. Returns only after a failure, with the error number.
    pub(super) fn exec(&self) -> i32 {
        let mut denied = false;
        let mut last = libc::ENOENT;
        for program in self.programs {
            // SAFETY: `program` is a string with a null byte at its end. `argv` and `env` are arrays of such strings with
            // a null pointer at their end; `ProcessImage` owns the strings and outlives `self`.
            unsafe { libc::execve(program.as_ptr(), self.argv.as_ptr(), self.env.as_ptr()) };
            last = io::Error::last_os_error().raw_os_error().unwrap_or(libc::ENOENT);
            match last {
                libc::EACCES => denied = true,
                libc::ENOENT | libc::ENOTDIR | libc::ESTALE | libc::ENODEV | libc::ETIMEDOUT => {}
                _ => return last,
            }
        }
        if denied { libc::EACCES } else { last }
    }
}

/// A relative entry of `PATH` starts at the working directory; an empty entry is that directory.
fn candidates(program: &str, path: &str) -> io::Result<Vec<CString>> {
    if program.contains('/') {
        return Ok(vec![CString::new(program)?]);
    }
    let files = path.split(':').map(|dir| match dir {
        "" => CString::new(program),
        dir => CString::new(format!("{dir}/{program}")),
    });
    files.map(|file| Ok(file?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(program: &str, path: &str) -> Vec<String> {
        let found = candidates(program, path).unwrap();
        found.into_iter().map(|file| file.into_string().unwrap()).collect()
    }

    #[test]
    fn a_program_without_a_slash_is_searched_in_the_path() {
        assert_eq!(found("sh", "/usr/bin::bin"), ["/usr/bin/sh", "sh", "bin/sh"]);
        assert_eq!(found("./sh", "/usr/bin"), ["./sh"]);
    }

    #[test]
    fn null_bytes_and_empty_programs_are_invalid() {
        let image = |argv: &[&str], env: &[(&'static str, &'static str)]| {
            let argv: Vec<String> = argv.iter().map(|arg| (*arg).to_owned()).collect();
            ProcessImage::new(&argv, env.iter().copied(), Path::new("/"))
        };
        assert!(image(&["true"], &[("A", "b")]).is_ok());
        for (argv, env) in [
            (&[][..], &[][..]),
            (&[""], &[]),
            (&["true", "a\0b"], &[]),
            (&["true"], &[("A", "b\0")]),
        ] {
            let error = image(argv, env).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{argv:?} {env:?}");
        }
    }
}
