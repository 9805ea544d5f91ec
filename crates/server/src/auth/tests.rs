//! Auth decisions, as tables.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use agentaflow_api::account::Role;
use agentaflow_api::error::{ErrorCode, TokenProblem};
use agentaflow_api::ids::{AgentId, CredentialId, NodeId, UserId};
use agentaflow_api::units::{Secret, Stamp};

use super::*;
use crate::api_error::ApiError;
use crate::core::{DirectoryWrite, Ids, Worker};
use crate::directory::Directory;
use crate::store::{Change, CredentialKind, CredentialRow, UserRow};

const NOW: Stamp = Stamp(1_800_000_000_000);
const HOME: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

fn user(id: i64, name: &str, role: Role) -> UserRow {
    UserRow { id: UserId(id), username: name.to_owned(), role, active: true, ..UserRow::default() }
}

/// Two users and one credential of each kind, all with the secret `<kind>`.
fn directory() -> Directory {
    let row = |id, kind, secret: &str| CredentialRow {
        id: CredentialId(id),
        kind,
        hash: digest(secret),
        user_id: Some(UserId(1)),
        node_id: Some(NodeId(7)),
        agent_id: Some(AgentId(8)),
        ..CredentialRow::default()
    };
    let credentials = vec![
        row(1, CredentialKind::ApiKey, "af-key"),
        row(2, CredentialKind::Refresh, "af-refresh"),
        row(3, CredentialKind::Invite, "af-invite"),
        row(4, CredentialKind::BrowserLink, "af-link"),
        row(5, CredentialKind::Registration, "af-registration"),
        row(6, CredentialKind::Node, "af-node"),
        row(7, CredentialKind::Agent, "af-agent"),
        CredentialRow { revoked_at: Some(NOW), ..row(8, CredentialKind::ApiKey, "af-revoked") },
        CredentialRow { expires_at: Some(NOW), ..row(9, CredentialKind::ApiKey, "af-expired") },
        CredentialRow { user_id: Some(UserId(2)), ..row(10, CredentialKind::ApiKey, "af-off") },
        CredentialRow { user_id: Some(UserId(99)), ..row(11, CredentialKind::ApiKey, "af-orphan") },
    ];
    let off = UserRow { active: false, ..user(2, "off", Role::Admin) };
    Directory::new(vec![user(1, "ada", Role::Admin), off], credentials)
}

fn jwt() -> JwtKeys {
    JwtKeys::new(b"a key for tests")
}

fn run<T>(directory: &mut Directory, write: DirectoryWrite<T>, now: Stamp) -> Result<T, ApiError> {
    let mut ids = Ids::default();
    ids.0.user = directory.users.keys().max().copied().unwrap_or_default();
    ids.0.credential = directory.credentials.keys().max().copied().unwrap_or_default();
    let (changes, answer) = write(directory, &mut ids, now)?;
    for change in changes {
        match change {
            Change::User(user) => directory.put_user(*user),
            Change::Credential(row) => directory.put_credential(*row),
            Change::CredentialGone(id) => directory.drop_credential(id),
            other => panic!("{other:?}"),
        }
    }
    Ok(answer)
}

#[test]
fn each_kind_of_token_permits_only_its_own_calls() {
    let directory = directory();
    let who = |secret: &str| known(&directory, &presented(&jwt(), secret), NOW);
    assert!(
        matches!(who("af-key"), Ok(Principal::User(user, Some((CredentialId(1), None)))) if user.id == UserId(1))
    );
    assert_eq!(
        who("af-registration"),
        Ok(Principal::Worker(Worker::Token, Some((CredentialId(5), None))))
    );
    assert_eq!(who("af-node"), Ok(Principal::Worker(Worker::Node(NodeId(7)), None)));
    assert_eq!(
        who("af-agent"),
        Ok(Principal::Worker(Worker::Agent { agent: AgentId(8), node: NodeId(7) }, None))
    );
    for (secret, why) in [
        ("af-refresh", TokenProblem::Unrecognised),
        ("af-invite", TokenProblem::Unrecognised),
        ("af-link", TokenProblem::Unrecognised),
        ("af-orphan", TokenProblem::Unrecognised),
        ("af-unknown", TokenProblem::Unrecognised),
        ("", TokenProblem::Unrecognised),
        ("a.b.c", TokenProblem::Unrecognised),
        ("af-revoked", TokenProblem::Expired),
        ("af-expired", TokenProblem::Expired),
        ("af-off", TokenProblem::Inactive),
    ] {
        assert_eq!(who(secret), Err(why), "{secret}");
    }
}

