//! Identity of the agent in its state directory: `agent-id`, and `credentials.json` with the API key.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use agentaflow_api::units::Secret;

const NAME: &str = "agent-id";
const CREDENTIALS: &str = "credentials.json";

/// Result of a registration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Credentials {
    /// URL of the server that issued them.
    pub(crate) server: String,
    /// `gpu-…`.
    pub(crate) node_id: String,
    pub(crate) api_key: Secret,
}

/// Reads the agent id; creates a random one at the first start.
pub(crate) fn agent_id(dir: &Path) -> io::Result<String> {
    let path = dir.join(NAME);
    match fs::read_to_string(&path) {
        Ok(text) if is_name(text.trim()) => return Ok(text.trim().to_owned()),
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let name = format!("agent-{}", random_name()?);
    write_private(dir, NAME, name.as_bytes())?;
    Ok(name)
}

/// Twelve random hexadecimal digits.
pub(crate) fn random_name() -> io::Result<String> {
    let mut bytes = [0_u8; 6];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    let number = bytes.iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    Ok(format!("{number:012x}"))
}

/// Credentials issued by `server`.
pub(crate) fn read_credentials(dir: &Path, server: &str) -> Option<Credentials> {
    let bytes = fs::read(dir.join(CREDENTIALS)).ok()?;
    serde_json::from_slice::<Credentials>(&bytes).ok().filter(|found| found.server == server)
}

pub(crate) fn write_credentials(dir: &Path, credentials: &Credentials) -> io::Result<()> {
    write_private(dir, CREDENTIALS, &serde_json::to_vec(credentials)?)
}

/// Writes a file with mode 0600 atomically.
pub(crate) fn write_private(dir: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let beside = dir.join(format!(".{name}"));
    // A file left by a crash could have another mode.
    let _ = fs::remove_file(&beside);
    let mut file = fs::OpenOptions::new().create_new(true).write(true).mode(0o600).open(&beside)?;
    file.write_all(bytes)?;
    fs::rename(&beside, dir.join(name))
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 100
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn an_agent_keeps_its_id_and_only_the_owner_can_read_its_key() {
        let dir = tempfile::tempdir().unwrap();
        let name = agent_id(dir.path()).unwrap();
        assert_eq!(agent_id(dir.path()).unwrap(), name);
        let given =
            Credentials { server: "s".into(), node_id: "gpu-1".into(), api_key: "k".into() };
        write_credentials(dir.path(), &given).unwrap();
        assert_eq!(read_credentials(dir.path(), "s"), Some(given));
        assert_eq!(read_credentials(dir.path(), "another"), None);
        let mode = fs::metadata(dir.path().join(CREDENTIALS)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
