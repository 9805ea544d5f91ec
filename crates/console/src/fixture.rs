//! Test data: two nodes, and running, pending and finished jobs.

use std::time::Duration;

use agentaflow_api::explain::{CloseNode, Explanation};
use agentaflow_api::ids::JobId;
use agentaflow_api::job::{Job, JobStatus, TaskPlace};
use agentaflow_api::node::{GpuInstance, GpuStatus, Node, NodeStatus};
use agentaflow_api::pending::{FitSummary, NodesShort, PendingReason, Shortfall};
use agentaflow_api::{Cores, Dollars, Stamp};
use agentaflow_explain::pending;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::model::{Effect, Message, Model, Snapshot};

/// Time of the snapshot.
pub(crate) const NOW: Stamp = Stamp(1_800_000_000_000);

/// A model after forty snapshots.
pub(crate) fn model(columns: u16, rows: u16) -> Model {
    let address = "http://127.0.0.1:8000".to_owned();
    let mut model = Model::new(address, Duration::from_secs(1), (columns, rows), NOW);
    for step in 0..40 {
        model.update(Message::Snapshot(Box::new(snapshot(step))));
    }
    for (handle, position, eta) in [("14", 1, Some(300)), ("15", 2, None)] {
        let explanation = Ok(Box::new(explanation(position, eta)));
        model.update(Message::Explained(handle.to_owned(), explanation));
    }
    let lines = (1..=60).map(|step| format!("epoch {step} loss 0.{}", 900 - step)).collect();
    model.update(Message::Logs("12".to_owned(), Ok(lines)));
    model
}

/// Presses keys: letters, and other keys by name in angle brackets.
pub(crate) fn press(model: &mut Model, keys: &str) -> Vec<Effect> {
    let mut rest = keys;
    let mut effects = Vec::new();
    while let Some(first) = rest.chars().next() {
        let (name, length) = match rest.find('>').filter(|_| first == '<') {
            Some(end) => (&rest[1..end], end + 1),
            None => (&rest[..first.len_utf8()], first.len_utf8()),
        };
        effects.extend(model.update(Message::Key(key(name))));
        rest = &rest[length..];
    }
    effects
}

fn key(name: &str) -> KeyEvent {
    let code = match name {
        "Tab" => KeyCode::Tab,
        "BackTab" => KeyCode::BackTab,
        "Enter" => KeyCode::Enter,
        "Esc" => KeyCode::Esc,
        "Up" => KeyCode::Up,
        "Down" => KeyCode::Down,
        "PgUp" => KeyCode::PageUp,
        "PgDn" => KeyCode::PageDown,
        "Home" => KeyCode::Home,
        "End" => KeyCode::End,
        "Backspace" => KeyCode::Backspace,
        name if name.starts_with("C-") || name.starts_with("A-") => {
            let control = name.starts_with("C-");
            let with = if control { KeyModifiers::CONTROL } else { KeyModifiers::ALT };
            return KeyEvent::new(KeyCode::Char(name.chars().nth(2).unwrap()), with);
        }
        letter => KeyCode::Char(letter.chars().next().unwrap()),
    };
    KeyEvent::new(code, KeyModifiers::NONE)
}

/// The step varies the utilization of the first GPU.
pub(crate) fn snapshot(step: u32) -> Snapshot {
    let wave = f64::from(step % 20) * 5.0;
    let mut second =
        node("gpu-2", "NVIDIA H100", &[(97.0, 71_000, 83.0, 640.0), (0.0, 0, 34.0, 71.0)]);
    second.spec.simulated = false;
    second.draining = true;
    let first = [
        (wave, 30_720, 61.0, 280.0),
        (45.0, 30_720, 58.0, 210.0),
        (0.0, 0, 31.0, 55.0),
        (0.0, 0, 30.0, 54.0),
    ];
    let mut jobs = vec![
        job(12, "train-resnet", JobStatus::Running, Some(("gpu-1", &["0", "1"]))),
        job(13, "eval-llama", JobStatus::Running, Some(("gpu-2", &["0"]))),
        job(14, "sweep", JobStatus::Pending, None),
        job(15, "too-big", JobStatus::Pending, None),
        job(11, "broken", JobStatus::Failed, Some(("gpu-1", &[]))),
        job(10, "done", JobStatus::Completed, Some(("gpu-1", &["3"]))),
    ];
    jobs[0].simulated = true;
    jobs[4].error_message = Some("it ended with exit code 3".to_owned());
    Snapshot { nodes: vec![node("gpu-1", "NVIDIA A100", &first), second], jobs }
}