#[test]
fn an_access_token_counts_for_an_hour_and_only_while_its_session_lives() {
    let mut directory = directory();
    let opened = run(&mut directory, open_session(UserId(1), HOME, jwt()).unwrap(), NOW).unwrap();
    let access = opened.tokens.access_token.expose().to_owned();
    let who = |directory: &Directory, at| known(directory, &presented(&jwt(), &access), at);
    let after = |ms| Stamp(NOW.0 + ms);
    assert!(who(&directory, NOW).is_ok());
    assert!(who(&directory, after(3_599_000)).is_ok());
    assert_eq!(who(&directory, after(3_600_000)), Err(TokenProblem::Expired));
    let other = JwtKeys::new(b"another key");
    assert!(
        matches!(presented(&other, &access), PresentedToken::Key(_)),
        "a foreign signature is no session"
    );
    run(&mut directory, end_session(&opened.tokens.refresh_token), NOW).unwrap();
    assert_eq!(who(&directory, NOW), Err(TokenProblem::Expired));
}

#[test]
fn a_token_without_a_signature_is_no_token() {
    // {"alg":"none","typ":"JWT"} . {"sub":"1","session_epoch":0,"sid":"x","iat":0,"exp":9999999999} .
    let forged = "eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0.\
        eyJzdWIiOiIxIiwic2Vzc2lvbl9lcG9jaCI6MCwic2lkIjoieCIsImlhdCI6MCwiZXhwIjo5OTk5OTk5OTk5fQ.";
    assert!(matches!(presented(&jwt(), forged), PresentedToken::Key(_)));
}

#[test]
fn a_refresh_token_is_good_once_and_a_second_use_ends_the_session() {
    let mut directory = directory();
    let first =
        run(&mut directory, open_session(UserId(1), HOME, jwt()).unwrap(), NOW).unwrap().tokens;
    let again = |directory: &mut Directory, token: &Secret| {
        run(directory, refresh(token, jwt()).unwrap(), NOW).unwrap()
    };
    let second = again(&mut directory, &first.refresh_token).unwrap().tokens;
    let third = again(&mut directory, &second.refresh_token).unwrap().tokens;
    let who = |directory: &Directory, token: &Secret| {
        known(directory, &presented(&jwt(), token.expose()), NOW).is_ok()
    };
    assert!(who(&directory, &third.access_token));
    let refusal = again(&mut directory, &first.refresh_token).unwrap_err();
    assert!(refusal.code == ErrorCode::Unauthenticated, "{refusal:?}");
    assert!(!who(&directory, &third.access_token), "a thief's tokens are void");
    assert!(again(&mut directory, &third.refresh_token).is_err());
    assert!(again(&mut directory, &Secret::from("aff_unknown")).is_err());
    assert!(again(&mut directory, &Secret::from("af-key")).is_err(), "a key is no refresh token");
}

