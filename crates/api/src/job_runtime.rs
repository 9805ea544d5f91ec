//! Runtime of a job, and the job fields that not every runtime supports.

use crate::job::{JobSpec, Runtime};

/// Agents by the job fields that they support. Each one supports the fields of its predecessors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AgentSupport {
    /// Agents of the documented push protocol: an image, its input and whole GPUs.
    Push,
    /// Agents that start a container anywhere in a Kubernetes cluster: one task, no folders of the host.
    Portable,
    /// Agents with Docker on the node.
    Docker,
}

/// Needs of one job field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldNeed {
    /// Name in JSON.
    pub field: &'static str,
    /// A plain process cannot have the field.
    pub container_only: bool,
    /// Least capable agent that supports the field.
    pub support: AgentSupport,
}

impl JobSpec {
    /// The requested runtime. Default: a process if the job has a command and no image, otherwise a container.
    pub fn effective_runtime(&self) -> Runtime {
        match (self.runtime, &self.docker_image) {
            (Some(runtime), _) => runtime,
            (None, None) if self.command.is_some() => Runtime::Process,
            (None, _) => Runtime::Docker,
        }
    }

    /// Needs of the fields that are set.
    pub fn field_needs(&self) -> impl Iterator<Item = FieldNeed> {
        let Self {
            docker_image,
            docker_registry,
            docker_username,
            volumes,
            read_only,
            shm_size,
            command,
            env,
            working_dir,
            replicas,
            gpu_fraction,
            mig_profile,
            // Every runtime and agent supports these fields.
            job_name: _,
            job_type: _,
            docker_tag: _,
            job_config: _,
            input_data: _,
            gpu_memory_required: _,
            cpu_cores_required: _,
            memory_required: _,
            storage_required: _,
            endpoint_id: _,
            gpu_count: _,
            gpu_type: _,
            exclusive: _,
            priority: _,
            queue: _,
            timeout_seconds: _,
            max_retries: _,
            runtime: _,
            on_node_lost: _,
            estimated_duration_seconds: _,
            preemptible: _,
            stop_grace_seconds: _,
        } = self;
        let container =
            |field, set, support| (set, FieldNeed { field, container_only: true, support });
        let any = |field, set, support| (set, FieldNeed { field, container_only: false, support });
        let needs = [
            container("docker_image", docker_image.is_some(), AgentSupport::Push),
            container("docker_registry", docker_registry.is_some(), AgentSupport::Push),
            container("docker_username", docker_username.is_some(), AgentSupport::Portable),
            container("volumes", !volumes.is_empty(), AgentSupport::Docker),
            container("read_only", *read_only, AgentSupport::Portable),
            container("shm_size", shm_size.is_some(), AgentSupport::Portable),
            any("command", command.is_some(), AgentSupport::Portable),
            any("env", !env.is_empty(), AgentSupport::Portable),
            any("working_dir", working_dir.is_some(), AgentSupport::Portable),
            any("gpu_fraction", gpu_fraction.is_some(), AgentSupport::Portable),
            any("mig_profile", mig_profile.is_some(), AgentSupport::Portable),
            any("replicas", replicas.unwrap_or(1) != 1, AgentSupport::Docker),
        ];
        needs.into_iter().filter(|(set, _)| *set).map(|(_, need)| need)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(fields: serde_json::Value) -> JobSpec {
        serde_json::from_value(fields).unwrap()
    }

    #[test]
    fn the_runtime_follows_the_request_then_the_image_then_the_command() {
        let cases = [
            (serde_json::json!({}), Runtime::Docker),
            (serde_json::json!({"command": ["x"]}), Runtime::Process),
            (serde_json::json!({"command": ["x"], "docker_image": "i"}), Runtime::Docker),
            (serde_json::json!({"command": ["x"], "runtime": "docker"}), Runtime::Docker),
            (serde_json::json!({"docker_image": "i", "runtime": "process"}), Runtime::Process),
        ];
        for (fields, runtime) in cases {
            assert_eq!(job(fields.clone()).effective_runtime(), runtime, "{fields}");
        }
    }

    #[test]
    fn a_field_needs_the_least_capable_agent_that_supports_it() {
        let support = |fields| job(fields).field_needs().map(|need| need.support).max();
        let volume = serde_json::json!([{"source": "/a", "target": "/b"}]);
        let cases = [
            (serde_json::json!({"priority": 3}), None),
            (serde_json::json!({"docker_image": "i"}), Some(AgentSupport::Push)),
            (serde_json::json!({"docker_image": "i", "replicas": 1}), Some(AgentSupport::Push)),
            (serde_json::json!({"shm_size": 64}), Some(AgentSupport::Portable)),
            (serde_json::json!({"shm_size": 64, "replicas": 2}), Some(AgentSupport::Docker)),
            (serde_json::json!({ "volumes": volume }), Some(AgentSupport::Docker)),
        ];
        for (fields, expected) in cases {
            assert_eq!(support(fields.clone()), expected, "{fields}");
        }
    }
}
