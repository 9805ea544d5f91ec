//! Tables for every check: a request body, and the rejected field.

use serde_json::{Value, json};

use agentaflow_api::account::{ApiKeyCreate, Register, UserCreate, UserUpdate};
use agentaflow_api::agent::{AgentRegistration, AgentUpdate};
use agentaflow_api::ids::JobId;
use agentaflow_api::job::JobStatusUpdate;
use agentaflow_api::node::{Heartbeat, NodeRegistration, NodeUpdate};
use agentaflow_api::queue::QueueSpec;

use super::*;
use crate::http::read::shape;
use crate::http::routes::jobs::read_job;

/// Rejected field; `ok` if none.
fn verdict(result: Result<(), ApiError>) -> String {
    match result {
        Ok(()) => "ok".to_owned(),
        Err(refusal) => {
            assert_eq!(refusal.status, 422, "{refusal:?}");
            assert!(refusal.message.len() > 10 && !refusal.message.contains('\n'), "{refusal:?}");
            refusal.details.field.unwrap_or_default()
        }
    }
}

fn job(body: &Value) -> String {
    verdict(read_job(body.to_string().as_bytes()).map(drop))
}

/// Valid job with some fields changed.
fn with(fields: &Value) -> Value {
    let mut job = json!({"docker_image": "pytorch/pytorch"});
    job.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    job
}

/// Valid process job with some fields changed.
fn process(fields: &Value) -> Value {
    let mut job = json!({"runtime": "process", "command": ["true"]});
    job.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    job
}

#[test]
fn a_blank_name_counts_as_absent() {
    for name in ["", "  "] {
        let job = read_job(with(&json!({"job_name": name})).to_string().as_bytes()).unwrap();
        assert_eq!(job.spec.job_name, None);
    }
}

#[test]
fn documented_and_common_jobs_are_accepted() {
    for fields in [
        json!({}),
        json!({"job_name": "AI Training Job", "gpu_memory_required": 8192.0, "cpu_cores_required": 4}),
        json!({"docker_tag": null, "job_config": null, "input_data": null, "env": null, "unknown": 1}),
        json!({"docker_image": "registry.example.com:5000/team/image@sha256:0123abcd"}),
        json!({"docker_image": "nvcr.io/nvidia/pytorch", "docker_tag": "24.01-py3"}),
        json!({"docker_registry": "https://index.docker.io/v1/"}),
        json!({"docker_username": "u", "docker_password": "p"}),
        json!({"gpu_fraction": 0.25, "gpu_count": 1}),
        json!({"mig_profile": "1g.5gb", "gpu_count": 3}),
        json!({"mig_profile": "1g.10gb+me"}),
        json!({"gpu_count": 0}),
        json!({"command": "echo $HOME\nexit 3"}),
        json!({"command": ["sh", "-c", ""]}),
        json!({"volumes": [{"source": "/data/in", "target": "/in", "read_only": true}]}),
        json!({"env": {"A_1": "x\ny", "_": ""}, "secret_env": {"TOKEN": "s"}}),
        json!({"priority": 10, "replicas": 1024, "max_retries": 0, "timeout_seconds": 1}),
        json!({"endpoint_id": 3}),
        json!({"endpoint_id": "e-3"}),
    ] {
        assert_eq!(job(&with(&fields)), "ok", "{fields}");
    }
    assert_eq!(job(&process(&json!({}))), "ok");
    assert_eq!(job(&json!({"command": ["true"]})), "ok");
}

