//! Login, logout, keys, invitations, and the files of the first start.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};

use agentaflow_api::queue::QueueSpec;
use agentaflow_server::core::Ids;
use agentaflow_server::directory::Directory;
use agentaflow_server::store::{Change, QueueRow};

use crate::site::Site;

#[tokio::test]
async fn a_session_opens_goes_on_and_ends() {
    let site = Site::new().await;
    let access = site.user("ada", "user").await;
    assert_eq!(site.get(&access, "/auth/me").await.expect(200)["username"], "ada");
    let login = json!({"username": "ADA", "password": "correct horse"});
    let first = site.post("", "/auth/login", login).await.expect(200);
    let second =
        site.post("", "/auth/refresh", json!({"refresh_token": first["refresh_token"]})).await;
    let second = second.expect(200);
    let token = second["access_token"].as_str().unwrap();
    site.get(token, "/auth/me").await.expect(200);
    site.post("", "/auth/refresh", json!({"refresh_token": first["refresh_token"]}))
        .await
        .refused(401);
    site.get(token, "/auth/me").await.refused(401);
    let access = {
        let login = json!({"username": "ada", "password": "correct horse"});
        site.post("", "/auth/login", login).await.expect(200)["access_token"].clone()
    };
    let access = access.as_str().unwrap();
    site.post(access, "/auth/logout", Value::Null).await.expect(204);
    site.get(access, "/auth/me").await.refused(401);
    site.post("", "/auth/logout", Value::Null).await.refused(401);
    site.post(site.admin(), "/auth/logout", Value::Null).await.refused(409);
}

#[tokio::test]
async fn a_wrong_password_and_a_wrong_name_get_the_same_words_and_then_a_pause() {
    let site = Site::new().await;
    site.user("ada", "user").await;
    let mut words = Vec::new();
    for (name, password) in [("ada", "wrong horse"), ("nobody", "correct horse"), ("ada", "x")] {
        let login = json!({"username": name, "password": password});
        words.push(site.post("", "/auth/login", login).await.refused(401)["detail"].clone());
    }
    assert!(words.iter().all(|output| *output == words[0]), "{words:?}");
    let mut paused = false;
    for _ in 0..30 {
        let login = json!({"username": "ada", "password": "y"});
        let reply = site.post("", "/auth/login", login).await;
        paused |= reply.status == 429 && reply.headers.contains_key("retry-after");
    }
    assert!(paused, "guessing is slowed down");
    site.get(site.admin(), "/auth/me").await.expect(200);
}

#[tokio::test]
async fn sign_up_is_closed_until_an_admin_invites() {
    let site = Site::new().await;
    let new = json!({"username": "eve", "password": "correct horse"});
    site.post("", "/auth/register", new.clone()).await.refused(403);
    let invited = site.post(site.admin(), "/users", json!({"username": "eve"})).await.expect(201);
    let code = invited["invite"].as_str().unwrap();
    let new = json!({"password": "correct horse", "invite": code});
    site.post("", "/auth/register", new.clone()).await.expect(201);
    site.post("", "/auth/register", new).await.refused(403);
    let login = json!({"username": "eve", "password": "correct horse"});
    site.post("", "/auth/login", login).await.expect(200);
    let shown = site.get(site.admin(), &format!("/users/{}", invited["id"])).await.expect(200);
    assert!(shown.get("invite").is_none());
}

#[tokio::test]
async fn open_sign_up_makes_plain_users() {
    let site = Site::with(|settings| settings.open_signup = true).await;
    let new = json!({"username": "eve", "password": "correct horse", "role": "admin"});
    assert_eq!(site.post("", "/auth/register", new.clone()).await.expect(201)["role"], "user");
    assert_eq!(site.post("", "/auth/register", new).await.refused(409)["code"], "name_taken");
}

/// Queues of earlier versions list names without users.
#[tokio::test]
async fn a_sign_up_with_a_name_that_a_queue_lists_is_refused() {
    let site = Site::new().await;
    let spec = QueueSpec { name: "lab".into(), users: vec!["Eve".into()], ..QueueSpec::default() };
    let row = QueueRow { spec, ..QueueRow::default() };
    let write = move |_: &Directory, _: &mut Ids, _| Ok((vec![Change::Queue(Box::new(row))], ()));
    site.running.core.write(Box::new(write)).await.unwrap();
    let site = site.again_with(|settings| settings.open_signup = true).await;
    let new = |name: &str| json!({"username": name, "password": "correct horse"});
    let refusal = site.post("", "/auth/register", new("eve")).await.refused(409);
    assert_eq!(refusal["code"], "name_taken", "{refusal}");
    site.post("", "/auth/register", new("ada")).await.expect(201);
}

#[tokio::test]
async fn keys_are_made_listed_rotated_and_revoked() {
    let site = Site::new().await;
    let access = site.user("ada", "user").await;
    let key = site.post(&access, "/auth/api-keys", json!({"name": "laptop"})).await.expect(201);
    let secret = key["key"].as_str().unwrap();
    assert!(secret.starts_with("aft_"));
    site.get(secret, "/auth/me").await.expect(200);
    let listed = site.get(&access, "/auth/api-keys").await.expect(200);
    assert!(listed[0].get("key").is_none() && listed.as_array().unwrap().len() == 1);
    let path = format!("/auth/api-keys/{}", key["id"]);
    let rotated = site.post(secret, &format!("{path}/rotate"), Value::Null).await.expect(200);
    site.get(secret, "/auth/me").await.refused(401);
    let secret = rotated["key"].as_str().unwrap();
    site.get(secret, "/auth/me").await.expect(200);
    site.call(&access, "DELETE", &path, Value::Null).await.expect(200);
    site.get(secret, "/auth/me").await.refused(401);
    let other = site.user("bob", "user").await;
    site.call(&other, "DELETE", &path, Value::Null).await.refused(404);
}

