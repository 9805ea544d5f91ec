//! Expected demand: pinned by the driver, or learned from submissions.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::event::Demand;
use crate::model::name::GpuModel;
use crate::model::request::{GpuRequest, Request};
use crate::state::cluster::Cluster;
use crate::state::cluster::room::CPU;
use crate::state::snapshot::records::DemandSnapshot;
use crate::strategy::frag::{DemandClass, Fgd, NodeShape, Value, ValueOptions};
use crate::strategy::{ScoringData, Strategy};

/// Limit of learned task classes; rarer ones are dropped.
const MOST_KINDS: usize = 256;
/// Counts are halved after this number of tasks, so that old submissions fade.
const MEMORY: u64 = 1 << 16;

/// Expected tasks, and the age of the tables built from them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Expectation {
    pub(crate) pinned: Option<Vec<Demand>>,
    /// Tasks seen per class.
    pub(crate) learned: BTreeMap<TaskClass, u64>,
    /// Demand that the current tables were built from.
    basis: BTreeMap<TaskClass, u64>,
    pub(crate) seen: u64,
    /// Value of `seen` at which the tables are rebuilt.
    pub(crate) renew_at: u64,
    /// The policy's `work_stays`.
    stays: bool,
    /// Submissions are counted, because a strategy that looks ahead is or was in use.
    pub(crate) learns: bool,
    /// Strategies that look ahead, chosen by workloads.
    pub(crate) wanted: BTreeSet<Strategy>,
    /// Node order of the cluster at the time of the build.
    made_for: Option<u64>,
}

/// A class of tasks: CPU, thousandths per GPU, GPUs, and models by name.
pub(crate) type TaskClass = (u64, u32, u32, Vec<GpuModel>);

impl Expectation {
    /// Counts submitted tasks. CPU is rounded up to half cores to limit the number of classes.
    pub(crate) fn learn(&mut self, request: &Request, tasks: u32, milli: u32) {
        let gpus = if milli == 0 { 0 } else { request.gpu_count() };
        let cpu = request.cpu.0.div_ceil(500) * 500;
        let kind = (cpu, milli, gpus, request.models.clone());
        if self.learned.len() >= MOST_KINDS && !self.learned.contains_key(&kind) {
            self.forget();
        }
        *self.learned.entry(kind).or_default() += u64::from(tasks);
        self.seen += u64::from(tasks);
        let total: u64 = self.learned.values().sum();
        if total > MEMORY {
            self.forget();
        }
    }

    fn forget(&mut self) {
        self.learned.retain(|_, count| {
            *count /= 2;
            *count > 0
        });
        if self.learned.len() >= MOST_KINDS {
            self.learned.clear();
        }
    }

    /// The tables must be built: missing, cluster changed, or a tenth more tasks seen.
    fn is_stale(&self, cluster: &Cluster) -> bool {
        self.made_for != Some(cluster.layout)
            || (self.pinned.is_none() && self.seen >= self.renew_at)
    }

    pub(crate) fn expect_to_stay(&mut self, stays: bool) {
        if self.stays != stays {
            self.stays = stays;
            self.made_for = None;
        }
    }

    pub(crate) fn pin(&mut self, demand: Option<Vec<Demand>>) {
        self.pinned = demand;
        self.made_for = None;
    }

    pub(crate) fn facts(&self, cluster: &Cluster, scoring: &ScoringData) -> DemandSnapshot {
        let current = self.made_for == Some(cluster.layout) && cluster.is_sorted();
        DemandSnapshot {
            pinned: self.pinned.clone(),
            learned: self.learned.clone().into_iter().collect(),
            basis: current.then(|| self.basis.clone().into_iter().collect()),
            tables: if current { scoring.tables() } else { [false; 2] },
            seen: [self.seen, self.renew_at],
            wanted: self.wanted.clone(),
            learns: self.learns,
        }
    }

