//! What the view knows: data, where the user is in it, and what a key or an answer changes. It does nothing by
//! itself; what is to be done comes back as [`Effect`]s.

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

pub(super) use rows::{GpuRow, orders};

use super::layout::{self, Areas};

/// Readings that are kept of each GPU, one for each time that was asked.
const KEPT: usize = 240;

/// Waiting jobs whose place in the queue is asked for at a time.
const EXPLAINED: usize = 8;

/// How long a notice stays.
const NOTICE: i64 = 6_000;

/// Above so many GPUs, nodes start out folded.
const UNFOLDED: usize = 64;

/// Everything there is to show at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Snapshot {
    pub(super) nodes: Vec<Node>,
    /// Jobs that run or wait, and those that ended last.
    pub(super) jobs: Vec<Job>,
}

/// Something that happened.
#[derive(Debug)]
pub(super) enum Message {
    Key(KeyEvent),
    Resized(u16, u16),
    Clock(Stamp),
    Data(Box<Snapshot>),
    Trouble(String),
    Explained(String, Result<Box<Explanation>, String>),
    Logged(String, Result<Vec<String>, String>),
    Cancelled(Result<String, String>),
}

/// Something to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Quit,
    Suspend,
    Repaint,
    Refresh,
    Cancel(String),
}

/// What is to be asked for beside nodes and jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wants {
    pub(super) explain: Vec<String>,
    pub(super) logs: Option<String>,
}

/// A part of the screen that can be walked through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Pane {
    #[default]
    Gpus,
    Jobs,
    Queue,
}

/// What covers the panes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Cover {
    #[default]
    Nothing,
    Help,
    /// Whether to stop this job.
    Confirm(String),
    /// The output of this job.
    Logs(String),
    /// Why this job waits, or what became of it.
    Why(String),
}

/// Where the user is in a pane. The row is remembered by its name, so that it stays chosen wherever it goes.
#[derive(Clone, Debug, Default)]
pub(super) struct Cursor {
    key: Option<String>,
    pub(super) index: usize,
    pub(super) offset: usize,
    /// By which of its columns the pane is sorted.
    pub(super) sort: usize,
    pub(super) reversed: bool,
}