#[test]
fn a_session_does_not_grow_without_bounds() {
    let mut directory = directory();
    let mut token = run(&mut directory, open_session(UserId(1), HOME, jwt()).unwrap(), NOW)
        .unwrap()
        .tokens
        .refresh_token;
    for _ in 0..100 {
        token = run(&mut directory, refresh(&token, jwt()).unwrap(), NOW)
            .unwrap()
            .unwrap()
            .tokens
            .refresh_token;
    }
    assert!(directory.credentials.len() < 11 + 25, "{}", directory.credentials.len());
    for _ in 0..100 {
        run(&mut directory, open_session(UserId(1), HOME, jwt()).unwrap(), NOW).unwrap();
    }
    assert!(directory.sessions.len() <= 50, "{}", directory.sessions.len());
}

#[test]
fn a_link_logs_in_once() {
    let mut directory = directory();
    assert!(run(&mut directory, use_link("af-link", jwt()).unwrap(), NOW).is_ok());
    let again = run(&mut directory, use_link("af-link", jwt()).unwrap(), NOW);
    assert_eq!(again.unwrap_err().status, 401);
    let other = run(&mut directory, use_link("af-key", jwt()).unwrap(), NOW);
    assert_eq!(other.unwrap_err().status, 401, "a key is no link");
}

#[test]
fn an_invitation_makes_one_account_with_the_invited_name_and_the_chosen_password() {
    let mut directory = directory();
    let invited = UserRow { username: "eve".to_owned(), ..UserRow::default() };
    let (_, code) = run(&mut directory, create_user(invited).unwrap(), NOW).unwrap();
    let code = code.unwrap();
    let sign_up = |name: Option<&str>| {
        register(name.map(str::to_owned), None, "hash".to_owned(), Some(&code), false)
    };
    for other in ["ADA", "mallory"] {
        let refusal = run(&mut directory, sign_up(Some(other)), NOW).unwrap_err();
        assert_eq!((refusal.status, refusal.details.field.as_deref()), (422, Some("username")));
    }
    let user = run(&mut directory, sign_up(Some("EVE")), NOW).unwrap();
    assert_eq!((user.username.as_str(), user.password_hash.as_deref()), ("eve", Some("hash")));
    assert_eq!(run(&mut directory, sign_up(None), NOW).unwrap_err().status, 403);
}

#[test]
fn an_invitation_ends_when_a_password_is_set_otherwise() {
    let mut directory = directory();
    let invited = UserRow { username: "eve".to_owned(), ..UserRow::default() };
    let (user, code) = run(&mut directory, create_user(invited).unwrap(), NOW).unwrap();
    let mail = UserPatch { email: Some("eve@example.com".to_owned()), ..UserPatch::default() };
    run(&mut directory, update_user(user.id, mail), NOW).unwrap();
    assert!(directory.credentials.values().any(|row| row.kind == CredentialKind::Invite));
    let patch = UserPatch { password_hash: Some("new".to_owned()), ..UserPatch::default() };
    run(&mut directory, update_user(user.id, patch), NOW).unwrap();
    let late = register(None, None, "hash".to_owned(), code.as_ref(), false);
    assert_eq!(run(&mut directory, late, NOW).unwrap_err().status, 403);
    assert_eq!(directory.users[&user.id].password_hash.as_deref(), Some("new"));
}

#[test]
fn sign_up_without_an_invitation_needs_an_open_door() {
    let mut directory = directory();
    let sign_up = |open| register(Some("eve".to_owned()), None, "hash".to_owned(), None, open);
    assert_eq!(run(&mut directory, sign_up(false), NOW).unwrap_err().status, 403);
    let user = run(&mut directory, sign_up(true), NOW).unwrap();
    assert_eq!((user.role, user.active), (Role::User, true));
}

#[test]
fn the_last_admin_stays_one() {
    let mut directory = directory();
    let demote = UserPatch { role: Some(Role::User), ..UserPatch::default() };
    let refusal = run(&mut directory, update_user(UserId(1), demote.clone()), NOW).unwrap_err();
    assert_eq!((refusal.status, refusal.code), (409, ErrorCode::LastAdmin));
    assert_eq!(
        run(&mut directory, deactivate_user(UserId(1)), NOW).unwrap_err().code,
        ErrorCode::LastAdmin
    );
    directory.put_user(user(3, "bob", Role::Admin));
    assert!(run(&mut directory, update_user(UserId(1), demote), NOW).is_ok());
}

