//! Secrets at rest: files that only their owner can read, and text sealed with a key of such a file.
//!
//! The key file has one key on each line: a name and 32 bytes in base64. The first key seals, every key opens. A rotation
//! adds a first line ([`Keyring::rotate`]); text sealed with older keys can be opened and resealed ([`Keyring::reseal`]).

use std::collections::HashSet;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

use base64::Engine;
use base64::prelude::BASE64_STANDARD_NO_PAD as BASE64;
use chacha20poly1305::aead::{Aead, Payload};
use chacha20poly1305::{KeyInit, XChaCha20Poly1305, XNonce};
use thiserror::Error;
use zeroize::Zeroizing;

/// Error of a secret. The message never contains the secret.
#[derive(Debug, Error)]
pub enum SecretError {
    #[error("cannot use the secret file {}", path.display())]
    File { path: PathBuf, source: io::Error },
    /// Other users can read the file.
    #[error(
        "others may read the secret file {path} (mode {mode:03o}); run `chmod 600 {path}`, \
         and replace the secret if another user may have read it",
        path = path.display()
    )]
    Exposed { path: PathBuf, mode: u32 },
    /// The file belongs to another user, who can read and change it.
    #[error(
        "the secret file {path} belongs to the user with the number {owner}, not to the one that runs this \
         ({us}); run `chown {us} {path}`, and replace the secret if another user may have read it",
        path = path.display()
    )]
    NotOurs {
        path: PathBuf,
        owner: u32,
        /// User id of this process.
        us: u32,
    },
    #[error("the secret file {} is larger than {} KiB, so it is something else", path.display(), MOST_BYTES >> 10)]
    TooLarge { path: PathBuf },
    /// The key file is at its size limit.
    #[error(
        "the key file {} holds {keys} keys that are still in use and has no room for another; the present key stays",
        path.display()
    )]
    Full { path: PathBuf, keys: usize },
    /// The key file has a line that is not a key.
    #[error(
        "line {line} of the key file {} is not a key; each line is a name and 32 bytes in base64",
        path.display()
    )]
    NotAKey { path: PathBuf, line: usize },
    /// The key of a sealed text is not in the file.
    #[error("the key `{0}` that sealed this is not in the key file")]
    UnknownKey(String),
    /// A sealed text was changed, or sealed for another purpose.
    #[error("cannot open a sealed secret: it was changed, or sealed for another purpose")]
    Broken,
    #[error("the system provides no random numbers")]
    NoRandomness,
}

/// Maximum size of a secret file.
const MOST_BYTES: u64 = 256 * 1024;
/// Maximum size of a key file that still gets a new key, so that the file stays readable.
const MOST_KEY_BYTES: usize = 64 * 1024;

const VERSION: &str = "v1";
const NONCE_BYTES: usize = 24;

/// Writes a file that only its owner can read, atomically and durably. Replaces an existing file.
pub fn write_secret_file(path: &Path, secret: &[u8]) -> Result<(), SecretError> {
    put(path, secret, |temporary| std::fs::rename(temporary, path)).map_err(at(path))
}

/// Like [`write_secret_file`], but keeps an existing file. True if it wrote.
pub fn create_secret_file(path: &Path, secret: &[u8]) -> Result<bool, SecretError> {
    let linked = put(path, secret, |temporary| {
        let linked = std::fs::hard_link(temporary, path);
        std::fs::remove_file(temporary)?;
        linked
    });
    match linked {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(at(path)(error)),
    }
}

/// Reads a secret file; none if it does not exist. Fails if another user can read or owns it. White space around the
/// secret is ignored.
pub fn read_secret_file(path: &Path) -> Result<Option<Zeroizing<String>>, SecretError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(at(path)(error)),
    };
    let found = file.metadata().map_err(at(path))?;
    ours(path, found.uid(), rustix::process::geteuid().as_raw())?;
    let mode = found.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(SecretError::Exposed { path: path.to_owned(), mode });
    }
    if found.len() > MOST_BYTES {
        return Err(SecretError::TooLarge { path: path.to_owned() });
    }
    // One allocation: a growing text leaves copies of itself in memory.
    let mut text = Zeroizing::new(String::with_capacity(found.len() as usize + 1));
    file.take(MOST_BYTES).read_to_string(&mut text).map_err(at(path))?;
    Ok(Some(Zeroizing::new(text.trim().to_owned())))
}