#[test]
fn invalid_jobs_are_rejected_with_their_field() {
    let long = "x".repeat(3000);
    let many: Map<_, _> = (0..600).map(|at| (format!("V{at}"), json!(""))).collect();
    for (field, fields) in [
        ("job_name", json!({"job_name": "a\u{0}b"})),
        ("job_name", json!({"job_name": "a\nb"})),
        ("job_name", json!({"job_name": long})),
        ("job_name", json!({"job_name": 5})),
        ("job_type", json!({"job_type": "\u{7}"})),
        ("docker_image", json!({"docker_image": ""})),
        ("docker_image", json!({"docker_image": "a b"})),
        ("docker_image", json!({"docker_image": "-x"})),
        ("docker_image", json!({"docker_image": "a//b"})),
        ("docker_image", json!({"docker_image": "a@b@c"})),
        ("docker_image", json!({"docker_image": "imag\u{e9}"})),
        ("docker_image", json!({"docker_image": ["x"]})),
        ("docker_tag", json!({"docker_tag": "-x"})),
        ("docker_tag", json!({"docker_tag": "a/b"})),
        ("docker_registry", json!({"docker_registry": "a b"})),
        ("docker_username", json!({"docker_password": "p"})),
        ("docker_password", json!({"docker_password": {"a": 1}})),
        ("job_config", json!({"job_config": []})),
        ("job_config", json!({"job_config": {"a": ["\u{0}"]}})),
        ("input_data", json!({"input_data": {"\u{0}": 1}})),
        ("gpu_memory_required", json!({"gpu_memory_required": -1})),
        ("gpu_memory_required", json!({"gpu_memory_required": 1.5})),
        ("gpu_memory_required", json!({"gpu_memory_required": "8192"})),
        ("gpu_memory_required", json!({"gpu_memory_required": 1e15})),
        ("cpu_cores_required", json!({"cpu_cores_required": -1})),
        ("cpu_cores_required", json!({"cpu_cores_required": 1e9})),
        ("cpu_cores_required", json!({"cpu_cores_required": 1e300})),
        ("memory_required", json!({"memory_required": 9e15})),
        ("storage_required", json!({"storage_required": 9e15})),
        ("endpoint_id", json!({"endpoint_id": [1]})),
        ("gpu_count", json!({"gpu_count": 1025})),
        ("gpu_count", json!({"gpu_count": 4_294_967_296_u64})),
        ("gpu_type", json!({"gpu_type": " "})),
        ("gpu_fraction", json!({"gpu_fraction": 0})),
        ("gpu_fraction", json!({"gpu_fraction": 1})),
        ("gpu_fraction", json!({"gpu_fraction": -0.5})),
        ("gpu_fraction", json!({"gpu_fraction": 0.5, "gpu_count": 2})),
        ("gpu_fraction", json!({"gpu_fraction": 0.5, "mig_profile": "1g.5gb"})),
        ("gpu_fraction", json!({"gpu_fraction": 0.5, "gpu_count": 0})),
        ("exclusive", json!({"gpu_fraction": 0.5, "exclusive": true})),
        ("exclusive", json!({"gpu_count": 0, "exclusive": true})),
        ("gpu_memory_required", json!({"gpu_count": 0, "gpu_memory_required": 1})),
        ("mig_profile", json!({"mig_profile": "7"})),
        ("mig_profile", json!({"mig_profile": "1g.5gb;x"})),
        ("mig_profile", json!({"mig_profile": "1g.5gb", "gpu_count": 0})),
        ("replicas", json!({"replicas": 0})),
        ("replicas", json!({"replicas": 1025})),
        ("priority", json!({"priority": 11})),
        ("priority", json!({"priority": -1})),
        ("queue", json!({"queue": "a/b"})),
        ("queue", json!({"queue": ""})),
        ("command", json!({"command": []})),
        ("command", json!({"command": [""]})),
        ("command", json!({"command": 5})),
        ("command[1]", json!({"command": ["sh", "a\u{0}"]})),
        ("env", json!({"env": {"1A": ""}})),
        ("env", json!({"env": {"A=B": ""}})),
        ("env", json!({"env": {"": ""}})),
        ("env", json!({"env": {"JOB_ID": "1"}})),
        ("env", json!({"env": many})),
        ("env.A", json!({"env": {"A": 1}})),
        ("env.A", json!({"env": {"A": "\u{0}"}})),
        ("secret_env", json!({"env": {"A": ""}, "secret_env": {"A": ""}})),
        ("secret_env", json!({"secret_env": {"A-B": ""}})),
        ("secret_env", json!({"secret_env": "TOKEN=s"})),
        ("timeout_seconds", json!({"timeout_seconds": 0})),
        ("timeout_seconds", json!({"timeout_seconds": 1e12})),
        ("max_retries", json!({"max_retries": 101})),
        ("stop_grace_seconds", json!({"stop_grace_seconds": 3601})),
        ("volumes[0].source", json!({"volumes": [{"source": "data", "target": "/in"}]})),
        ("volumes[0].source", json!({"volumes": [{"source": "/a/../etc", "target": "/in"}]})),
        ("volumes[0].source", json!({"volumes": [{"source": "/a:/b", "target": "/in"}]})),
        ("volumes[0].target", json!({"volumes": [{"source": "/a", "target": "/"}]})),
        (
            "volumes[1].target",
            json!({"volumes": [{"source": "/a", "target": "/in"},
            {"source": "/b", "target": "//in/."}]}),
        ),
        ("volumes[0]", json!({"volumes": [{"source": "/a"}]})),
        ("volumes", json!({"volumes": {}})),
        ("working_dir", json!({"working_dir": "here"})),
        ("runtime", json!({"runtime": "podman"})),
        ("on_node_lost", json!({"on_node_lost": "panic"})),
        ("preemptible", json!({"preemptible": "yes"})),
        ("shm_size", json!({"shm_size": 9e15})),
    ] {
        assert_eq!(job(&with(&fields)), field, "{fields}");
    }
}

