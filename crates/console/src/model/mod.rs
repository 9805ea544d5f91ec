//! State of the view: data, cursors, and the change that each message makes. The state does no I/O; it returns
//! [`Effect`]s.

mod keys;
mod rows;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use agentaflow_api::Stamp;
use agentaflow_api::explain::Explanation;
use agentaflow_api::job::{Job, JobStatus};
use agentaflow_api::node::Node;
use ratatui::crossterm::event::KeyEvent;

pub(crate) use rows::{GpuRow, orders};

use crate::layout::{self, Areas};

/// Utilization readings kept per GPU, one per snapshot.
const HISTORY_LENGTH: usize = 240;

/// Pending jobs whose position is requested at a time.
const EXPLAINED_JOBS: usize = 8;

const NOTICE_MILLIS: i64 = 6_000;

/// With more GPUs than this, nodes start folded.
const MAX_UNFOLDED_GPUS: usize = 64;

/// Nodes and jobs at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    pub nodes: Vec<Node>,
    /// Unfinished jobs, and the jobs that finished last.
    pub jobs: Vec<Job>,
}

/// Input of the view. Strings in front are job handles.
#[derive(Debug)]
pub(crate) enum Message {
    Key(KeyEvent),
    Resized(u16, u16),
    Clock(Stamp),
    Snapshot(Box<Snapshot>),
    Failed(String),
    Explained(String, Result<Box<Explanation>, String>),
    Logs(String, Result<Vec<String>, String>),
    Cancelled(Result<String, String>),
}

/// Action that the caller of [`Model::update`] executes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Quit,
    Suspend,
    Repaint,
    Refresh,
    Cancel(String),
}

/// Handles of the jobs to explain, and of the job whose logs to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Requests {
    pub(crate) explain: Vec<String>,
    pub(crate) logs: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Pane {
    #[default]
    Gpus,
    Jobs,
    Queue,
}

/// Page or question over the panes, with the handle of its job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Overlay {
    #[default]
    None,
    Help,
    /// Asks for confirmation to cancel the job.
    Confirm(String),
    Logs(String),
    Explain(String),
}

/// Selected row of a pane. The key keeps a row selected when it moves.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cursor {
    key: Option<String>,
    pub(crate) index: usize,
    pub(crate) offset: usize,
    /// Index in [`orders`].
    pub(crate) sort: usize,
    pub(crate) reversed: bool,
}

