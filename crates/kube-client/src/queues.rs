//! Queues: `GPUQueue` objects. The members of a queue are namespaces.

use agentaflow_api::queue::{Queue, QueueSpec, QuotaSpec};
use agentaflow_api::{Cores, GpuAmount, Stamp};
use agentaflow_kube_core::crd::{GpuQueue, GpuQueueSpec, QueueAmounts};
use agentaflow_kube_core::names;
use agentaflow_kube_core::slim;
use agentaflow_kube_core::translate::{mebibytes, milli_cpu};
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};

use super::named::is_name;
use super::show::stamp;
use super::{Cluster, Failure, list};

/// Matches all namespaces.
const EVERYWHERE: &str = "*";

/// Attempts of a write that conflicts with other writers.
const TRIES: usize = 10;

impl Cluster {
    pub async fn queues(&self) -> Result<Vec<Queue>, Failure> {
        let api: Api<slim::Queue> = Api::all(self.client.clone());
        let found = list::all(&api, ListParams::default()).await.map_err(no_kind)?;
        let mut queues: Vec<Queue> = found.iter().map(show).collect();
        queues.sort_by(|a, b| a.spec.name.cmp(&b.spec.name));
        Ok(queues)
    }

    /// Creates or changes a queue. Absent fields keep their values.
    pub async fn set_queue(&self, queue: &QueueSpec) -> Result<Queue, Failure> {
        if !is_name(&queue.name) {
            return Err(Failure::refused(format!(
                "`{}` cannot be the name of a queue: use lower-case letters, digits and hyphens",
                queue.name.chars().take(100).collect::<String>()
            )));
        }
        let api: Api<GpuQueue> = Api::all(self.client.clone());
        let how = PostParams {
            field_manager: Some(names::FIELD_MANAGER.to_owned()),
            ..PostParams::default()
        };
        for _ in 0..TRIES {
            let written = if let Some(mut there) = api.get_opt(&queue.name).await? {
                there.spec = written(queue, there.spec)?;
                api.replace(&queue.name, &how, &there).await
            } else {
                let namespaces = vec![EVERYWHERE.to_owned()];
                let unrestricted = GpuQueueSpec { namespaces, ..GpuQueueSpec::default() };
                let new = GpuQueue::new(&queue.name, written(queue, unrestricted)?);
                api.create(&how, &new).await
            };
            match written {
                // The scheduler or a different client wrote in between.
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => return Err(no_kind(error.into())),
                Ok(made) => {
                    let made = serde_json::to_value(made).unwrap_or_default();
                    return Ok(show(&serde_json::from_value(made).unwrap_or_default()));
                }
            }
        }
        Err(Failure::refused(format!("queue `{}` changes too often; try again", queue.name)))
    }

    pub async fn delete_queue(&self, name: &str) -> Result<(), Failure> {
        let missing = || Failure::NotFound(format!("queue `{name}` not found"));
        if !is_name(name) {
            return Err(missing());
        }
        let api: Api<slim::Queue> = Api::all(self.client.clone());
        match api.delete(name, &DeleteParams::default()).await.map_err(Failure::from) {
            Err(error) if error.is_missing() => Err(missing()),
            answer => answer.map(|_| ()),
        }
    }
}

fn no_kind(error: Failure) -> Failure {
    if error.is_missing() { Failure::no_kind("GPUQueue") } else { error }
}

/// Converts a queue to the REST API.
pub(super) fn show(queue: &slim::Queue) -> Queue {
    let name = queue.metadata.name.clone().unwrap_or_default();
    let spec = queue.spec.0.as_ref().map(|spec| (**spec).clone()).unwrap_or_default();
    let made = queue.metadata.creation_timestamp.as_ref().map(stamp).unwrap_or_default();
    let changes = queue.status.conditions.iter().map(|one| stamp(&one.last_transition_time));
    Queue {
        spec: read(name, &spec),
        pending: queue.status.pending,
        running: queue.status.running,
        gpus_used: GpuAmount(queue.status.used_milli_gpus),
        cpu_used: Cores(0),
        memory_used: 0,
        created_at: made,
        updated_at: changes.fold(made, Stamp::max),
    }
}

fn read(name: String, spec: &GpuQueueSpec) -> QueueSpec {
    let all = spec.namespaces.iter().any(|space| space == EVERYWHERE);
    QueueSpec {
        name,
        parent: spec.parent.clone(),
        weight: Some(spec.weight),
        guaranteed: amounts(&spec.guaranteed),
        limit: amounts(&spec.limit),
        borrow: Some(spec.borrow),
        max_priority: Some(spec.max_priority.into()),
        users: if all { Vec::new() } else { spec.namespaces.clone() },
    }
}

