//! Every `curl` command of the worker documentation, verbatim, against a running server.
//!
//! Address and placeholders in braces are filled in. Commands without an
//! `Authorization` header still need one; without it the server returns 401 and names the token.

use std::process::Command;

use serde_json::Value;

use crate::harness::Cluster;

/// Caller of a command, and thus the token that it needs.
#[derive(Clone, Copy, PartialEq)]
enum Who {
    Worker,
    User,
}

struct Printed {
    who: Who,
    text: &'static str,
}

const REGISTER: Printed = Printed {
    who: Who::Worker,
    text: r#"curl -X POST "http://localhost:8000/gpu-workers/nodes/register" \
  -H "Content-Type: application/json" \
  -d '{
    "node_name": "gpu-server-1",
    "hostname": "gpu-server-1.local",
    "gpu_count": 2,
    "gpu_type": "RTX 4090",
    "gpu_memory_total": 24576,
    "cpu_cores": 16,
    "memory_total": 32768,
    "max_concurrent_jobs": 2
  }'"#,
};

const CREATE_JOB: Printed = Printed {
    who: Who::User,
    text: r#"curl -X POST "http://localhost:8000/gpu-workers/jobs/" \
  -H "Authorization: Bearer $TOKEN" \
  -H "Content-Type: application/json" \
  -d '{
    "job_name": "AI Training Job",
    "docker_image": "pytorch/pytorch",
    "docker_tag": "latest",
    "gpu_memory_required": 8192,
    "cpu_cores_required": 4,
    "memory_required": 16384,
    "input_data": {"dataset": "imagenet", "epochs": 100}
  }'"#,
};

const AVAILABLE: Printed = Printed {
    who: Who::User,
    text: r#"curl "http://localhost:8000/gpu-workers/available-nodes/?gpu_memory_required=4096""#,
};

const HEARTBEAT: Printed = Printed {
    who: Who::Worker,
    text: r#"curl -X POST "http://localhost:8000/gpu-workers/nodes/{node_id}/heartbeat" \
  -H "Content-Type: application/json" \
  -d '{
    "node_id": "gpu-e5be90b5e5d6",
    "gpu_memory_available": 20000,
    "cpu_cores_available": 14,
    "current_jobs": 1,
    "health_status": "healthy"
  }'"#,
};

const STATS: Printed = Printed {
    who: Who::User,
    text: r#"curl "http://localhost:8000/gpu-workers/nodes/{node_id}/stats""#,
};