#[test]
fn process_jobs_reject_container_fields() {
    for (field, fields) in [
        ("docker_image", json!({"docker_image": "x"})),
        ("docker_registry", json!({"docker_registry": "x"})),
        ("docker_username", json!({"docker_username": "x"})),
        ("volumes", json!({"volumes": [{"source": "/a", "target": "/b"}]})),
        ("read_only", json!({"read_only": true})),
        ("shm_size", json!({"shm_size": 64})),
        ("command", json!({"command": null})),
    ] {
        assert_eq!(job(&process(&fields)), field, "{fields}");
    }
    assert_eq!(job(&json!({})), "docker_image");
    assert_eq!(job(&json!({"runtime": "docker", "command": ["true"]})), "docker_image");
}

#[test]
fn a_rejected_value_is_not_repeated() {
    for body in [
        json!({"secret_env": "TOKEN=hunter2"}),
        json!({"secret_env": {"TOKEN": ["hunter2"]}}),
        json!({"docker_password": ["hunter2"]}),
        json!({"gpu_count": "hunter2"}),
        json!({"runtime": "hunter2"}),
        json!({"env": {"hunter2=": "x"}}),
    ] {
        let refusal = read_job(with(&body).to_string().as_bytes()).unwrap_err();
        assert!(!format!("{refusal:?}").contains("hunter2"), "{body}: {refusal:?}");
    }
}

