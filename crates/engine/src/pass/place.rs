//! Placement: books the tasks of a workload, a gang with all tasks or none.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::request::Request;
use crate::model::wait::QuotaResource;
use crate::model::workload::Topology;
use crate::pass::find::{Domain, Search};
use crate::pass::gang::TaskBatch;
use crate::quota::charge::{Charge, Excess};
use crate::quota::queues::GPU;
use crate::state::cluster::capacity;
use crate::state::cluster::room::DeviceClaim;
use crate::state::cluster::shape::{GpuNeed, ShapeIdx};
use crate::state::scheduler::Scheduler;
use crate::state::workloads::WorkloadIdx;
use crate::strategy::Strategy;

/// Result of a failed placement; wait reasons add the details on demand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    NoRoom,
    /// `fits` tasks of the gang found room; `task` did not.
    Gang {
        fits: u32,
        task: u32,
    },
    Quota(Excess),
}

/// Tasks with the same search parameters.
#[derive(Clone, Debug)]
struct TaskSearch {
    tasks: Vec<u32>,
    search: Search,
}

impl Scheduler {
    /// Books all tasks of a pending workload, or none.
    pub(crate) fn place_workload(&mut self, workload: WorkloadIdx) -> Result<(), Obstacle> {
        let spec = self.workloads.get(workload).spec.clone();
        self.check_quota(workload)?;
        if spec.tasks == 1 && spec.roles.is_empty() {
            let mut search =
                self.search(workload, spec.request.clone(), self.workloads.get(workload).shape);
            return self.place_task(workload, 0, &mut search);
        }
        let errand = |TaskBatch { tasks, request, shape }| TaskSearch {
            tasks,
            search: self.search(workload, request, shape),
        };
        let errands: Vec<TaskSearch> =
            self.batches_hardest_first(workload).into_iter().map(errand).collect();
        for level in &spec.preferred_topology {
            if self.place_together(workload, &errands, level).is_ok() {
                return Ok(());
            }
        }
        match &spec.topology {
            None => {
                let mut before = 0;
                for TaskSearch { tasks, search } in &errands {
                    let fits = self.fitting_tasks(search, tasks.len() as u32);
                    if fits < tasks.len() as u32 {
                        return Err(Obstacle::Gang { fits: before + fits, task: tasks[0] });
                    }
                    before += fits;
                }
                self.place_gang(workload, errands, Domain::Any)
            }
            Some(Topology::Spread(key)) => {
                let domain = Domain::Fewest(key.as_str().into(), BTreeMap::new());
                self.place_gang(workload, errands, domain)
            }
            Some(Topology::Same(key)) => self.place_together(workload, &errands, key),
        }
    }

    pub(crate) fn search(
        &self,
        workload: WorkloadIdx,
        request: Arc<Request>,
        shape: ShapeIdx,
    ) -> Search {
        Search {
            request,
            shape,
            strategy: self.strategy(self.workloads.get(workload)),
            closed: Vec::new(),
            excess: None,
            avoid: self.workloads.get(workload).avoid,
            domain: Domain::Any,
        }
    }

    /// Tries the topology domains with room for the whole gang, tightest first.
    fn place_together(
        &mut self,
        workload: WorkloadIdx,
        errands: &[TaskSearch],
        key: &str,
    ) -> Result<(), Obstacle> {
        let mut rooms = Vec::new();
        for TaskSearch { tasks, search } in errands {
            rooms.push((self.fitting_tasks_by_domain(search, key, tasks.len() as u32), tasks));
        }
        let names = &self.cluster.domains(key).names;
        let mut enough: Vec<(u32, Arc<str>, u32)> = Vec::new();
        let (mut most, mut missing) = (0, errands[0].tasks[0]);
        for (domain, name) in names.iter().enumerate() {
            let room = |rooms: &BTreeMap<u32, u32>| rooms.get(&(domain as u32)).copied();
            let room = |rooms| room(rooms).unwrap_or(0);
            let fits = rooms.iter().map(|(rooms, tasks)| room(rooms).min(tasks.len() as u32)).sum();
            let short = rooms.iter().find(|(rooms, tasks)| room(rooms) < tasks.len() as u32);
            match short {
                None => enough.push((room(&rooms[0].0), name.clone(), domain as u32)),
                Some((_, tasks)) if fits > most => (most, missing) = (fits, tasks[0]),
                Some(_) => {}
            }
        }
        enough.sort();
        if !enough.is_empty() {
            most = self.workloads.get(workload).count() - 1;
        }
        for (_, _, domain) in enough {
            match self.place_gang(workload, errands.to_vec(), Domain::Only(key.into(), domain)) {
                Ok(()) => return Ok(()),
                Err(Obstacle::Gang { task, .. }) => missing = task,
                Err(Obstacle::NoRoom) => {}
                Err(quota) => return Err(quota),
            }
        }
        Err(Obstacle::Gang { fits: most, task: missing })
    }