const JOB: Printed =
    Printed { who: Who::User, text: r#"curl "http://localhost:8000/gpu-workers/jobs/{job_id}""# };

const AGENT: Printed = Printed {
    who: Who::User,
    text: r#"curl "http://localhost:8000/gpu-workers/agents/{agent_id}""#,
};

struct Reader {
    cluster: Cluster,
    node_id: String,
    job_id: String,
    agent_id: String,
}

impl Reader {
    fn new() -> Self {
        let name = String::new;
        Self { cluster: Cluster::server(&[]), node_id: name(), job_id: name(), agent_id: name() }
    }

    /// The command with the address and the placeholders of this server.
    fn typed(&self, printed: &Printed) -> String {
        printed
            .text
            .replace("http://localhost:8000", &format!("http://127.0.0.1:{}", self.cluster.port))
            .replace("gpu-e5be90b5e5d6", &self.node_id)
            .replace("{node_id}", &self.node_id)
            .replace("{job_id}", &self.job_id)
            .replace("{agent_id}", &self.agent_id)
    }

    fn token(&self, who: Who) -> String {
        let file = if who == Who::Worker { "data/registration-token" } else { "data/admin-token" };
        std::fs::read_to_string(self.cluster.path(file)).unwrap().trim().to_owned()
    }

    /// Response with the required token.
    fn ok(&self, printed: &Printed, status: u16) -> Value {
        let mut typed = self.typed(printed);
        if !typed.contains("Authorization") {
            typed = typed.replacen("curl ", "curl -H \"Authorization: Bearer $TOKEN\" ", 1);
        }
        let (answered, body) = curl(&typed, &self.token(printed.who));
        assert_eq!(answered, status, "{typed}\n{body:#}");
        body
    }

    /// Response without a token, which names the missing token.
    fn refused_without_a_token(&self, printed: &Printed) {
        let typed = self.typed(printed).replace("  -H \"Authorization: Bearer $TOKEN\" \\\n", "");
        let (status, body) = curl(&typed, "");
        assert_eq!(status, 401, "{typed}\n{body:#}");
        let file = if printed.who == Who::Worker { "registration-token" } else { "admin-token" };
        let detail = body["detail"].as_str().unwrap_or_default();
        assert!(detail.contains(file), "`{file}` is not in `{detail}`");
        assert!(body["code"].is_string(), "{body:#}");
    }
}

/// Runs the command in a shell; returns status and body.
fn curl(command: &str, token: &str) -> (u16, Value) {
    let quiet = command.replacen("curl ", "curl -sS -w '\\n%{http_code}' ", 1);
    let output = Command::new("sh").args(["-c", &quiet]).env("TOKEN", token).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{quiet}\n{text}{}", String::from_utf8_lossy(&output.stderr));
    let (body, status) = text.rsplit_once('\n').unwrap();
    (status.parse().unwrap(), serde_json::from_str(body).unwrap_or(Value::Null))
}

#[test]
fn every_printed_command_works_in_the_order_of_the_document() {
    let mut reader = Reader::new();
    let node = reader.ok(&REGISTER, 200);
    reader.node_id = node["node_id"].as_str().unwrap().to_owned();
    assert!(reader.node_id.starts_with("gpu-") && reader.node_id.len() == 16, "{node:#}");
    for (field, value) in
        [("gpu_count", 2), ("gpu_memory_total", 24576), ("max_concurrent_jobs", 2)]
    {
        assert_eq!(node[field], value, "{field}");
    }
    let job = reader.ok(&CREATE_JOB, 201);
    reader.job_id = job["id"].to_string();
    assert_eq!(job["status"], "pending", "no agent serves the node, so it gets no job");
    assert_eq!(job["input_data"]["epochs"], 100);

    let available = reader.ok(&AVAILABLE, 200);
    assert!(
        available["available_nodes"].is_u64() && available["nodes"].is_array(),
        "{available:#}"
    );
    let beat = reader.ok(&HEARTBEAT, 200);
    assert_eq!((&beat["status"], &beat["health_status"]), (&"active".into(), &"healthy".into()));
    let stats = reader.ok(&STATS, 200);
    assert_eq!(
        (&stats["total_gpu_memory"], &stats["total_cpu_cores"]),
        (&24576.into(), &16.into())
    );
    assert_eq!(stats["available_gpu_memory"], 20000, "from the heartbeat");
    let shown = reader.ok(&JOB, 200);
    assert_eq!((&shown["id"], &shown["docker_image"]), (&job["id"], &"pytorch/pytorch".into()));

    let agent = serde_json::json!({"agent_id": "agent-1", "node_id": node["id"]});
    let token = reader.token(Who::Worker);
    let path = "/gpu-workers/agents/register";
    let registered =
        reader.cluster.try_call("POST", path, Some(&agent), Some(&token)).unwrap().ok();
    assert!(registered["api_key"].is_string(), "{registered:#}");
    reader.agent_id = "agent-1".to_owned();
    let agent = reader.ok(&AGENT, 200);
    assert_eq!(agent["agent_id"], "agent-1");
    assert!(agent.get("api_key").is_none(), "a key is shown once");
}

#[test]
fn without_a_token_the_error_names_its_location() {
    let mut reader = Reader::new();
    let node = reader.ok(&REGISTER, 200);
    reader.node_id = node["node_id"].as_str().unwrap().to_owned();
    reader.job_id = "1".to_owned();
    reader.agent_id = "agent-1".to_owned();
    for printed in [&REGISTER, &CREATE_JOB, &AVAILABLE, &HEARTBEAT, &STATS, &JOB, &AGENT] {
        reader.refused_without_a_token(printed);
    }
}
