//! Lists without spare capacity: a decoded list starts with four slots, three too many for most pods.

use serde::{Deserialize, Deserializer};

use super::Volume;

/// Decodes an optional list and shrinks it.
pub(super) fn list<'de, D, T>(deserializer: D) -> Result<Option<Vec<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    let list = Option::<Vec<T>>::deserialize(deserializer)?;
    Ok(list.map(|mut list| {
        list.shrink_to_fit();
        list
    }))
}

/// Decodes a required list and shrinks it.
pub(super) fn all<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    list(deserializer).map(Option::unwrap_or_default)
}

/// Decodes volumes and keeps the ones that constrain the node: every pod also has a volume with its service account token.
pub(super) fn volumes<'de, D>(deserializer: D) -> Result<Option<Vec<Volume>>, D::Error>
where
    D: Deserializer<'de>,
{
    let volumes = Option::<Vec<Volume>>::deserialize(deserializer)?;
    let volumes = volumes.map(|mut volumes| {
        volumes.retain(Volume::binds);
        volumes.shrink_to_fit();
        volumes
    });
    Ok(volumes.filter(|volumes| !volumes.is_empty()))
}
