//! Places of secrets. A secret is read for each delivery, so that a changed one takes effect without a restart.

use std::collections::BTreeMap;

use agentaflow_api::units::Secret;
use thiserror::Error;

/// Place of a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretRef {
    File(String),
    /// Environment variable.
    Env(String),
    /// Key of the Kubernetes Secret `alert-webhook`.
    Key(String),
}

/// A secret that cannot be read. The message names its place, never its value.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SecretError {
    #[error("cannot read the file `{path}`: {problem}")]
    File { path: String, problem: String },
    #[error("the file `{0}` is empty")]
    EmptyFile(String),
    #[error("the environment variable {0} is not set")]
    Env(String),
    #[error("the Secret `alert-webhook` has no key `{0}`")]
    Key(String),
}

impl SecretRef {
    /// The one given place; none if no place is given.
    pub(crate) fn one(
        name: &str,
        file: Option<String>,
        env: Option<String>,
        key: Option<String>,
    ) -> Result<Option<Self>, String> {
        let mut given =
            [file.map(Self::File), env.map(Self::Env), key.map(Self::Key)].into_iter().flatten();
        match (given.next(), given.next()) {
            (place, None) => Ok(place),
            _ => Err(format!("use one of {name}_file, {name}_env and {name}_key")),
        }
    }
}

/// Values of the Kubernetes Secret; files and variables are read from this process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Secrets(pub BTreeMap<String, Secret>);

impl Secrets {
    /// Reads a secret, without white space around it.
    pub fn read(&self, place: &SecretRef) -> Result<Secret, SecretError> {
        let text = match place {
            SecretRef::File(path) => {
                let text = std::fs::read_to_string(path).map_err(|error| SecretError::File {
                    path: path.clone(),
                    problem: error.kind().to_string(),
                })?;
                if text.trim().is_empty() {
                    return Err(SecretError::EmptyFile(path.clone()));
                }
                text
            }
            SecretRef::Env(name) => std::env::var(name)
                .ok()
                .filter(|value| !value.trim().is_empty())
                .ok_or_else(|| SecretError::Env(name.clone()))?,
            SecretRef::Key(key) => {
                let value = self.0.get(key).filter(|value| !value.expose().trim().is_empty());
                value.ok_or_else(|| SecretError::Key(key.clone()))?.expose().to_owned()
            }
        };
        Ok(Secret(text.trim().to_owned()))
    }
}