#[test]
fn a_new_password_ends_all_sessions_and_leaves_keys() {
    let mut directory = directory();
    let opened = run(&mut directory, open_session(UserId(1), HOME, jwt()).unwrap(), NOW).unwrap();
    let patch = UserPatch { password_hash: Some("new".to_owned()), ..UserPatch::default() };
    run(&mut directory, update_user(UserId(1), patch), NOW).unwrap();
    let who = |secret: &str| known(&directory, &presented(&jwt(), secret), NOW);
    assert_eq!(who(opened.tokens.access_token.expose()), Err(TokenProblem::Expired));
    assert!(who("af-key").is_ok());
}

#[test]
fn a_rotated_key_has_another_secret_and_the_old_one_is_void() {
    let mut directory = directory();
    let rotated = run(
        &mut directory,
        rotate_key(CredentialKind::ApiKey, CredentialId(1), Some(UserId(1))).unwrap(),
        NOW,
    )
    .unwrap();
    let who = |secret: &str| known(&directory, &presented(&jwt(), secret), NOW);
    assert_eq!(who("af-key"), Err(TokenProblem::Unrecognised));
    assert!(who(rotated.key.unwrap().expose()).is_ok());
}

#[test]
fn keys_of_other_users_are_not_visible() {
    let mut directory = directory();
    let foreign = run(
        &mut directory,
        revoke_key(CredentialKind::ApiKey, CredentialId(1), Some(UserId(2))),
        NOW,
    );
    assert_eq!(foreign.unwrap_err().status, 404);
    let wrong_kind =
        run(&mut directory, revoke_key(CredentialKind::ApiKey, CredentialId(6), None), NOW);
    assert_eq!(wrong_kind.unwrap_err().status, 404, "a node's key is not a user's");
}

#[test]
fn a_bucket_lets_a_burst_through_and_then_its_rate() {
    let limiter = Limiter::new(2.0, 3.0);
    let start = Instant::now();
    let at = |ms| start + Duration::from_millis(ms);
    assert!((0..3).all(|_| limiter.take_at(1, at(0)).is_ok()));
    assert_eq!(limiter.take_at(1, at(0)), Err(1));
    assert!(limiter.take_at(2, at(0)).is_ok(), "others are not concerned");
    assert!(limiter.take_at(1, at(500)).is_ok());
    assert!(limiter.take_at(1, at(500)).is_err());
    assert!((0..3).all(|_| limiter.take_at(1, at(60_000)).is_ok()));
    assert!(limiter.take_at(1, at(60_000)).is_err(), "no more than the burst is saved up");
}

#[test]
fn a_flood_of_keys_neither_resets_a_used_limit_nor_locks_out_a_new_key() {
    let limiter = Limiter::new(0.001, 2.0);
    let now = Instant::now();
    assert!((0..2).all(|_| limiter.take_at(0_u32, now).is_ok()));
    assert!((1..60_000_u32).all(|key| limiter.take_at(key, now).is_ok()));
    assert!(limiter.take_at(0, now).is_err(), "fuller buckets are evicted first");
    assert!(limiter.take_at(59_999, now).is_ok(), "the last keys are kept");
    assert!(limiter.take_at(59_999, now).is_err());
}

#[test]
fn a_flood_from_one_ipv6_site_ends_at_the_limit_of_sixteen_addresses() {
    let limiter = AddressLimiter::new(0.001, 10.0);
    let now = Instant::now();
    let from = |site: u16, subnet: u16| {
        limiter.take_at(Ipv6Addr::new(0x2001, 0xdb8, site, subnet, 0, 0, 0, 1).into(), now).is_ok()
    };
    assert_eq!((0..1000).filter(|_| from(1, 0)).count(), 10);
    assert_eq!((1..1000).filter(|subnet| from(1, *subnet)).count(), 150);
    assert!(from(2, 0));
}