/// What the user points at.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Subject<'a> {
    Nothing,
    Job(&'a Job),
    Node(&'a Node),
    Gpu(&'a Node, usize),
}

/// The state of the view.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) place: String,
    pub(super) interval: Duration,
    pub(super) size: (u16, u16),
    pub(super) now: Stamp,
    pub(super) data: Option<Snapshot>,
    pub(super) updated: Stamp,
    pub(super) trouble: Option<String>,
    pub(super) notice: Option<(Stamp, String)>,
    pub(super) focus: Pane,
    pub(super) cover: Cover,
    pub(super) filter: String,
    /// The filter is being typed.
    pub(super) typing: bool,
    /// How far a cover is scrolled: from its top, or for output from its end.
    pub(super) scroll: usize,
    folded: BTreeSet<String>,
    cursors: BTreeMap<Pane, Cursor>,
    history: BTreeMap<String, VecDeque<Option<f64>>>,
    explanations: BTreeMap<String, Result<Box<Explanation>, String>>,
    logs: Option<(String, Result<Vec<String>, String>)>,
}

impl Model {
    pub(super) fn new(place: String, interval: Duration, size: (u16, u16), now: Stamp) -> Self {
        Self {
            place,
            interval,
            size,
            now,
            data: None,
            updated: now,
            trouble: None,
            notice: None,
            focus: Pane::Gpus,
            cover: Cover::Nothing,
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

    /// Takes in what happened.
    pub(super) fn update(&mut self, message: Message) -> Option<Effect> {
        let mut effect = None;
        match message {
            Message::Key(key) => effect = self.key(key),
            Message::Resized(columns, rows) => self.size = (columns, rows),
            Message::Clock(now) => self.tick(now),
            Message::Data(data) => self.take(*data),
            Message::Trouble(words) => self.trouble = Some(words),
            Message::Explained(job, said) => {
                self.explanations.insert(job, said);
            }
            Message::Logged(job, lines) => self.logs = Some((job, lines)),
            Message::Cancelled(Ok(words) | Err(words)) => self.notice = Some((self.now, words)),
        }
        self.settle();
        effect
    }

    /// What is to be asked for beside nodes and jobs, as things stand.
    pub(super) fn wants(&self) -> Wants {
        let covered = match &self.cover {
            Cover::Why(job) | Cover::Logs(job) => Some(job.clone()),
            _ => None,
        };
        let subject = match self.subject() {
            Subject::Job(job) => Some(job),
            _ => None,
        };
        let mut explain: Vec<_> = match &self.cover {
            Cover::Why(job) => vec![job.clone()],
            _ => subject.iter().filter(|job| !has_output(job)).map(|job| job.handle()).collect(),
        };
        let offset = self.cursor(Pane::Queue).offset;
        let waiting = self.queue().into_iter().skip(offset).take(EXPLAINED);
        explain.extend(waiting.map(Job::handle));
        let mut seen = BTreeSet::new();
        explain.retain(|job| seen.insert(job.clone()));
        let logs = match &self.cover {
            Cover::Logs(_) => covered,
            _ => subject.filter(|job| has_output(job)).map(Job::handle),
        };
        Wants { explain, logs }
    }

    /// What the user points at.
    pub(super) fn subject(&self) -> Subject<'_> {
        let index = self.cursor(self.focus).index;
        let jobs = match self.focus {
            Pane::Jobs => self.jobs(),
            Pane::Queue => self.queue(),
            Pane::Gpus => Vec::new(),
        };
        match self.focus {
            Pane::Jobs | Pane::Queue => {
                jobs.get(index).map_or(Subject::Nothing, |job| Subject::Job(job))
            }
            Pane::Gpus => match self.gpus().get(index) {
                Some(GpuRow::Node { node, .. }) => Subject::Node(node),
                Some(GpuRow::Gpu { node, gpu }) => Subject::Gpu(node, *gpu),
                None => Subject::Nothing,
            },
        }
    }

    /// The job that keys act on: the one pointed at, or the first one on the GPU pointed at.
    pub(super) fn subject_job(&self) -> Option<&Job> {
        match self.subject() {
            Subject::Job(job) => Some(job),
            Subject::Gpu(node, gpu) => self.jobs_on(node, gpu).into_iter().next(),
            _ => None,
        }
    }

    /// Where the user is in a pane.
    pub(super) fn cursor(&self, pane: Pane) -> Cursor {
        self.cursors.get(&pane).cloned().unwrap_or_default()
    }

    /// A job by what people call it.
    pub(super) fn job(&self, handle: &str) -> Option<&Job> {
        self.data.iter().flat_map(|data| &data.jobs).find(|job| job.handle() == handle)
    }

    /// What was said about a job.
    pub(super) fn explanation(&self, handle: &str) -> Option<&Result<Box<Explanation>, String>> {
        self.explanations.get(handle)
    }

    /// What a job wrote last.
    pub(super) fn logs(&self, handle: &str) -> Option<&Result<Vec<String>, String>> {
        self.logs.as_ref().filter(|(job, _)| job == handle).map(|(_, lines)| lines)
    }

    /// How busy a GPU was, oldest first.
    pub(super) fn history(&self, node: &Node, gpu: usize) -> Option<&VecDeque<Option<f64>>> {
        self.history.get(&gpu_key(node, gpu))
    }

    /// How old the data is, in seconds.
    pub(super) fn age(&self) -> f64 {
        (self.now.0 - self.updated.0).max(0) as f64 / 1000.0
    }

    /// Where things stand on the screen.
    pub(super) fn areas(&self) -> Areas {
        let banner = self.trouble.is_some();
        layout::areas(self.size, banner, self.focus, self.gpus().len())
    }

    fn tick(&mut self, now: Stamp) {
        self.now = now;
        if self.notice.as_ref().is_some_and(|(at, _)| now.0 - at.0 > NOTICE) {
            self.notice = None;
        }
    }

    fn take(&mut self, data: Snapshot) {
        if self.data.is_none() {
            let gpus: usize = data.nodes.iter().map(|node| node.spec.gpu_instances.len()).sum();
            if gpus > UNFOLDED {
                self.folded = data.nodes.iter().map(|node| node.node_id.clone()).collect();
            }
        }
        let mut history = BTreeMap::new();
        for node in &data.nodes {
            for (index, gpu) in node.spec.gpu_instances.iter().enumerate() {
                let key = gpu_key(node, index);
                let mut readings = self.history.remove(&key).unwrap_or_default();
                readings.push_back(gpu.utilization.filter(|percent| percent.is_finite()));
                if readings.len() > KEPT {
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
        self.trouble = None;
    }

    /// Keeps every cursor on its row, or where that row was, and in sight.
    fn settle(&mut self) {
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

/// Whether there is output to show: a job that never had a place wrote nothing.
pub(super) fn has_output(job: &Job) -> bool {
    job.status != JobStatus::Pending && !job.tasks.is_empty()
}

fn gpu_key(node: &Node, gpu: usize) -> String {
    format!("{}/{gpu}", node.node_id)
}
