//! Names and shapes that clients of the original API rely on.

use serde_json::{Value, json};

use crate::site::Site;

#[tokio::test]
async fn the_original_health_page_answers() {
    let site = Site::new().await;
    assert_eq!(site.get("", "/health").await.expect(200), json!({"status": "healthy"}));
}

#[tokio::test]
async fn a_user_logs_in_with_the_mail_address() {
    let site = Site::with(|settings| settings.open_signup = true).await;
    let user = |name: &str, email: &str| json!({"email": email, "username": name, "full_name": "Test", "password": "test password 123"});
    site.post("", "/auth/register", user("ada", "Ada@example.com")).await.expect(201);
    let login = |email: &str, password: &str| json!({"email": email, "password": password});
    let right = login("ada@example.com", "test password 123");
    let tokens = site.post("", "/auth/login", right.clone()).await.expect(200);
    assert_eq!(tokens["token_type"], "bearer");
    let wrong = [
        login("ada@example.com", "another password"),
        login("eve@example.com", "another password"),
    ];
    for body in wrong {
        site.post("", "/auth/login", body).await.refused(401);
    }
    // Two users with one address cannot be told apart.
    site.post("", "/auth/register", user("ada2", "ada@example.com")).await.expect(201);
    site.post("", "/auth/login", right).await.refused(401);
}

#[tokio::test]
async fn nodes_have_the_shape_that_original_clients_read() {
    let site = Site::new().await;
    let node = site.node("one").await;
    assert_eq!(node["k8s_namespace"], "default");
    let path = format!("/gpu-workers/nodes/{}", node["id"]);
    let stats = site.get(site.admin(), &format!("{path}/stats")).await.expect(200);
    assert_eq!(stats["gpu_utilization"], json!([0.0, 0.0]));
    for readings in ["temperature", "power_usage"] {
        assert_eq!(stats[readings], json!([]), "{readings}");
    }
    let gpu = |power: Option<f64>| json!({"temperature": 61.5, "power_usage": power});
    for (second, power) in [(None, json!([])), (Some(90.0), json!([80.0, 90.0]))] {
        let beat = json!({"gpu_instances": [gpu(Some(80.0)), gpu(second)]});
        let key = node["api_key"].as_str().unwrap();
        site.post(key, &format!("{path}/heartbeat"), beat).await.expect(200);
        let stats = site.get(site.admin(), &format!("{path}/stats")).await.expect(200);
        assert_eq!((&stats["temperature"], &stats["power_usage"]), (&json!([61.5, 61.5]), &power));
    }
    let change = json!({"hostname": "gpu-1.local", "ip_address": "10.0.0.7", "unknown": 1});
    let node = site.call(site.admin(), "PUT", &path, change).await.expect(200);
    assert_eq!(
        (&node["hostname"], &node["ip_address"]),
        (&json!("gpu-1.local"), &json!("10.0.0.7"))
    );
}

#[tokio::test]
async fn original_fields_of_a_job_are_honoured() {
    let site = Site::new().await;
    let job = json!({"docker_image": "x", "timeout": 60.0, "memory_required": 5,
        "resource_requirements": {"gpu_memory": 8192, "cpu_cores": 4, "memory": 1024, "storage": null}});
    let job = site.post(site.admin(), "/gpu-workers/jobs/", job).await.expect(201);
    let fields = [
        "timeout_seconds",
        "gpu_memory_required",
        "cpu_cores_required",
        "memory_required",
        "storage_required",
    ];
    assert_eq!(
        fields.map(|field| job[field].clone()),
        [json!(60), json!(8192), json!(4), json!(5), Value::Null]
    );
    assert_eq!(job["input_data"], json!({}), "an object, as the schema says");
}

#[tokio::test]
async fn a_node_without_memory_gets_that_of_its_model() {
    let site = Site::new().await;
    let register = async |node: Value| {
        site.post(site.registration(), "/gpu-workers/nodes/register", node).await
    };
    let node = register(json!({"node_name": "a", "gpu_count": 2, "gpu_type": "RTX 4090"}))
        .await
        .expect(200);
    assert_eq!(
        (&node["gpu_memory_total"], &node["price_source"]),
        (&json!(2 * 24_564), &json!("catalogue"))
    );
    let refusal = register(json!({"node_name": "b", "gpu_count": 1, "gpu_type": "Voodoo 2"}))
        .await
        .refused(422);
    assert_eq!(refusal["details"]["field"], "gpu_memory_total");
}

