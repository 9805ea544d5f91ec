use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use super::*;

fn ring() -> (tempfile::TempDir, Keyring) {
    let dir = tempfile::tempdir().unwrap();
    let ring = Keyring::load(&dir.path().join("secret-key")).unwrap();
    (dir, ring)
}

#[test]
fn a_sealed_secret_opens_only_for_its_purpose() {
    let (_dir, ring) = ring();
    let sealed = ring.seal("job:17", b"hunter2").unwrap();
    assert_eq!(ring.open("job:17", &sealed).unwrap().as_slice(), b"hunter2");
    assert!(matches!(ring.open("job:18", &sealed), Err(SecretError::Broken)));
    assert_ne!(sealed, ring.seal("job:17", b"hunter2").unwrap());
}

#[test]
fn a_changed_text_does_not_open_and_says_nothing_of_its_contents() {
    let (_dir, ring) = ring();
    let sealed = ring.seal("a", b"hunter2").unwrap();
    for at in 0..sealed.len() {
        let mut bytes = sealed.clone().into_bytes();
        bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
        let error = ring.open("a", &String::from_utf8(bytes).unwrap()).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"));
    }
    for text in ["", "v1", "v1.", "v1..", "v1.x.", "v2.x.AAAA", "v1.\u{1F980}.=="] {
        assert!(ring.open("a", text).is_err(), "{text}");
    }
}

#[test]
fn old_keys_still_open_after_a_rotation_and_other_servers_learn_the_new_one() {
    let (dir, ring) = ring();
    let other = Keyring::load(&dir.path().join("secret-key")).unwrap();
    let old = ring.seal("a", b"hunter2").unwrap();
    ring.rotate().unwrap();
    assert!(!ring.is_current(&old));
    let new = ring.reseal("a", &old).unwrap();
    assert!(ring.is_current(&new));
    for (ring, sealed) in [(&ring, &old), (&ring, &new), (&other, &new)] {
        assert_eq!(ring.open("a", sealed).unwrap().as_slice(), b"hunter2");
    }
    let (_dir, unrelated) = self::ring();
    assert!(matches!(unrelated.open("a", &new), Err(SecretError::UnknownKey(_))));
}

#[test]
fn keys_that_nothing_is_sealed_with_are_forgotten_and_the_present_one_never() {
    let (dir, ring) = ring();
    let path = dir.path().join("secret-key");
    let kept = ring.seal("a", b"one").unwrap();
    ring.rotate().unwrap();
    let lost = ring.seal("a", b"two").unwrap();
    ring.rotate().unwrap();
    assert_eq!(ring.forget_unused([kept.as_str()].into_iter()).unwrap(), 1);
    assert_eq!(ring.open("a", &kept).unwrap().as_slice(), b"one");
    assert!(matches!(ring.open("a", &lost), Err(SecretError::UnknownKey(_))));
    let name = kept.split('.').nth(1).unwrap();
    assert_eq!(ring.forget_unused([name].into_iter()).unwrap(), 0);
    assert_eq!(ring.forget_unused(std::iter::empty()).unwrap(), 1);
    let now = ring.seal("a", b"three").unwrap();
    let again = Keyring::load(&path).unwrap();
    assert_eq!(again.open("a", &now).unwrap().as_slice(), b"three");
}

#[test]
fn a_key_file_without_room_refuses_a_rotation_in_words_and_is_still_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("secret-key");
    let mut keys = vec![Key::random().unwrap()];
    while text_of(&keys).len() <= MOST_KEY_BYTES {
        keys.push(Key::random().unwrap());
    }
    write_secret_file(&path, text_of(&keys).as_bytes()).unwrap();
    let ring = Keyring::load(&path).unwrap();
    assert!(matches!(ring.rotate(), Err(SecretError::Full { .. })));
    let sealed = ring.seal("a", b"x").unwrap();
    assert_eq!(Keyring::load(&path).unwrap().open("a", &sealed).unwrap().as_slice(), b"x");
}

#[test]
fn a_file_of_another_user_is_refused_with_the_remedy() {
    let refused = ours(Path::new("/d/secret-key"), 1000, 0);
    assert!(matches!(refused, Err(SecretError::NotOurs { owner: 1000, us: 0, .. })));
    assert!(ours(Path::new("x"), 7, 7).is_ok());
}

#[test]
fn a_key_file_readable_by_other_users_is_rejected() {
    let (dir, _ring) = ring();
    let path = dir.path().join("secret-key");
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    std::fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
    let refused = Keyring::load(&path);
    assert!(matches!(refused, Err(SecretError::Exposed { mode: 0o640, .. })));
}

#[test]
fn a_key_file_with_anything_else_is_refused_by_line_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("secret-key");
    for text in ["", "hello", "a c2hvcnQ", "../x AAAA"] {
        write_secret_file(&path, text.as_bytes()).unwrap();
        let error = Keyring::load(&path).unwrap_err().to_string();
        assert!(error.starts_with("line 1 of the key file "), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    }
}

#[test]
fn secret_files_are_replaced_whole_or_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("admin-token");
    assert!(read_secret_file(&path).unwrap().is_none());
    assert!(create_secret_file(&path, b"one\n").unwrap());
    assert!(!create_secret_file(&path, b"two\n").unwrap());
    assert_eq!(read_secret_file(&path).unwrap().unwrap().as_str(), "one");
    write_secret_file(&path, b"three\n").unwrap();
    assert_eq!(read_secret_file(&path).unwrap().unwrap().as_str(), "three");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left behind");
}