#[test]
fn invalid_nodes_are_rejected_with_their_field() {
    let check = |fields: &Value| {
        let mut node = json!({"node_name": "gpu-server-1"});
        node.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        verdict(shape::<NodeRegistration>(node).and_then(|node| check_node(&node)))
    };
    for (field, fields) in [
        ("ok", json!({})),
        (
            "ok",
            json!({"gpu_count": 2.0, "gpu_memory_total": 24576.0, "cpu_cores": 15.5, "region": null}),
        ),
        ("ok", json!({"api_endpoint": "http://10.0.0.7:8080", "node_id": "gpu-e5be90b5e5d6"})),
        ("node_name", json!({"node_name": ""})),
        ("node_name", json!({"node_name": "a\u{0}"})),
        ("node_name", json!({"node_name": null})),
        ("hostname", json!({"hostname": "a\nb"})),
        ("gpu_count", json!({"gpu_count": 5000})),
        ("gpu_count", json!({"gpu_count": -1})),
        ("gpu_memory_total", json!({"gpu_memory_total": 1e15})),
        ("cpu_cores", json!({"cpu_cores": 1e8})),
        ("price_per_gpu_hour", json!({"price_per_gpu_hour": -1})),
        ("price_per_cpu_hour", json!({"price_per_cpu_hour": 1e9})),
        ("node_id", json!({"node_id": "gpu-1"})),
        ("node_id", json!({"node_id": "../../etc"})),
        ("api_endpoint", json!({"api_endpoint": "10.0.0.7:8080"})),
        ("api_endpoint", json!({"api_endpoint": "file:///etc/passwd"})),
        ("api_endpoint", json!({"api_endpoint": "http://user:password@host/"})),
        ("node_metadata", json!({"node_metadata": {"a": "\u{0}"}})),
        ("k8s_labels", json!({"k8s_labels": {"a": "\u{0}"}})),
        ("runtimes", json!({"runtimes": ["do cker"]})),
        ("labels", json!({"labels": {"a": "b\u{1}"}})),
        ("gpu_instances[0].status", json!({"gpu_instances": [{"status": "asleep"}]})),
        ("gpu_instances[0].utilization", json!({"gpu_instances": [{"utilization": 101}]})),
        ("gpu_instances[0].temperature", json!({"gpu_instances": [{"temperature": -300}]})),
        (
            "gpu_instances[0].mig",
            json!({"gpu_instances": [{"mig": [{"profile": "\u{0}", "start": 0, "uuid": ""}]}]}),
        ),
        (
            "gpu_instances[1].gpu_uuid",
            json!({"gpu_instances": [{"gpu_uuid": "G"}, {"gpu_uuid": "G"}]}),
        ),
    ] {
        assert_eq!(check(&fields), field, "{fields}");
    }
}

#[test]
fn heartbeats_and_node_updates_are_validated() {
    let beat =
        |body: Value| verdict(shape::<Heartbeat>(body).and_then(|beat| check_heartbeat(&beat)));
    assert_eq!(beat(json!({})), "ok");
    assert_eq!(
        beat(json!({"node_id": 7, "gpu_memory_available": 20000.0, "health_status": "healthy"})),
        "ok"
    );
    assert_eq!(beat(json!({"node_id": []})), "node_id");
    assert_eq!(beat(json!({"health_status": "great"})), "health_status");
    assert_eq!(
        beat(json!({"gpu_instances": [{"power_usage": -1}]})),
        "gpu_instances[0].power_usage"
    );
    let update = |body: Value| {
        verdict(shape::<NodeUpdate>(body).and_then(|update| check_node_update(&update)))
    };
    assert_eq!(update(json!({"status": "maintenance", "drain": true})), "ok");
    assert_eq!(update(json!({"status": "error"})), "status");
    assert_eq!(update(json!({"price_per_gpu_hour": -0.1})), "price_per_gpu_hour");
    assert_eq!(update(json!({"labels": {"a": 1}})), "labels.a");
}

#[test]
fn agents_are_validated() {
    let agent = |body: Value| {
        verdict(shape::<AgentRegistration>(body).and_then(|agent| check_agent(&agent)))
    };
    assert_eq!(agent(json!({"agent_id": "a-1", "node_id": 1.0})), "ok");
    assert_eq!(agent(json!({"node_id": 1})), "agent_id");
    assert_eq!(agent(json!({"agent_id": "17", "node_id": 1})), "agent_id");
    assert_eq!(agent(json!({"agent_id": "a/b", "node_id": 1})), "agent_id");
    assert_eq!(agent(json!({"agent_id": "a"})), "node_id");
    assert_eq!(agent(json!({"agent_id": "a", "node_id": 1, "config": {"a": "\u{0}"}})), "config");
    let update = |body: Value| {
        verdict(shape::<AgentUpdate>(body).and_then(|update| check_agent_update(&update)))
    };
    assert_eq!(update(json!({"agent_version": "1\n"})), "agent_version");
}