/// Selected row of the focused pane.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Selection<'a> {
    Nothing,
    Job(&'a Job),
    Node(&'a Node),
    /// A node and the position of one of its GPUs.
    Gpu(&'a Node, usize),
}

#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) address: String,
    pub(crate) interval: Duration,
    pub(crate) size: (u16, u16),
    pub(crate) now: Stamp,
    pub(crate) data: Option<Snapshot>,
    pub(crate) updated: Stamp,
    pub(crate) error: Option<String>,
    pub(crate) notice: Option<(Stamp, String)>,
    pub(crate) focus: Pane,
    pub(crate) overlay: Overlay,
    pub(crate) filter: String,
    /// Keys go to the filter.
    pub(crate) typing: bool,
    /// Scroll offset of the overlay: from its top, or for logs from their end.
    pub(crate) scroll: usize,
    folded: BTreeSet<String>,
    cursors: BTreeMap<Pane, Cursor>,
    history: BTreeMap<String, VecDeque<Option<f64>>>,
    explanations: BTreeMap<String, Result<Box<Explanation>, String>>,
    logs: Option<(String, Result<Vec<String>, String>)>,
}

impl Model {
    pub(crate) fn new(address: String, interval: Duration, size: (u16, u16), now: Stamp) -> Self {
        Self {
            address,
            interval,
            size,
            now,
            data: None,
            updated: now,
            error: None,
            notice: None,
            focus: Pane::Gpus,
            overlay: Overlay::None,
            filter: String::new(),
            typing: false,
            scroll: 0,
            folded: BTreeSet::new(),
            cursors: BTreeMap::new(),
            history: BTreeMap::new(),
            explanations: BTreeMap::new(),
            logs: None,
        }
    }

    pub(crate) fn update(&mut self, message: Message) -> Option<Effect> {
        let mut effect = None;
        match message {
            Message::Key(key) => effect = self.key(key),
            Message::Resized(columns, rows) => self.size = (columns, rows),
            Message::Clock(now) => self.tick(now),
            Message::Snapshot(data) => self.set_snapshot(*data),
            Message::Failed(error) => self.error = Some(error),
            Message::Explained(job, explanation) => {
                self.explanations.insert(job, explanation);
            }
            Message::Logs(job, lines) => self.logs = Some((job, lines)),
            Message::Cancelled(Ok(text) | Err(text)) => self.notice = Some((self.now, text)),
        }
        self.settle_cursors();
        effect
    }

    /// Explanations and logs that the screen shows now.
    pub(crate) fn requests(&self) -> Requests {
        let shown = match &self.overlay {
            Overlay::Explain(job) | Overlay::Logs(job) => Some(job.clone()),
            _ => None,
        };
        let selection = match self.selection() {
            Selection::Job(job) => Some(job),
            _ => None,
        };
        let mut explain: Vec<_> = match &self.overlay {
            Overlay::Explain(job) => vec![job.clone()],
            _ => selection.iter().filter(|job| !has_output(job)).map(|job| job.handle()).collect(),
        };
        let offset = self.cursor(Pane::Queue).offset;
        let pending = self.queue().into_iter().skip(offset).take(EXPLAINED_JOBS);
        explain.extend(pending.map(Job::handle));
        let mut seen = BTreeSet::new();
        explain.retain(|job| seen.insert(job.clone()));
        let logs = match &self.overlay {
            Overlay::Logs(_) => shown,
            _ => selection.filter(|job| has_output(job)).map(Job::handle),
        };
        Requests { explain, logs }
    }

    pub(crate) fn selection(&self) -> Selection<'_> {
        let index = self.cursor(self.focus).index;
        let jobs = match self.focus {
            Pane::Jobs => self.jobs(),
            Pane::Queue => self.queue(),
            Pane::Gpus => Vec::new(),
        };
        match self.focus {
            Pane::Jobs | Pane::Queue => {
                jobs.get(index).map_or(Selection::Nothing, |job| Selection::Job(job))
            }
            Pane::Gpus => match self.gpus().get(index) {
                Some(GpuRow::Node { node, .. }) => Selection::Node(node),
                Some(GpuRow::Gpu { node, gpu }) => Selection::Gpu(node, *gpu),
                None => Selection::Nothing,
            },
        }
    }

    /// The job that keys act on: the selected job, or the first job on the selected GPU.
    pub(crate) fn selected_job(&self) -> Option<&Job> {
        match self.selection() {
            Selection::Job(job) => Some(job),
            Selection::Gpu(node, gpu) => self.jobs_on(node, gpu).into_iter().next(),
            _ => None,
        }
    }

    pub(crate) fn cursor(&self, pane: Pane) -> Cursor {
        self.cursors.get(&pane).cloned().unwrap_or_default()
    }

    pub(crate) fn job(&self, handle: &str) -> Option<&Job> {
        self.data.iter().flat_map(|data| &data.jobs).find(|job| job.handle() == handle)
    }

    pub(crate) fn explanation(&self, handle: &str) -> Option<&Result<Box<Explanation>, String>> {
        self.explanations.get(handle)
    }

    pub(crate) fn logs(&self, handle: &str) -> Option<&Result<Vec<String>, String>> {
        self.logs.as_ref().filter(|(job, _)| job == handle).map(|(_, lines)| lines)
    }

    /// Utilization of a GPU in percent, oldest first.
    pub(crate) fn history(&self, node: &Node, gpu: usize) -> Option<&VecDeque<Option<f64>>> {
        self.history.get(&gpu_key(node, gpu))
    }

    /// Age of the snapshot in seconds.
    pub(crate) fn age(&self) -> f64 {
        (self.now.0 - self.updated.0).max(0) as f64 / 1000.0
    }

    pub(crate) fn areas(&self) -> Areas {
        let banner = self.error.is_some();
        layout::areas(self.size, banner, self.focus, self.gpus().len())
    }

    fn tick(&mut self, now: Stamp) {
        self.now = now;
        if self.notice.as_ref().is_some_and(|(at, _)| now.0 - at.0 > NOTICE_MILLIS) {
            self.notice = None;
        }
    }

    fn set_snapshot(&mut self, data: Snapshot) {
        if self.data.is_none() {
            let gpus: usize = data.nodes.iter().map(|node| node.spec.gpu_instances.len()).sum();
            if gpus > MAX_UNFOLDED_GPUS {
                self.folded = data.nodes.iter().map(|node| node.node_id.clone()).collect();
            }
        }
        let mut history = BTreeMap::new();
        for node in &data.nodes {
            for (index, gpu) in node.spec.gpu_instances.iter().enumerate() {
                let key = gpu_key(node, index);
                let mut readings = self.history.remove(&key).unwrap_or_default();
                readings.push_back(gpu.utilization.filter(|percent| percent.is_finite()));
                if readings.len() > HISTORY_LENGTH {
                    readings.pop_front();
                }
                history.insert(key, readings);
            }
        }
        let known: BTreeSet<_> = data.jobs.iter().map(Job::handle).collect();
        self.explanations.retain(|job, _| known.contains(job));
        self.history = history;
        self.data = Some(data);
        self.updated = self.now;
        self.error = None;
    }

    /// Moves each cursor to the row with its key, or keeps its index if that row is gone, and scrolls it into view.
    fn settle_cursors(&mut self) {
        let areas = self.areas();
        for pane in [Pane::Gpus, Pane::Jobs, Pane::Queue] {
            let keys = self.keys(pane);
            let mut cursor = self.cursor(pane);
            let found = cursor.key.as_ref().and_then(|key| keys.iter().position(|k| k == key));
            cursor.index = found.unwrap_or(cursor.index).min(keys.len().saturating_sub(1));
            cursor.key = keys.get(cursor.index).cloned();
            let page = areas.page(pane).max(1);
            let last = (cursor.index + 1).saturating_sub(page);
            cursor.offset = cursor.offset.clamp(last, cursor.index.max(last));
            cursor.offset = cursor.offset.min(keys.len().saturating_sub(page));
            self.cursors.insert(pane, cursor);
        }
    }
}

/// A job that was never placed has no logs.
pub(crate) fn has_output(job: &Job) -> bool {
    job.status != JobStatus::Pending && !job.tasks.is_empty()
}

fn gpu_key(node: &Node, gpu: usize) -> String {
    format!("{}/{gpu}", node.node_id)
}
