//! Image names as registries and kubelets accept them. The API server checks only surrounding whitespace.

use super::names::short;
use super::{BuildError, refuse};

/// Validates an image name.
pub(super) fn image(flag: &'static str, text: &str) -> Result<String, BuildError> {
    if is_image(text) {
        return Ok(text.to_owned());
    }
    let hint = "use a form such as pytorch/pytorch:2.8.0 or registry.example.com/team/train:v1";
    refuse(flag, format!("`{}` is not an image: {hint}", short(text)))
}

/// `[HOST[:PORT]/]PATH[:TAG][@DIGEST]`.
fn is_image(text: &str) -> bool {
    let (named, digest) = text.split_once('@').map_or((text, None), |(n, d)| (n, Some(d)));
    let last = named.rfind('/').map_or(0, |at| at + 1);
    let (path, tag) = match named[last..].split_once(':') {
        Some((name, tag)) => (&named[..last + name.len()], Some(tag)),
        None => (named, None),
    };
    let (host, path) = match path.split_once('/') {
        Some((first, rest)) if is_registry_host(first) => (Some(first), rest),
        _ => (None, path),
    };
    path.len() <= 255
        && path.split('/').all(is_part)
        && host.is_none_or(is_host)
        && tag.is_none_or(is_tag)
        && digest.is_none_or(is_digest)
}

/// True if clients treat the first part of a path as a registry.
fn is_registry_host(text: &str) -> bool {
    text == "localhost" || text.contains(['.', ':']) || text.contains(|c: char| c.is_uppercase())
}

fn is_host(text: &str) -> bool {
    let (name, port) = match text.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, port),
        _ => (text, "0"),
    };
    let is_label = |label: &str| {
        let inner = |c: char| c.is_ascii_alphanumeric() || c == '-';
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.chars().all(inner)
    };
    let address = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let is_known = match address {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => name.split('.').all(is_label),
    };
    is_known && port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok()
}

/// Lower-case letters and digits, separated by a dot, one or two underscores, or dashes.
fn is_part(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_separator =
        |run: &str| matches!(run, "" | "." | "_" | "__") || run.bytes().all(|byte| byte == b'-');
    text.starts_with(is_plain) && text.ends_with(is_plain) && text.split(is_plain).all(is_separator)
}

fn is_tag(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    !text.is_empty()
        && text.len() <= 128
        && !text.starts_with(['.', '-'])
        && text.chars().all(inner)
}

fn is_digest(text: &str) -> bool {
    let by = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '.' | '_' | '-');
    text.split_once(':').is_some_and(|(algorithm, hash)| {
        algorithm.starts_with(|c: char| c.is_ascii_alphabetic())
            && algorithm.chars().all(by)
            && hash.len() >= 32
            && hash.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_checked_like_a_kubelet() {
        let digest = format!("train@sha256:{}", "0a".repeat(32));
        for text in [
            "train",
            "train:v1",
            "agent_bus:latest",
            "pytorch/pytorch:2.8.0-cuda12.9",
            "nvcr.io/nvidia/k8s-device-plugin:v0.14.5",
            "localhost:5000/a/b__c/d--e.f:1",
            "Registry/a:1",
            "[::1]:5000/a",
            &digest,
            &digest.replace('@', ":v1@"),
        ] {
            assert!(is_image(text), "{text}");
        }
        for text in [
            "",
            " ",
            "a b",
            "Train:v1",
            "a/B:1",
            "a:b:c",
            "a:",
            ":a",
            "a/",
            "/a",
            "a//b",
            "a:-1",
            "a@sha256:0",
            "a@",
            "a@b@c",
            "-a",
            "a-",
            "a..b",
            "a___b",
            "a.-b",
            "http://a/b",
            "host.example:x/a",
            "host.example:99999/a",
            "ä",
            "[::g]/a",
            &format!("a:{}", "1".repeat(129)),
        ] {
            assert!(!is_image(text), "{text}");
        }
    }
}