    /// Books the tasks one by one; releases all of them when one finds no node.
    fn place_gang(
        &mut self,
        workload: WorkloadIdx,
        errands: Vec<TaskSearch>,
        mut domain: Domain,
    ) -> Result<(), Obstacle> {
        let cursor = self.cursor.clone();
        let recorded = self.rankings.recorded.len();
        let mut placed = 0;
        for TaskSearch { tasks, mut search } in errands {
            search.domain = domain;
            for task in tasks {
                if let Err(obstacle) = self.place_task(workload, task, &mut search) {
                    for task in 0..self.workloads.get(workload).count() {
                        self.release_task(workload, task);
                    }
                    self.cursor = cursor;
                    self.rankings.recorded.truncate(recorded);
                    return Err(match (obstacle, search.excess.take()) {
                        // A quota stops the gang where nodes have room, so more nodes would not help.
                        (Obstacle::Quota(excess), _) | (_, Some(excess)) => Obstacle::Quota(excess),
                        (_, None) => Obstacle::Gang { fits: placed, task },
                    });
                }
                placed += 1;
                self.count_domain(workload, task, &mut search.domain);
            }
            domain = search.domain;
        }
        Ok(())
    }

    pub(crate) fn count_domain(&mut self, workload: WorkloadIdx, task: u32, domain: &mut Domain) {
        if let Domain::Fewest(key, counts) = domain {
            let allocation = self.workloads.get(workload).tasks[task as usize].allocation.as_ref();
            let node = allocation.map(|allocation| allocation.node);
            let domains = self.cluster.domains(key);
            if let Some(domain) = node.and_then(|node| domains.of[node as usize]) {
                *counts.entry(domain).or_default() += 1;
            }
        }
    }

    /// Books one task on the best node within quota. An exceeded model quota excludes that model, and the
    /// search continues without it.
    pub(crate) fn place_task(
        &mut self,
        workload: WorkloadIdx,
        task: u32,
        search: &mut Search,
    ) -> Result<(), Obstacle> {
        let queue = self.workloads.get(workload).queue;
        loop {
            let Some((node, claim)) = self.find(search) else {
                return Err(Obstacle::NoRoom);
            };
            match self.queues.excess(&self.cluster, queue, &Charge::of(&claim)) {
                None => {
                    if search.strategy == Strategy::RoundRobin {
                        self.cursor = Some(self.cursor_after(node, &claim));
                    }
                    self.record_ranking(workload, task, search, node);
                    self.book_task(workload, task, node, claim);
                    return Ok(());
                }
                Some(excess) => {
                    let shape = self.cluster.shape(search.shape);
                    let by_device = matches!(excess.resource, QuotaResource::GpuModel(_))
                        || (excess.resource == QuotaResource::Gpu
                            && matches!(shape.gpu_need, GpuNeed::Memory(_)));
                    let over = |part: &&DeviceClaim| match &excess.resource {
                        QuotaResource::GpuModel(model) => {
                            self.cluster.models[usize::from(part.model)].serves(model)
                        }
                        _ => true,
                    };
                    let model = claim.devices.iter().find(over).map(|part| part.model);
                    let Some(model) = model.filter(|_| by_device) else {
                        return Err(Obstacle::Quota(excess));
                    };
                    search.excess = Some(excess.clone());
                    search.closed.push(model);
                    search.closed.sort_unstable();
                    search.shape = self.cluster.intern(&search.request, search.closed.clone());
                    if !self.is_eligible_anywhere_for(search) {
                        return Err(Obstacle::Quota(excess));
                    }
                }
            }
        }
    }

