//! The dashboard of a cluster: readers see and change what Kubernetes lets them see and change.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use http::{HeaderMap, Request};
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

use crate::PROGRAM;
use crate::kube_hpa::insecure_client;
use crate::kube_permissions::kubeconfig_of_role;
use crate::plans::{WorkloadPlan, in_phase, workload};
use crate::skip::skip;
use crate::support::{
    NodePlan, PodPlan, Program, Scheduler, Share, free_port, repository, wait_for,
};

/// Rights of a viewer of a namespace.
const VIEW: &str = "[{apiGroups: [agentaflow.io], resources: [gpuworkloads], verbs: [get, list]}, \
                    {apiGroups: [''], resources: [pods, events], verbs: [get, list]}]";
/// Rights of an editor of a namespace.
const EDIT: &str = "[{apiGroups: [agentaflow.io], resources: [gpuworkloads], verbs: [get, list, delete]}, \
                    {apiGroups: [''], resources: [pods, events], verbs: [get, list]}]";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn two_accounts_see_the_jobs_of_their_own_namespaces_and_of_no_other() {
    let lab = Lab::start().await;
    let (ada, ben) =
        (lab.reader("ada", &lab.own, VIEW).await, lab.reader("ben", &lab.other, EDIT).await);
    let stream = ada.follow("/events").await;
    let (alpha, beta) =
        (lab.workload(&lab.own, "alpha").await, lab.workload(&lab.other, "beta").await);
    let mut pod = lab.share.one_gpu("beta-pod").object();
    pod["metadata"]["namespace"] = json!(lab.other);
    lab.share.apply_object(pod).await;

    ada.sees(&["alpha"]).await;
    ben.sees(&["beta", "beta-pod"]).await;
    for (reader, own, foreign) in [(&ada, &alpha, &beta), (&ben, &beta, &alpha)] {
        let (own, foreign) = (reader.id_of(own).await, lab.admin.id_of(foreign).await);
        for call in ["", "/explain", "/events", "/logs"] {
            let path = format!("/gpu-workers/jobs/{foreign}{call}");
            assert_eq!(reader.get(&path).await.status, 404, "{call}");
        }
        assert_eq!(reader.post(&format!("/gpu-workers/jobs/{foreign}/cancel")).await.status, 404);
        for call in ["", "/explain", "/events"] {
            let path = format!("/gpu-workers/jobs/{own}{call}");
            let answer = reader.get(&path).await;
            assert_eq!(answer.status, 200, "{call}: {}", answer.body);
        }
        // Neither account may read output.
        let answer = reader.get(&format!("/gpu-workers/jobs/{own}/logs")).await;
        assert_eq!(answer.status, 403, "{}", answer.body);
    }
    let past = ada.get("/events/past").await.json();
    let about: BTreeSet<&str> =
        past.as_array().expect("events").iter().filter_map(|event| event["job"].as_str()).collect();
    assert_eq!(about, BTreeSet::from([format!("{}/alpha", lab.own).as_str()]));
    wait_for("an event of the stream", async || {
        let text = stream.lock().expect("text").clone();
        if text.contains("alpha") { Ok(()) } else { Err(text) }
    })
    .await;
    assert!(!stream.lock().expect("text").contains("beta"), "an event of another namespace");

    assert_eq!(ada.get("/gpu-workers/nodes").await.status, 403);
    assert_eq!(ada.get("/queues").await.status, 403);
    let nodes = lab.admin.get("/gpu-workers/nodes?limit=1000").await.json();
    let names = nodes.as_array().expect("nodes").iter().map(|node| &node["node_name"]);
    assert!(names.into_iter().any(|name| *name == lab.node.as_str()), "{nodes}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn a_reader_changes_only_objects_that_the_own_token_may_change() {
    let lab = Lab::start().await;
    let (ada, ben) =
        (lab.reader("ada", &lab.own, VIEW).await, lab.reader("ben", &lab.other, EDIT).await);
    lab.workload(&lab.own, "alpha").await;
    lab.workload(&lab.other, "beta").await;
    let (alpha, beta) = (ada.id_of("alpha").await, ben.id_of("beta").await);
    let denied = ada.post(&format!("/gpu-workers/jobs/{alpha}/cancel")).await;
    assert_eq!(denied.status, 403, "{}", denied.body);
    let cancelled = ben.post(&format!("/gpu-workers/jobs/{beta}/cancel")).await;
    assert_eq!(cancelled.status, 200, "{}", cancelled.body);
    ben.sees(&[]).await;
    assert!(workload(&lab.share, "alpha").await.is_some(), "it is unchanged");

    // A right that was taken away ends within seconds.
    let path =
        format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings/ada", lab.own);
    assert_eq!(lab.share.request("DELETE", &path, None).await.status, 200);
    ada.sees(&[]).await;
    assert_eq!(ada.get(&format!("/gpu-workers/jobs/{alpha}")).await.status, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn a_token_becomes_a_cookie_that_scripts_and_other_sites_cannot_use() {
    let lab = Lab::start().await;
    let ada = lab.reader("ada", &lab.own, VIEW).await;
    let stranger = Reader { client: lab.client.clone(), headers: HeaderMap::new() };
    assert_eq!(stranger.get("/gpu-workers/jobs").await.status, 401);
    assert_eq!(stranger.get("/version").await.json()["login"], "token");
    let page = stranger.get("/").await;
    assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
    if page.status == 200 {
        let policy = page.header("content-security-policy").unwrap_or_default();
        assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    } else {
        assert!(page.body.contains("built without the dashboard"), "{}", page.body);
    }

    let wish = |token: &str| json!({"token": token}).to_string();
    let same_site = [
        ("origin", "https://localhost"),
        ("host", "localhost"),
        ("content-type", "application/json"),
    ];
    let other_site = [
        ("origin", "https://example.com"),
        ("host", "localhost"),
        ("content-type", "application/json"),
    ];
    let login = async |headers: &[(&'static str, &str)], token: &str| {
        stranger.send("POST", "/auth/login", headers, wish(token)).await
    };
    assert_eq!(login(&same_site, "not-a-token").await.status, 401);
    assert_eq!(login(&other_site, ada.token()).await.status, 403);
    let answer = login(&same_site, ada.token()).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let cookie = answer.header("set-cookie").expect("a cookie");
    for attribute in ["HttpOnly", "Secure", "SameSite=Strict"] {
        assert!(cookie.contains(attribute), "{attribute}: {cookie}");
    }
    let cookie = cookie.split(';').next().expect("a pair");
    let me = stranger.send("GET", "/auth/me", &[("cookie", cookie)], String::new()).await;
    let name = format!("system:serviceaccount:{}:ada", lab.share.namespace);
    assert_eq!(me.json()["username"], name.as_str());
    let logout = async |headers: &[(&'static str, &str)]| {
        stranger.send("POST", "/auth/logout", headers, String::new()).await.status
    };
    assert_eq!(
        logout(&[("cookie", cookie), ("origin", "https://example.com"), ("host", "localhost")])
            .await,
        403
    );
    assert_eq!(logout(&[("cookie", cookie), ("host", "localhost")]).await, 403);
    assert_eq!(
        logout(&[("cookie", cookie), ("origin", "https://localhost"), ("host", "localhost")]).await,
        204
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn a_standby_replica_shows_the_dashboard_of_the_leader() {
    let lab = Lab::start().await;
    let ada = lab.reader("ada", &lab.own, VIEW).await;
    lab.workload(&lab.own, "alpha").await;
    let id = ada.id_of("alpha").await;
    let port = free_port();
    let address = format!("127.0.0.1:{port}");
    let kubeconfig = lab.share.cluster.kubeconfig.clone();
    let extra = ["--dashboard", &address];
    let mut standby = Scheduler::launch(PROGRAM, &lab.share, &kubeconfig, "standby", &extra);
    standby.ready().await;
    let there = Reader { client: insecure_client(port, None).await, headers: ada.headers.clone() };
    assert_eq!(there.id_of("alpha").await, id);
    assert_eq!(there.get("/auth/me").await.status, 200);
}

/// Needs Chromium, Node.js, and the packages and the pages of `web`, which `cargo xtask web` installs and builds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes control plane"]
async fn a_browser_logs_in_with_a_token_and_follows_the_jobs_of_its_namespace() {
    let web = repository().join("web");
    let program = std::env::var_os("AGENTAFLOW_BROWSER").unwrap_or("/usr/bin/chromium".into());
    if !web.join("node_modules/playwright-core").exists() || !Path::new(&program).exists() {
        skip!("needs Chromium and the packages of web; `cargo xtask web` installs them");
    }
    let lab = Lab::start().await;
    let ada = lab.reader("ada", &lab.own, VIEW).await;
    if ada.get("/").await.status != 200 {
        skip!("needs a program with the dashboard; `cargo xtask web` builds it");
    }
    lab.workload(&lab.own, "alpha").await;
    lab.workload(&lab.other, "beta").await;
    lab.admin.sees(&["alpha", "beta"]).await;
    let mut browser = Command::new("node");
    browser.current_dir(web).arg("tests/cluster/dashboard.mjs");
    browser.arg(format!("https://127.0.0.1:{}", lab.port)).args(["alpha", "beta", "gamma"]);
    browser.env("TOKEN", ada.token()).env("AGENTAFLOW_BROWSER", program);
    let mut browser = Program::start(browser, &lab.share.file("browser.log"));
    browser.says("watching").await;
    lab.workload(&lab.own, "gamma").await;
    let ended = browser.ended().await;
    assert!(ended.success(), "{}", browser.log());
}

/// A scheduler with a dashboard, and two namespaces.
struct Lab {
    share: Share,
    _scheduler: Scheduler,
    client: Client,
    admin: Reader,
    node: String,
    port: u16,
    own: String,
    other: String,
}

impl Lab {
    async fn start() -> Self {
        let share = Share::new().await;
        let (own, other) = (share.namespace.clone(), format!("{}-b", share.namespace));
        share.create_namespace(&other, json!({})).await;
        let node = share.node("a", &NodePlan::gpus(8)).await;
        share.apply_file("deploy/crds").await;
        let kubeconfig = kubeconfig_of_role(&share).await;
        let port = free_port();
        let address = format!("127.0.0.1:{port}");
        let extra = ["--dashboard", &address];
        let mut scheduler = Scheduler::launch(PROGRAM, &share, &kubeconfig, "scheduler", &extra);
        scheduler.ready().await;
        scheduler.leads().await;
        let client = insecure_client(port, None).await;
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": format!("ops-{}", share.id)},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "name": "ops", "namespace": own}],
        });
        share.apply_object(binding).await;
        let admin = Reader::new(&share, &client, "ops").await;
        Self { share, _scheduler: scheduler, client, admin, node, port, own, other }
    }

    /// An account with these rights in a namespace.
    async fn reader(&self, name: &str, namespace: &str, rights: &str) -> Reader {
        let rules: Value = serde_saphyr::from_str(rights).expect("rules");
        let version = "rbac.authorization.k8s.io/v1";
        let metadata = json!({"name": name, "namespace": namespace});
        let role =
            json!({"apiVersion": version, "kind": "Role", "metadata": metadata, "rules": rules});
        let binding = json!({
            "apiVersion": version,
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": self.own}],
        });
        self.share.apply_object(role).await;
        self.share.apply_object(binding).await;
        Reader::new(&self.share, &self.client, name).await
    }

    /// A running workload; returns its name.
    async fn workload(&self, namespace: &str, name: &str) -> String {
        let plan = WorkloadPlan::new(&self.share, name, &PodPlan::new(""));
        plan.namespace(namespace).create(&self.share).await;
        if namespace == self.own {
            in_phase(&self.share, name, "Running").await;
        }
        name.to_owned()
    }
}

/// A client of the dashboard.
struct Reader {
    client: Client,
    headers: HeaderMap,
}

struct Answer {
    status: u16,
    headers: HeaderMap,
    body: String,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

impl Reader {
    /// With a token of a service account of the share, which is created.
    async fn new(share: &Share, client: &Client, account: &str) -> Self {
        let object =
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account}});
        share.apply_object(object).await;
        let file = share.kubeconfig_of(account).await;
        let text = std::fs::read_to_string(file).expect("a kubeconfig");
        let config: Value = serde_json::from_str(&text).expect("JSON");
        let token = config["users"][0]["user"]["token"].as_str().expect("a token");
        let mut headers = HeaderMap::new();
        headers.insert("authorization", format!("Bearer {token}").parse().expect("a header"));
        Self { client: client.clone(), headers }
    }

    fn token(&self) -> &str {
        let header = self.headers.get("authorization").and_then(|value| value.to_str().ok());
        header.and_then(|value| value.strip_prefix("Bearer ")).expect("a token")
    }

    async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], String::new()).await
    }

    async fn post(&self, path: &str) -> Answer {
        self.send("POST", path, &[], String::new()).await
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&'static str, &str)],
        body: String,
    ) -> Answer {
        let request = self.request(method, path, headers, body);
        let answer = self.client.send(request).await.expect("the dashboard answers");
        let (parts, body) = answer.into_parts();
        let body = body.collect_bytes().await.expect("a whole answer");
        let body = String::from_utf8_lossy(&body).into_owned();
        Answer { status: parts.status.as_u16(), headers: parts.headers, body }
    }

    fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&'static str, &str)],
        body: String,
    ) -> Request<Body> {
        let mut request = Request::builder().method(method).uri(path);
        *request.headers_mut().expect("a valid request") = self.headers.clone();
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(Body::from(body.into_bytes())).expect("a request")
    }

    /// Text of a stream so far.
    async fn follow(&self, path: &str) -> Arc<Mutex<String>> {
        let request = self.request("GET", path, &[], String::new());
        let mut body = self.client.send(request).await.expect("a stream").into_body();
        let text = Arc::new(Mutex::new(String::new()));
        let written = text.clone();
        tokio::spawn(async move {
            while let Some(Ok(frame)) = body.frame().await {
                let piece = frame.into_data().unwrap_or_default();
                written.lock().expect("text").push_str(&String::from_utf8_lossy(&piece));
            }
        });
        text
    }

    /// Waits until the list has exactly these jobs.
    async fn sees(&self, names: &[&str]) {
        let wanted: BTreeSet<String> = names.iter().map(|name| (*name).to_owned()).collect();
        wait_for(&format!("the jobs are {names:?}"), async || {
            let found: BTreeSet<String> =
                self.jobs().await?.into_iter().map(|(name, _)| name).collect();
            if found == wanted { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .await;
    }

    async fn id_of(&self, name: &str) -> i64 {
        wait_for(&format!("the job {name}"), async || {
            let jobs = self.jobs().await?;
            jobs.into_iter()
                .find(|(known, _)| known == name)
                .map(|(_, id)| id)
                .ok_or("none".to_owned())
        })
        .await
    }

    /// Names and numbers of the jobs in the list.
    async fn jobs(&self) -> Result<Vec<(String, i64)>, String> {
        let answer = self.get("/gpu-workers/jobs?limit=250").await;
        if answer.status != 200 {
            return Err(answer.body);
        }
        let jobs = answer.json();
        let job = |job: &Value| Some((job["job_name"].as_str()?.to_owned(), job["id"].as_i64()?));
        Ok(jobs.as_array().into_iter().flatten().filter_map(job).collect())
    }
}
