//! Common name of a certificate.

/// `2.5.4.3` in DER.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_ID: u8 = 0x06;

/// Common name in the subject of a certificate, which is the content of a DER sequence.
pub(super) fn common_name(subject: &[u8]) -> Option<&str> {
    let mut rest = subject;
    while !rest.is_empty() {
        let (set, after) = element(rest, Some(SET))?;
        rest = after;
        let (pair, _) = element(set, Some(SEQUENCE))?;
        let (kind, value) = element(pair, Some(OBJECT_ID))?;
        if kind == COMMON_NAME {
            return std::str::from_utf8(element(value, None)?.0).ok();
        }
    }
    None
}

/// Content of the first DER element, if it has the tag, and the bytes after it. Names have at most 64 KiB.
fn element(bytes: &[u8], tag: Option<u8>) -> Option<(&[u8], &[u8])> {
    let (first, rest) = bytes.split_first()?;
    if tag.is_some_and(|tag| tag != *first) {
        return None;
    }
    let (length, rest) = match *rest {
        [short @ 0..=0x7f, ref rest @ ..] => (usize::from(short), rest),
        // 0x80 is the indefinite length, which DER does not have.
        [0x81, length, ref rest @ ..] => (usize::from(length), rest),
        [0x82, high, low, ref rest @ ..] => (usize::from(high) << 8 | usize::from(low), rest),
        _ => return None,
    };
    rest.split_at_checked(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `O=team, CN=front-proxy-client`, as openssl writes it.
    fn subject() -> Vec<u8> {
        let attribute = |kind: u8, value: &str| {
            let mut pair = vec![OBJECT_ID, 3, 0x55, 0x04, kind, 0x0c, value.len() as u8];
            pair.extend(value.as_bytes());
            let mut set = vec![SET, pair.len() as u8 + 2, SEQUENCE, pair.len() as u8];
            set.extend(pair);
            set
        };
        [attribute(0x0a, "team"), attribute(0x03, "front-proxy-client")].concat()
    }

    #[test]
    fn the_common_name_is_found_behind_other_attributes() {
        assert_eq!(common_name(&subject()), Some("front-proxy-client"));
    }

    #[test]
    fn a_damaged_name_is_no_name() {
        let whole = subject();
        for end in 0..whole.len() {
            assert_eq!(common_name(&whole[..end]), None, "{end} bytes");
        }
        assert_eq!(common_name(&[SET, 0x84, 0xff, 0xff, 0xff, 0xff]), None);
    }
}
