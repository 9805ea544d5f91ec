//! Warning about the end of the validity of a certificate.

use jiff::{SignedDuration, Timestamp};

/// Warning about a certificate that expires within the margin.
pub(super) fn warning(
    expires: Option<Timestamp>,
    now: Timestamp,
    margin: SignedDuration,
) -> Option<String> {
    let expires = expires?;
    let left = expires.duration_since(now);
    if left > margin {
        return None;
    }
    let day = expires.strftime("%Y-%m-%d");
    Some(if left.is_negative() {
        format!("Certificate expired on {day}: clients refuse the connection. Replace its files")
    } else {
        let days = left.as_hours() / 24;
        format!("Certificate expires on {day}, in {days} days. Replace its files")
    })
}
