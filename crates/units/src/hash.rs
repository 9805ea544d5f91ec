//! Stable hashes for names and labels.

use std::hash::Hasher as _;

use fnv::FnvHasher;

/// FNV-1a. Stable across releases: names of existing objects depend on it.
pub fn hash64(bytes: &[u8]) -> u64 {
    let mut hasher = FnvHasher::default();
    hasher.write(bytes);
    hasher.finish()
}

/// [`hash64`], folded to 32 bits.
pub fn hash32(text: &str) -> u32 {
    let hash = hash64(text.as_bytes());
    (hash ^ (hash >> 32)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_match_earlier_releases() {
        assert_eq!(hash64(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(hash64(b"foobar"), 0x8594_4171_f739_67e8);
        assert_eq!(hash32("foobar"), 0x8594_4171 ^ 0xf739_67e8);
    }
}