#[test]
fn many_addresses_guess_a_password_no_faster_than_the_limit_of_the_user() {
    let (tries, start) = (PasswordTries::new(STRANGER_TRIES), Instant::now());
    let guess =
        |host: u32, now| tries.take_at("Ada", Ipv4Addr::from(host).into(), || false, now).is_ok();
    assert_eq!((0..5000).filter(|host| guess(*host, start)).count(), 1000);
    let later = start + Duration::from_mins(10);
    let minutes = (5000..100_000).filter(|host| guess(*host, later)).count();
    assert!(minutes <= 600, "{minutes}");
    let at_home = || tries.take_at("ada", HOME, || true, later);
    assert!(at_home().is_ok(), "the address of a session is not locked out");
    assert!((0..30).any(|_| at_home().is_err()), "but it is limited");
}

#[test]
fn five_addresses_do_not_lock_out_a_user_at_another_address() {
    let (tries, start) = (PasswordTries::new(STRANGER_TRIES), Instant::now());
    for second in 0..3600 {
        let now = start + Duration::from_secs(second);
        for host in 0..5_u32 {
            let _ = tries.take_at("ada", Ipv4Addr::from(host).into(), || false, now);
        }
    }
    let later = start + Duration::from_hours(1);
    assert!(tries.take_at("ada", Ipv4Addr::from(9).into(), || false, later).is_ok());
}

#[test]
fn a_device_is_known_by_any_token_of_its_user() {
    let mut directory = directory();
    let (jwt, ada) = (jwt(), UserId(1));
    let tokens = run(&mut directory, open_session(ada, HOME, jwt.clone()).unwrap(), NOW).unwrap();
    let cookie = Device::issue(ada, &jwt).unwrap();
    let user = |token: &str| Device::holding(&directory, &jwt, token).map(|device| device.user);
    assert_eq!(user(cookie.expose()), Some(ada));
    assert_eq!(user(tokens.tokens.access_token.expose()), Some(ada));
    assert_eq!(user("af-key"), Some(ada));
    let forged = Device::issue(ada, &JwtKeys::new(b"another")).unwrap();
    assert_eq!(user(forged.expose()), None);
    let token = presented(&jwt, cookie.expose());
    assert!(known(&directory, &token, Stamp::now()).is_err(), "it permits nothing");
    assert!(has_session_from(&directory, "ADA", HOME, NOW));
    assert!(!has_session_from(&directory, "ada", Ipv4Addr::from(9).into(), NOW));
}

#[test]
fn addresses_of_one_network_count_as_one() {
    let key = |text: &str| networks(text.parse().unwrap()).next().unwrap().key;
    assert_eq!(key("2001:db8::1"), key("2001:db8::ffff:1"));
    assert_ne!(key("2001:db8::1"), key("2001:db8:0:1::1"));
    assert_eq!(key("10.0.0.1"), key("::ffff:10.0.0.1"));
    assert_ne!(key("10.0.0.1"), key("10.0.0.2"));
}

#[test]
fn only_names_of_this_server_are_taken_as_host() {
    let site = |listen: &str| Site {
        listen: listen.parse().unwrap(),
        certificates: None,
        public_hosts: vec!["gpu.example.com".to_owned(), "other.example.com:8443".to_owned()],
    };
    let (local, open) = (site("127.0.0.1:8000"), site("0.0.0.0:8000"));
    for (host, here, everywhere) in [
        ("127.0.0.1:8000", true, true),
        ("127.0.0.1", true, true),
        ("localhost:8000", true, true),
        ("LOCALHOST:8000", true, true),
        ("[::1]:8000", true, true),
        ("localhost:8001", false, false),
        ("localhost:80000", false, false),
        ("10.1.2.3:8000", false, true),
        ("gpu.example.com", true, true),
        ("gpu.example.com:443", true, true),
        ("other.example.com:8443", true, true),
        ("other.example.com", false, false),
        ("evil.example.com:8000", false, false),
        ("localhost.evil.example.com:8000", false, false),
        ("127.0.0.1.evil.example.com:8000", false, false),
        ("", false, false),
    ] {
        assert_eq!(check_host(&local, Some(host)).is_ok(), here, "{host} here");
        assert_eq!(check_host(&open, Some(host)).is_ok(), everywhere, "{host} everywhere");
    }
    assert!(check_host(&local, None).is_err());
}