fn ours(path: &Path, owner: u32, us: u32) -> Result<(), SecretError> {
    if owner == us {
        return Ok(());
    }
    Err(SecretError::NotOurs { path: path.to_owned(), owner, us })
}

fn at(path: &Path) -> impl Fn(io::Error) -> SecretError {
    let path = path.to_owned();
    move |source| SecretError::File { path: path.clone(), source }
}

/// Writes a temporary file, then renames it.
fn put(path: &Path, secret: &[u8], place: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|error| io::Error::other(error.to_string()))?;
    let temporary = folder.join(format!(".secret-{:016x}", u64::from_le_bytes(random)));
    let written = write_new(&temporary, secret).and_then(|()| place(&temporary));
    if written.is_err() {
        // The caller receives the first error.
        let _ = std::fs::remove_file(&temporary);
    }
    written?;
    File::open(folder)?.sync_all()
}

fn write_new(path: &Path, secret: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(secret)?;
    file.sync_all()
}

struct Key {
    name: String,
    bytes: Zeroizing<[u8; 32]>,
}

impl Key {
    fn random() -> Result<Self, SecretError> {
        let mut name = [0; 4];
        let mut bytes = Zeroizing::new([0; 32]);
        fill(&mut name)?;
        fill(bytes.as_mut())?;
        Ok(Self { name: format!("{:08x}", u32::from_le_bytes(name)), bytes })
    }

    fn parse(line: &str) -> Option<Self> {
        let (name, text) = line.split_once(' ')?;
        let bytes = Zeroizing::new(BASE64.decode(text.trim().trim_end_matches('=')).ok()?);
        let bytes = Zeroizing::new(<[u8; 32]>::try_from(bytes.as_slice()).ok()?);
        let is_word = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric());
        is_word.then(|| Self { name: name.to_owned(), bytes })
    }

    fn cipher(&self) -> XChaCha20Poly1305 {
        XChaCha20Poly1305::new((&*self.bytes).into())
    }
}

/// Keys of a key file.
pub struct Keyring {
    path: PathBuf,
    keys: RwLock<Vec<Key>>,
    /// The file was missing and is new.
    created: bool,
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyring").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Keyring {
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// True if the file was missing. On a server with data its secrets cannot be decrypted then.
    pub fn is_new(&self) -> bool {
        self.created
    }

    /// Reads a key file; creates one with one key if missing.
    pub fn load(path: &Path) -> Result<Self, SecretError> {
        let mut keys = read_keys(path)?;
        let created = keys.is_none();
        if created {
            create_secret_file(path, text_of(&[Key::random()?]).as_bytes())?;
            // Another server may have written it first.
            keys = read_keys(path)?;
        }
        let keys = keys.unwrap_or_default();
        if keys.is_empty() {
            return Err(SecretError::NotAKey { path: path.to_owned(), line: 1 });
        }
        Ok(Self { path: path.to_owned(), keys: RwLock::new(keys), created })
    }

    /// Seals a secret for one purpose, such as `job:17`; it cannot be opened for another.
    pub fn seal(&self, context: &str, plain: &[u8]) -> Result<String, SecretError> {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        let key = keys.first().ok_or(SecretError::Broken)?;
        let mut sealed = vec![0; NONCE_BYTES];
        fill(&mut sealed)?;
        let bound = bound_to(&key.name, context);
        let payload = Payload { msg: plain, aad: bound.as_bytes() };
        let nonce = XNonce::from_slice(&sealed);
        let text = key.cipher().encrypt(nonce, payload).map_err(|_| SecretError::Broken)?;
        sealed.extend(text);
        Ok(format!("{VERSION}.{}.{}", key.name, BASE64.encode(sealed)))
    }

    /// Opens text that any of the keys sealed for this purpose.
    pub fn open(&self, context: &str, sealed: &str) -> Result<Zeroizing<Vec<u8>>, SecretError> {
        let (name, _) = parts(sealed)?;
        match self.try_open(context, sealed) {
            // Another server that shares the file may have added a key.
            Err(SecretError::UnknownKey(_)) => {
                let fresh = read_keys(&self.path)?.unwrap_or_default();
                if !fresh.iter().any(|key| key.name == name) {
                    return Err(SecretError::UnknownKey(name.to_owned()));
                }
                *self.keys.write().unwrap_or_else(PoisonError::into_inner) = fresh;
                self.try_open(context, sealed)
            }
            done => done,
        }
    }

