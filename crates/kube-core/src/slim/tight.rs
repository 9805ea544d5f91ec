//! Lists without room to spare: one that is read grows to four places at once, which for most pods is three too many.

use serde::{Deserialize, Deserializer};

use super::Volume;

/// Reads a list, or none, and gives back what it does not need.
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

/// The same for a list that is always there.
pub(super) fn all<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    list(deserializer).map(Option::unwrap_or_default)
}

/// The same for volumes, of which only those are kept that have a say in where the pod can run: every pod has one
/// with the token of its service account.
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
