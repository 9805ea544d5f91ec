//! End of the validity of a certificate.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use rustls::pki_types::CertificateDer;

const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// `notAfter` of an X.509 certificate; none for a malformed one.
pub fn not_after(certificate: &CertificateDer<'_>) -> Option<Timestamp> {
    let outer = Der(certificate.as_ref()).enter(SEQUENCE)?;
    let mut body = outer.enter(SEQUENCE)?;
    if body.0.first() == Some(&VERSION) {
        body = body.skip()?;
    }
    // Serial number, signature algorithm, issuer.
    let validity = body.skip()?.skip()?.skip()?.enter(SEQUENCE)?;
    validity.skip()?.time()
}

#[derive(Clone, Copy)]
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// Tag, content and rest.
    fn split(self) -> Option<(u8, &'a [u8], &'a [u8])> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, rest) = rest.split_first()?;
        let (length, rest) = if first < 0x80 {
            (usize::from(first), rest)
        } else {
            let count = usize::from(first & 0x7f);
            if count == 0 || count > 4 {
                return None;
            }
            let (bytes, rest) = rest.split_at_checked(count)?;
            (bytes.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)), rest)
        };
        let (content, rest) = rest.split_at_checked(length)?;
        Some((tag, content, rest))
    }

    fn enter(self, expected: u8) -> Option<Self> {
        let (tag, content, _) = self.split()?;
        (tag == expected).then_some(Self(content))
    }

    fn skip(self) -> Option<Self> {
        Some(Self(self.split()?.2))
    }

    fn time(self) -> Option<Timestamp> {
        let (tag, content, _) = self.split()?;
        let text = std::str::from_utf8(content).ok()?;
        let text = match tag {
            // RFC 5280: years from 50 belong to the 20th century.
            UTC_TIME if text.get(..2)? >= "50" => format!("19{text}"),
            UTC_TIME => format!("20{text}"),
            GENERALIZED_TIME => text.to_owned(),
            _ => return None,
        };
        let read = DateTime::strptime("%Y%m%d%H%M%SZ", &text).ok()?;
        Some(read.to_zoned(TimeZone::UTC).ok()?.timestamp())
    }
}