#[test]
fn status_updates_are_validated() {
    let news = |body: Value| {
        verdict(
            shape::<JobStatusUpdate>(body)
                .and_then(|update| check_status_update(JobId(17), &update)),
        )
    };
    assert_eq!(news(json!({"job_id": 17, "status": "completed", "duration_seconds": 1.5})), "ok");
    assert_eq!(news(json!({"status": "running"})), "ok");
    assert_eq!(news(json!({"job_id": 18, "status": "completed"})), "job_id");
    assert_eq!(news(json!({"job_id": 17})), "status");
    assert_eq!(news(json!({"status": "pending"})), "status");
    assert_eq!(news(json!({"status": "done"})), "status");
    assert_eq!(news(json!({"status": "failed", "duration_seconds": -1})), "duration_seconds");
}

#[test]
fn users_passwords_and_keys_are_validated() {
    let user = |body: Value| verdict(shape::<UserCreate>(body).and_then(|user| check_user(&user)));
    assert_eq!(user(json!({"username": "ada"})), "ok");
    assert_eq!(
        user(json!({"username": "ada", "email": "ada@example.com", "password": "long enough"})),
        "ok"
    );
    assert_eq!(user(json!({"username": ""})), "username");
    assert_eq!(user(json!({"username": "a b"})), "username");
    assert_eq!(user(json!({"username": "a".repeat(65)})), "username");
    assert_eq!(user(json!({"username": "ada", "email": "ada"})), "email");
    assert_eq!(user(json!({"username": "ada", "password": "too short"})), "password");
    assert_eq!(user(json!({"username": "ada", "password": "x".repeat(201)})), "password");
    assert_eq!(user(json!({"username": "ada", "role": "god"})), "role");
    assert_eq!(user(json!({"username": "ada", "grants": ["root"]})), "grants");
    assert_eq!(user(json!({"username": "ada", "spending_limit": -1})), "spending_limit");
    let update = |body: Value| {
        verdict(shape::<UserUpdate>(body).and_then(|update| check_user_update(&update)))
    };
    assert_eq!(update(json!({"spending_limit": -1, "email": ""})), "ok");
    assert_eq!(update(json!({"password": "short"})), "password");
    let register =
        |body: Value| verdict(shape::<Register>(body).and_then(|new| check_register(&new)));
    assert_eq!(register(json!({"password": "long enough"})), "ok");
    assert_eq!(register(json!({})), "password");
    let key = |body: Value| verdict(shape::<ApiKeyCreate>(body).and_then(|key| check_key(&key)));
    assert_eq!(key(json!({"name": "my laptop", "expires_in_days": 90})), "ok");
    assert_eq!(key(json!({})), "name");
    assert_eq!(key(json!({"name": "x", "expires_in_days": 0})), "expires_in_days");
    assert_eq!(key(json!({"name": "x", "expires_in_days": 9999})), "expires_in_days");
}

#[test]
fn queues_are_validated() {
    let queue =
        |body: Value| verdict(shape::<QueueSpec>(body).and_then(|queue| check_queue(&queue)));
    assert_eq!(
        queue(json!({"name": "research", "limit": {"gpus": 2.5, "gpu_types": {"A100": 1}}})),
        "ok"
    );
    assert_eq!(queue(json!({})), "name");
    assert_eq!(queue(json!({"name": "a/b"})), "name");
    assert_eq!(queue(json!({"name": "a", "parent": "a"})), "parent");
    assert_eq!(queue(json!({"name": "a", "weight": 0})), "weight");
    assert_eq!(queue(json!({"name": "a", "max_priority": 11})), "max_priority");
    assert_eq!(queue(json!({"name": "a", "limit": {"gpus": -1}})), "limit.gpus");
    assert_eq!(queue(json!({"name": "a", "limit": {"gpu_types": {"": 1}}})), "limit.gpu_types");
    assert_eq!(queue(json!({"name": "a", "users": ["a b"]})), "users");
}

#[test]
fn an_idempotency_key_is_visible_ascii_of_bounded_length() {
    assert_eq!(idempotency_key(b"3f8a-1").unwrap(), "3f8a-1");
    for wrong in [&b""[..], b"a b", b"a\n", "\u{e9}".as_bytes(), &[b'x'; 256]] {
        assert_eq!(idempotency_key(wrong).unwrap_err().status, 400);
    }
}