#[tokio::test]
async fn a_job_on_an_unreachable_or_deleted_node_says_so() {
    let site = Site::new().await;
    let reason = async |id: &Value| {
        let explained =
            site.get(site.admin(), &format!("/gpu-workers/jobs/{id}/explain")).await.expect(200);
        explained["summary"].as_str().unwrap().to_owned()
    };
    let container = json!({"docker_image": "x"});
    let job = site.post(site.admin(), "/gpu-workers/jobs", container.clone()).await.expect(201);
    assert_eq!(reason(&job["id"]).await, "No nodes in the cluster");
    let node = site.node("one").await;
    assert!(
        reason(&job["id"]).await.starts_with("0/1 nodes are reachable"),
        "{}",
        reason(&job["id"]).await
    );
    let path = format!("/gpu-workers/nodes/{}", node["id"]);
    let pinned = site.post(site.admin(), &format!("{path}/jobs"), container).await.expect(201);
    site.call(site.admin(), "DELETE", &path, Value::Null).await.expect(200);
    let text = reason(&pinned["id"]).await;
    assert!(text.contains(node["node_id"].as_str().unwrap()) && text.contains("deleted"), "{text}");
    let listed =
        site.get(site.admin(), &format!("/gpu-workers/jobs/{}", pinned["id"])).await.expect(200);
    assert_eq!(listed["wait_reason"].as_str(), Some(text.as_str()));
}

#[tokio::test]
async fn a_guarantee_above_the_limit_is_refused_with_both_numbers() {
    let site = Site::new().await;
    let queues = [
        (
            json!({"guaranteed": {"gpus": 4}, "limit": {"gpus": 2.5}}),
            "guaranteed.gpus",
            ["4", "2.5"],
        ),
        (
            json!({"guaranteed": {"memory": 2048}, "limit": {"memory": 1024}}),
            "guaranteed.memory",
            ["2048", "1024"],
        ),
        (
            json!({"guaranteed": {"gpu_types": {"A100": 2}}, "limit": {"gpu_types": {"A100": 1}}}),
            "guaranteed.gpu_types.A100",
            ["2", "1"],
        ),
    ];
    for (queue, field, numbers) in queues {
        let refusal = site.call(site.admin(), "PUT", "/queues/team", queue).await.refused(422);
        assert_eq!(refusal["details"]["field"], field);
        let detail = refusal["detail"].as_str().unwrap();
        assert!(numbers.iter().all(|number| detail.contains(number)), "{detail}");
    }
    let fits = json!({"guaranteed": {"gpus": 2, "memory": 10}, "limit": {"gpus": 2}});
    site.call(site.admin(), "PUT", "/queues/team", fits).await.expect(201);
}

#[tokio::test]
async fn a_queue_lists_users_that_exist_and_sign_up_takes_none_of_their_names() {
    let site = Site::with(|settings| settings.open_signup = true).await;
    let ada = site.user("Ada", "user").await;
    let unknown = json!({"users": ["ada", "eve"]});
    let refusal = site.call(site.admin(), "PUT", "/queues/team", unknown).await.refused(422);
    assert_eq!(refusal["details"]["field"], "users");
    let queue =
        site.call(site.admin(), "PUT", "/queues/team", json!({"users": ["ada"]})).await.expect(201);
    assert_eq!(queue["users"], json!(["Ada"]), "as the user is called");
    let sign_up = json!({"username": "ADA", "password": "test password 123"});
    site.post("", "/auth/register", sign_up).await.refused(409);
    let job = json!({"docker_image": "x", "queue": "team"});
    site.post(&ada, "/gpu-workers/jobs", job.clone()).await.expect(201);
    let ben = site.user("ben", "user").await;
    site.post(&ben, "/gpu-workers/jobs", job).await.refused(403);
}