    pub(crate) fn restore(
        &mut self,
        facts: DemandSnapshot,
        cluster: &Cluster,
        scoring: &mut ScoringData,
    ) {
        self.pinned = facts.pinned;
        self.learned = facts.learned.into_iter().collect();
        [self.seen, self.renew_at] = facts.seen;
        self.wanted = facts.wanted;
        self.learns = facts.learns;
        if let Some(basis) = facts.basis {
            self.basis = basis.into_iter().collect();
            self.make_tables(facts.tables, cluster, scoring);
        }
    }

    /// Builds missing or stale tables of the strategies in use; returns true if a table changed.
    pub(crate) fn renew(
        &mut self,
        default: Strategy,
        cluster: &Cluster,
        scoring: &mut ScoringData,
    ) -> bool {
        let needs = self.needs(default);
        if needs != [false; 2] && (self.is_stale(cluster) || needs != scoring.tables()) {
            self.basis = self.learned.clone();
            self.renew_at = self.seen + (self.seen / 10).max(100);
            self.make_tables(needs, cluster, scoring);
            return true;
        }
        false
    }

    pub(crate) fn is_needed(&self, default: Strategy) -> bool {
        self.needs(default) != [false; 2]
    }

    /// The tables of `fgd` and of `least_fragmented` are needed.
    fn needs(&self, default: Strategy) -> [bool; 2] {
        [Strategy::Fgd, Strategy::LeastFragmented]
            .map(|strategy| default == strategy || self.wanted.contains(&strategy))
    }

    fn make_tables(
        &mut self,
        [fgd, value]: [bool; 2],
        cluster: &Cluster,
        scoring: &mut ScoringData,
    ) {
        let classes = self.classes(cluster);
        let options = if self.stays { ValueOptions::filling() } else { ValueOptions::churning() };
        scoring.fgd = fgd.then(|| Fgd::new(&classes, cluster.models.len()));
        scoring.value = value.then(|| Value::new(&classes, &inventory(cluster), &options));
        self.made_for = Some(cluster.layout);
    }

    fn classes(&self, cluster: &Cluster) -> Vec<DemandClass> {
        let class = |cpu: u64, milli: u32, gpus: u32, models: &[GpuModel], count: u64| {
            let wanted = |model: &GpuModel| models.iter().any(|asked| model.serves(asked));
            let known = cluster.models.iter().enumerate().filter(|(_, model)| wanted(model));
            let mut numbers: Vec<u16> = known.map(|(index, _)| index as u16).collect();
            if numbers.is_empty() && !models.is_empty() {
                // An empty list would mean any model; this class can use none.
                numbers.push(u16::MAX);
            }
            let models = numbers;
            DemandClass { cpu: cpu as i64, milli: milli as i32, gpus: gpus as u16, models, count }
        };
        match &self.pinned {
            Some(pinned) => pinned
                .iter()
                .map(|d| {
                    let (milli, gpus) = share(d.gpu);
                    class(d.cpu.0, milli, gpus, &d.models, d.count)
                })
                .collect(),
            None => self
                .basis
                .iter()
                .map(|((cpu, milli, gpus, models), count)| {
                    class(*cpu, *milli, *gpus, models, *count)
                })
                .collect(),
        }
    }
}

/// Thousandths per GPU, and number of GPUs.
fn share(gpu: GpuRequest) -> (u32, u32) {
    match gpu {
        GpuRequest::None | GpuRequest::Memory(_) | GpuRequest::Mig { .. } => (0, 0),
        GpuRequest::Whole(count) => (1000, count),
        GpuRequest::Fraction(share) => (share.get(), 1),
    }
}

/// Nodes of the cluster, counted by shape.
fn inventory(cluster: &Cluster) -> Vec<NodeShape> {
    let mut kinds: BTreeMap<(u16, u16, i64), u32> = BTreeMap::new();
    for node in &cluster.order {
        let room = cluster.room(*node);
        let model = room.devices.first().map_or(0, |device| device.model);
        *kinds.entry((model, room.devices.len() as u16, room.total[CPU])).or_default() += 1;
    }
    kinds
        .into_iter()
        .map(|((model, gpus, cpu), count)| NodeShape { model, gpus, cpu, count })
        .collect()
}