#[test]
fn only_pages_of_this_server_are_taken_as_origin() {
    let site = Site {
        listen: "127.0.0.1:8000".parse().unwrap(),
        public_hosts: Vec::new(),
        certificates: None,
    };
    let host = Some("localhost:8000");
    for (origin, fits) in [
        (Some("http://localhost:8000"), true),
        (Some("https://localhost:8000"), true),
        (Some("http://LOCALHOST:8000"), true),
        (Some("http://127.0.0.1:8000"), false),
        (Some("http://localhost:8001"), false),
        (Some("http://evil.example.com"), false),
        (Some("http://localhost:8000.evil.example.com"), false),
        (Some("null"), false),
        (Some("file://localhost:8000"), false),
        (None, false),
    ] {
        assert_eq!(check_origin(&site, origin, host).is_ok(), fits, "{origin:?}");
    }
    let evil = Some("evil.example.com:8000");
    assert!(check_origin(&site, Some("http://evil.example.com:8000"), evil).is_err());
}

#[test]
fn cookies_are_found_by_their_whole_name() {
    let header = "a=1; agentaflow_access_8000=token; agentaflow_access_80=other; empty=";
    assert_eq!(cookie(header, "agentaflow_access_8000"), Some("token"));
    assert_eq!(cookie(header, "agentaflow_access"), None);
    assert_eq!(cookie(header, "empty"), None);
    let set = set_cookie("name", "value", "/", 60, true);
    assert_eq!(set, "name=value; Path=/; Max-Age=60; HttpOnly; SameSite=Strict; Secure");
    assert!(set_cookie("name", "", "/", 60, false).contains("Max-Age=0"));
}

#[test]
fn the_use_of_a_key_is_noted_at_most_once_a_minute() {
    let auth = Auth::new(jwt(), (1, 1));
    let after = |ms| Stamp(NOW.0 + ms);
    assert!(auth.should_record_use(CredentialId(1), None, NOW));
    assert!(!auth.should_record_use(CredentialId(1), None, after(59_000)));
    assert!(auth.should_record_use(CredentialId(1), None, after(60_000)));
    assert!(!auth.should_record_use(CredentialId(2), Some(NOW), after(59_000)));
}

#[tokio::test]
async fn a_password_of_an_unknown_user_is_wrong() {
    let passwords = Passwords::default();
    let secret = Secret::from("correct horse battery");
    let hash = passwords.hash(&secret).await.unwrap();
    assert!(hash.starts_with("$argon2id$"));
    assert!(passwords.verify(&secret, Some(hash.clone())).await.unwrap());
    assert!(!passwords.verify(&Secret::from("wrong horse"), Some(hash)).await.unwrap());
    assert!(!passwords.verify(&secret, None).await.unwrap());
    assert!(!passwords.verify(&Secret::from("no user has this password"), None).await.unwrap());
    assert!(!passwords.verify(&secret, Some("not a hash".to_owned())).await.unwrap());
}

#[test]
fn secrets_do_not_show_in_debug_output() {
    let minted = mint(CredentialKind::ApiKey, "test").unwrap();
    let shown = format!("{minted:?} {:?}", jwt());
    assert!(!shown.contains(minted.secret.expose()));
    assert_eq!(minted.secret.expose().len(), 4 + 43);
}