#[tokio::test]
async fn registration_tokens_are_an_admins_and_work_until_revoked() {
    let site = Site::new().await;
    let user = site.user("ada", "user").await;
    site.post(&user, "/registration-tokens", json!({"name": "rack"})).await.refused(403);
    let token =
        site.post(site.admin(), "/registration-tokens", json!({"name": "rack"})).await.expect(201);
    let secret = token["key"].as_str().unwrap();
    let node = json!({"node_name": "n"});
    site.post(secret, "/gpu-workers/nodes/register", node.clone()).await.expect(200);
    let path = format!("/registration-tokens/{}", token["id"]);
    site.call(site.admin(), "DELETE", &path, Value::Null).await.expect(200);
    site.post(secret, "/gpu-workers/nodes/register", node).await.refused(401);
    let listed = site.get(site.admin(), "/registration-tokens").await.expect(200);
    assert_eq!(listed.as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn files_of_the_first_start_are_private_kept_and_repaired() {
    let site = Site::new().await;
    let data = site.folder.path().join("data");
    let mode =
        |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&data), 0o700);
    for name in ["admin-token", "registration-token", "jwt-key", "secret-key"] {
        assert_eq!(mode(&data.join(name)), 0o600, "{name}");
    }
    let admin = site.admin().to_owned();
    assert_eq!(std::fs::read_to_string(data.join("admin-token")).unwrap().trim(), admin);
    let site = site.again().await;
    assert_eq!(site.admin(), admin, "kept over a restart");

    let keys = site.get(&admin, "/auth/api-keys").await.expect(200);
    let rotate = format!("/auth/api-keys/{}/rotate", keys[0]["id"]);
    let rotated = site.post(&admin, &rotate, Value::Null).await.expect(200);
    let rotated = rotated["key"].as_str().unwrap();
    assert_eq!(std::fs::read_to_string(data.join("admin-token")).unwrap().trim(), rotated);

    std::fs::remove_file(data.join("admin-token")).unwrap();
    let site = site.again().await;
    assert_ne!(site.admin(), rotated);
    site.get(site.admin(), "/auth/me").await.expect(200);
    site.get(rotated, "/auth/me").await.refused(401);
    assert_eq!(std::fs::read_to_string(data.join("admin-token")).unwrap().trim(), site.admin());
}

#[tokio::test]
async fn users_change_their_mail_and_password_and_nothing_else_about_themselves() {
    let site = Site::new().await;
    let access = site.user("ada", "user").await;
    let me = |body: Value| site.call(&access, "PUT", "/auth/me", body);
    assert_eq!(
        me(json!({"email": "ada@example.com"})).await.expect(200)["email"],
        "ada@example.com"
    );
    me(json!({"role": "admin"})).await.refused(403);
    me(json!({"spending_limit": 5})).await.refused(403);
    me(json!({"password": "another horse"})).await.refused(422);
    me(json!({"password": "another horse", "old_password": "wrong horse"})).await.refused(422);
    me(json!({"password": "another horse", "old_password": "correct horse"})).await.expect(200);
    site.get(&access, "/auth/me").await.refused(401);
    let login = json!({"username": "ada", "password": "another horse"});
    site.post("", "/auth/login", login).await.expect(200);
}

#[tokio::test]
async fn a_deactivated_user_loses_access_at_once() {
    let site = Site::new().await;
    let access = site.user("ada", "user").await;
    let key = site.post(&access, "/auth/api-keys", json!({"name": "k"})).await.expect(201);
    let id = site.get(&access, "/auth/me").await.expect(200)["id"].clone();
    site.call(site.admin(), "DELETE", &format!("/users/{id}"), Value::Null).await.expect(200);
    site.get(&access, "/auth/me").await.refused(401);
    site.get(key["key"].as_str().unwrap(), "/auth/me").await.refused(401);
    let login = json!({"username": "ada", "password": "correct horse"});
    site.post("", "/auth/login", login).await.refused(401);
    let last = site.call(site.admin(), "DELETE", "/users/1", Value::Null).await.refused(409);
    assert_eq!(last["code"], "last_admin");
}

#[tokio::test]
async fn a_rate_limited_account_gets_a_delay_and_other_accounts_continue() {
    let site = Site::with(|settings| settings.rate = (1, 5)).await;
    let access = site.user("ada", "user").await;
    let mut statuses = Vec::new();
    for _ in 0..10 {
        statuses.push(site.get(&access, "/auth/me").await.status);
    }
    assert!(statuses.contains(&200) && statuses.contains(&429), "{statuses:?}");
    let node = site.node("n").await;
    let path = format!("/gpu-workers/nodes/{}/heartbeat", node["id"]);
    for _ in 0..20 {
        site.post(node["api_key"].as_str().unwrap(), &path, json!({})).await.expect(200);
    }
}