fn node(name: &str, model: &str, gpus: &[(f64, u64, f64, f64)]) -> Node {
    let each = if model.contains("H100") { 81_559 } else { 40_960 };
    let instance =
        |(index, (busy, held, temperature, power)): (usize, &(f64, u64, f64, f64))| GpuInstance {
            gpu_index: Some(index as u32),
            gpu_uuid: Some(format!("GPU-{name}-{index}")),
            gpu_type: Some(model.to_owned()),
            gpu_memory: Some(each),
            gpu_memory_available: Some(each - held),
            utilization: Some(*busy),
            temperature: Some(*temperature),
            power_usage: Some(*power),
            status: Some(GpuStatus::Available),
            sm_clock: Some(1410),
            ..GpuInstance::default()
        };
    let mut node = Node {
        node_id: format!("id-{name}"),
        status: NodeStatus::Active,
        reachable: true,
        current_jobs: 1,
        cpu_cores_available: Cores(52_000),
        memory_available: 400 * 1024,
        ..Node::default()
    };
    node.spec.node_name = name.to_owned();
    node.spec.gpu_type = Some(model.to_owned());
    node.spec.gpu_count = gpus.len() as u32;
    node.spec.gpu_memory_total = each * gpus.len() as u64;
    let held: u64 = gpus.iter().map(|(_, held, _, _)| held).sum();
    node.gpu_memory_available = node.spec.gpu_memory_total - held;
    node.spec.gpu_instances = gpus.iter().enumerate().map(instance).collect();
    node.spec.simulated = true;
    node.spec.cpu_cores = Cores(64_000);
    node.spec.memory_total = 512 * 1024;
    node
}

fn job(id: i64, name: &str, status: JobStatus, place: Option<(&str, &[&str])>) -> Job {
    let mut job =
        Job { id: JobId(id), status, created_at: Stamp(NOW.0 - 130_000 + id), ..Job::default() };
    job.spec.job_name = Some(name.to_owned());
    job.spec.gpu_count = Some(8);
    if let Some((node, gpus)) = place {
        job.tasks = vec![TaskPlace {
            node_id: format!("id-{node}"),
            node_name: node.to_owned(),
            gpus: gpus.iter().map(ToString::to_string).collect(),
            ..TaskPlace::default()
        }];
        job.started_at = Some(Stamp(NOW.0 - 100_000));
        job.duration_seconds = Some(100.0 + id as f64);
        job.price_per_hour = Some(Dollars(4_000_000));
    }
    if status.is_final() {
        job.completed_at = Some(Stamp(NOW.0 - 50_000 + id));
    }
    if status == JobStatus::Pending {
        job.pending_reason = Some(no_room());
        job.wait_reason = job.pending_reason.as_ref().map(|reason| pending::reason(reason, NOW));
    }
    job
}

fn no_room() -> PendingReason {
    let shortfall = Shortfall::FreeGpus { requested: 8, available: 2 };
    let shortfalls = vec![NodesShort { count: 2, shortfall }];
    PendingReason::NoRoom(FitSummary { nodes: 2, shortfalls })
}

fn explanation(position: u32, eta: Option<i64>) -> Explanation {
    Explanation {
        summary: pending::reason(&no_room(), NOW),
        pending_reason: Some(no_room()),
        position: Some(position),
        waiting: 2,
        eta: eta.map(|seconds| Stamp(NOW.0 + seconds * 1000)),
        eta_text: eta.map(|_| "starts in about 5m".to_owned()).unwrap_or_default(),
        would_start_now: vec!["with 2 GPUs".to_owned()],
        closest: vec![CloseNode {
            node_name: "gpu-1".to_owned(),
            lacks: "lacks 8 free GPUs (most free 2)".to_owned(),
            ..CloseNode::default()
        }],
        ..Explanation::default()
    }
}