    fn try_open(&self, context: &str, sealed: &str) -> Result<Zeroizing<Vec<u8>>, SecretError> {
        let (name, text) = parts(sealed)?;
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        let key = keys.iter().find(|key| key.name == name);
        let key = key.ok_or_else(|| SecretError::UnknownKey(name.to_owned()))?;
        let bytes = BASE64.decode(text).map_err(|_| SecretError::Broken)?;
        let (nonce, text) = bytes.split_at_checked(NONCE_BYTES).ok_or(SecretError::Broken)?;
        let bound = bound_to(name, context);
        let payload = Payload { msg: text, aad: bound.as_bytes() };
        let plain = key.cipher().decrypt(XNonce::from_slice(nonce), payload);
        plain.map(Zeroizing::new).map_err(|_| SecretError::Broken)
    }

    /// Adds a new key for all later seals.
    pub fn rotate(&self) -> Result<(), SecretError> {
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        let mut fresh = read_keys(&self.path)?.unwrap_or_default();
        fresh.insert(0, Key::random()?);
        let text = text_of(&fresh);
        if text.len() > MOST_KEY_BYTES {
            return Err(SecretError::Full { path: self.path.clone(), keys: fresh.len() - 1 });
        }
        write_secret_file(&self.path, text.as_bytes())?;
        *keys = fresh;
        Ok(())
    }

    /// Removes keys that no text is sealed with; the current key stays. `in_use` has sealed texts or names of keys. Returns
    /// the number of keys removed.
    pub fn forget_unused<'a>(
        &self,
        in_use: impl Iterator<Item = &'a str>,
    ) -> Result<usize, SecretError> {
        let name = |text: &'a str| parts(text).map_or(text, |(name, _)| name);
        let in_use: HashSet<&str> = in_use.map(name).collect();
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        let mut fresh = read_keys(&self.path)?.unwrap_or_default();
        let before = fresh.len();
        let mut first = true;
        fresh.retain(|key| std::mem::take(&mut first) || in_use.contains(key.name.as_str()));
        if fresh.len() < before {
            write_secret_file(&self.path, text_of(&fresh).as_bytes())?;
            let forgotten = before - fresh.len();
            *keys = fresh;
            return Ok(forgotten);
        }
        Ok(0)
    }

    /// Returns true if a text is sealed with the current key.
    pub fn is_current(&self, sealed: &str) -> bool {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        parts(sealed).is_ok_and(|(name, _)| keys.first().is_some_and(|key| key.name == name))
    }

    /// Seals text again with the current key.
    pub fn reseal(&self, context: &str, sealed: &str) -> Result<String, SecretError> {
        self.seal(context, &self.open(context, sealed)?)
    }
}

fn fill(bytes: &mut [u8]) -> Result<(), SecretError> {
    getrandom::fill(bytes).map_err(|_| SecretError::NoRandomness)
}

/// The name of the key is authenticated, so that a text cannot be attributed to another key.
fn bound_to(name: &str, context: &str) -> String {
    format!("{VERSION}.{name}.{context}")
}

fn parts(sealed: &str) -> Result<(&str, &str), SecretError> {
    let rest = sealed.strip_prefix(VERSION).and_then(|rest| rest.strip_prefix('.'));
    rest.and_then(|rest| rest.split_once('.')).ok_or(SecretError::Broken)
}

fn read_keys(path: &Path) -> Result<Option<Vec<Key>>, SecretError> {
    let Some(text) = read_secret_file(path)? else { return Ok(None) };
    let key = |(at, line): (usize, &str)| {
        Key::parse(line).ok_or(SecretError::NotAKey { path: path.to_owned(), line: at + 1 })
    };
    text.lines().enumerate().map(key).collect::<Result<_, _>>().map(Some)
}

fn text_of(keys: &[Key]) -> Zeroizing<String> {
    let mut text = Zeroizing::new(String::with_capacity(keys.len() * 64));
    for key in keys {
        text.push_str(&key.name);
        text.push(' ');
        text.push_str(&Zeroizing::new(BASE64.encode(key.bytes.as_slice())));
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests;