fn amounts(amounts: &QueueAmounts) -> QuotaSpec {
    let whole = |count: u32| GpuAmount(u64::from(count) * 1000);
    QuotaSpec {
        cpu_cores: amounts.cpu.as_deref().and_then(|text| milli_cpu(text).ok()).map(Cores),
        memory: amounts.memory.as_deref().and_then(|text| mebibytes(text).ok()),
        gpus: amounts.gpus.map(whole),
        gpu_types: amounts
            .models
            .iter()
            .map(|(model, count)| (model.clone(), whole(*count)))
            .collect(),
    }
}

/// Spec of the object with the changed fields.
fn written(queue: &QueueSpec, old: GpuQueueSpec) -> Result<GpuQueueSpec, Failure> {
    let most = |priority: u32| {
        u8::try_from(priority).ok().filter(|priority| *priority <= 10).ok_or_else(|| {
            Failure::refused(format!("max_priority is {priority}: write a number from 0 to 10"))
        })
    };
    Ok(GpuQueueSpec {
        namespaces: if queue.users.is_empty() { old.namespaces } else { queue.users.clone() },
        parent: queue.parent.clone().filter(|parent| parent != "root").or(old.parent),
        weight: queue.weight.unwrap_or(old.weight),
        guaranteed: quota("guaranteed", &queue.guaranteed, old.guaranteed)?,
        limit: quota("limit", &queue.limit, old.limit)?,
        borrow: queue.borrow.unwrap_or(old.borrow),
        max_priority: queue.max_priority.map(most).transpose()?.unwrap_or(old.max_priority),
    })
}

fn quota(field: &str, message: &QuotaSpec, old: QueueAmounts) -> Result<QueueAmounts, Failure> {
    let whole = |gpus: &GpuAmount| {
        let count = u32::try_from(gpus.0 / 1000).ok().filter(|_| gpus.0.is_multiple_of(1000));
        count.ok_or_else(|| {
            Failure::refused(format!("{field}: a queue in Kubernetes counts whole GPUs"))
        })
    };
    let models: Result<_, Failure> =
        message.gpu_types.iter().map(|(model, gpus)| Ok((model.clone(), whole(gpus)?))).collect();
    let models: std::collections::BTreeMap<String, u32> = models?;
    Ok(QueueAmounts {
        gpus: message.gpus.as_ref().map(whole).transpose()?.or(old.gpus),
        models: if models.is_empty() { old.models } else { models },
        cpu: message.cpu_cores.map(|cores| format!("{}m", cores.0)).or(old.cpu),
        memory: message.memory.map(|memory| format!("{memory}Mi")).or(old.memory),
        resources: old.resources,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_says_the_same_in_both_languages() {
        let message = QueueSpec {
            name: "research".to_owned(),
            parent: Some("lab".to_owned()),
            weight: Some(50),
            guaranteed: QuotaSpec { gpus: Some(GpuAmount(2000)), ..QuotaSpec::default() },
            limit: QuotaSpec {
                gpus: Some(GpuAmount(8000)),
                cpu_cores: Some(Cores(64_500)),
                memory: Some(1024),
                gpu_types: [("A100".to_owned(), GpuAmount(4000))].into(),
            },
            borrow: Some(false),
            max_priority: Some(7),
            users: vec!["ml".to_owned()],
        };
        let object = written(&message, GpuQueueSpec::default()).unwrap();
        assert_eq!(object.limit.cpu.as_deref(), Some("64500m"));
        assert_eq!(read("research".to_owned(), &object), message);
        let again = written(
            &QueueSpec { name: "research".to_owned(), ..QueueSpec::default() },
            object.clone(),
        );
        assert_eq!(again.unwrap(), object, "unset fields stay");
    }

    #[test]
    fn all_users_become_all_namespaces_and_fractions_of_gpus_are_rejected() {
        let all = GpuQueueSpec { namespaces: vec!["*".to_owned()], ..GpuQueueSpec::default() };
        assert!(read("q".to_owned(), &all).users.is_empty());
        let half = QuotaSpec { gpus: Some(GpuAmount(500)), ..QuotaSpec::default() };
        let message = QueueSpec { limit: half, ..QueueSpec::default() };
        assert!(written(&message, all.clone()).unwrap_err().to_string().contains("whole GPUs"));
        let message = QueueSpec { max_priority: Some(11), ..QueueSpec::default() };
        assert!(written(&message, all).is_err());
    }
}