    /// Number of tasks of the shape that fit now, up to `enough`.
    fn fitting_tasks(&mut self, search: &Search, enough: u32) -> u32 {
        let scoring = (&self.scoring, self.scoring_version);
        let index = self.indexes.get(&self.cluster, scoring, search.shape, search.strategy);
        let shape = self.cluster.shape(search.shape);
        let mut room = 0;
        for (place, _) in index.candidates() {
            room += capacity::task_capacity(
                shape,
                self.cluster.room(self.cluster.order[place]),
                enough - room,
            );
            if room >= enough {
                break;
            }
        }
        room
    }

    /// [`fitting_tasks`](Self::fitting_tasks) per topology domain.
    fn fitting_tasks_by_domain(
        &mut self,
        search: &Search,
        key: &str,
        enough: u32,
    ) -> BTreeMap<u32, u32> {
        let of = self.cluster.domains(key).of.clone();
        let scoring = (&self.scoring, self.scoring_version);
        let index = self.indexes.get(&self.cluster, scoring, search.shape, search.strategy);
        let shape = self.cluster.shape(search.shape);
        let mut rooms = BTreeMap::new();
        for (place, _) in index.candidates() {
            let node = self.cluster.order[place];
            if let Some(domain) = of[node as usize] {
                let room = rooms.entry(domain).or_insert(0_u32);
                *room = room.saturating_add(capacity::task_capacity(
                    shape,
                    self.cluster.room(node),
                    enough,
                ));
            }
        }
        rooms
    }

    /// Checks the quota before the search for nodes. More nodes do not help a queue at its limit, so the
    /// quota must be the reported reason.
    fn check_quota(&self, workload: WorkloadIdx) -> Result<(), Obstacle> {
        let queue = self.workloads.get(workload).queue;
        match self.queues.excess(&self.cluster, queue, &self.charge_of(workload)) {
            Some(excess) => Err(Obstacle::Quota(excess)),
            None => Ok(()),
        }
    }

    /// Minimum charge of a workload on any devices.
    pub(crate) fn charge_of(&self, workload: WorkloadIdx) -> Charge {
        let workload = self.workloads.get(workload);
        let mut charge = self.nominal_charge(workload.shape, workload.spec.tasks);
        for (shape, tasks) in workload.shapes().skip(1) {
            charge.add(&self.nominal_charge(shape, tasks));
        }
        charge
    }

    /// Minimum charge of `tasks` tasks on any devices.
    pub(crate) fn nominal_charge(&self, shape: ShapeIdx, tasks: u32) -> Charge {
        let shape = self.cluster.shape(shape);
        let times = i64::from(tasks);
        let mut base = shape.need.amounts.map(|amount| amount * times);
        let milli = match shape.gpu_need {
            GpuNeed::None => 0,
            // The share of the largest GPU.
            GpuNeed::Memory(mib) if !shape.exclusive => {
                let largest = i64::from(self.cluster.largest_gpu().max(mib).max(1));
                (i64::from(mib) * 1000 / largest).max(1)
            }
            // The actual share depends on the device.
            GpuNeed::Mig(..) if !shape.exclusive => 1,
            GpuNeed::Share(milli) if !shape.exclusive => i64::from(milli),
            GpuNeed::Whole(count) => i64::from(count) * 1000,
            _ => 1000,
        };
        base[GPU] = milli * times;
        let named =
            shape.need.named.iter().map(|(resource, amount)| (*resource, amount * times)).collect();
        Charge { base, models: smallvec::SmallVec::new(), named }
    }
}
