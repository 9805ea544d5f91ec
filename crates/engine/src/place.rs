//! Finding places: one task at a time on the best node, a gang whole or not at all.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::cluster::fit::{self, Standing};
use crate::cluster::room::{Claim, DeviceClaim, ModelIdx};
use crate::cluster::shape::{Ask, ShapeIdx};
use crate::cluster::{NodeIdx, pick};
use crate::decision::QuotaResource;
use crate::labels;
use crate::quota::{Charge, Excess};
use crate::request::{Request, Spread};
use crate::scheduler::{Cursor, Scheduler};
use crate::strategy::{Strategy, View};
use crate::task::JobIdx;
use crate::terms::Judgement;
use crate::workload::Topology;

/// Why a workload was not placed; the details are worked out when somebody is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// No node has room for a task.
    NoRoom,
    /// Only so many tasks of the gang found room.
    Gang(u32),
    /// A queue is at its limit.
    Quota(Excess),
}

/// What is being looked for.
#[derive(Clone, Debug)]
struct Search {
    /// What the task asks for, with its own labels.
    request: Arc<Request>,
    shape: ShapeIdx,
    strategy: Strategy,
    /// Models closed by quotas so far.
    closed: Vec<ModelIdx>,
    /// The limit that closed the last of them, although there was room.
    excess: Option<Excess>,
    avoid: Option<NodeIdx>,
    domain: Domain,
}

/// Which nodes a task of a gang may go to.
#[derive(Clone, Debug)]
enum Domain {
    Any,
    /// Only this value of a topology key.
    Only(Arc<str>, u32),
    /// Values of the key with fewer tasks of this gang first.
    Fewest(Arc<str>, BTreeMap<u32, u32>),
}

impl Scheduler {
    /// Books all tasks of a waiting workload, or none.
    pub(crate) fn place(&mut self, job: JobIdx) -> Result<(), Obstacle> {
        let spec = self.jobs.get(job).spec.clone();
        let mut search = Search {
            request: spec.request.clone(),
            shape: self.jobs.get(job).shape,
            strategy: self.strategy(self.jobs.get(job)),
            closed: Vec::new(),
            excess: None,
            avoid: self.jobs.get(job).avoid,
            domain: Domain::Any,
        };
        self.check_quota(job)?;
        if spec.tasks == 1 {
            return self.place_task(job, 0, &mut search);
        }
        match &spec.topology {
            None => {
                let fits = self.room_for(&search, spec.tasks);
                if fits < spec.tasks {
                    return Err(Obstacle::Gang(fits));
                }
                self.place_gang(job, &mut search)
            }
            Some(Topology::Spread(key)) => {
                search.domain = Domain::Fewest(key.as_str().into(), BTreeMap::new());
                self.place_gang(job, &mut search)
            }
            Some(Topology::Same(key)) => self.place_together(job, &search, key),
        }
    }

    /// Tries the domains that have room for the whole gang, the tightest first.
    fn place_together(&mut self, job: JobIdx, search: &Search, key: &str) -> Result<(), Obstacle> {
        let tasks = self.jobs.get(job).spec.tasks;
        let rooms = self.room_by_domain(search, key, tasks);
        let mut enough: Vec<(u32, Arc<str>, u32)> = Vec::new();
        let names = &self.cluster.domains(key).names;
        for (domain, room) in &rooms {
            if *room >= tasks {
                enough.push((*room, names[*domain as usize].clone(), *domain));
            }
        }
        enough.sort();
        let mut most = rooms.values().copied().max().unwrap_or(0).min(tasks - 1);
        for (_, _, domain) in enough {
            let mut search = Search { domain: Domain::Only(key.into(), domain), ..search.clone() };
            match self.place_gang(job, &mut search) {
                Ok(()) => return Ok(()),
                Err(Obstacle::Gang(fits)) => most = most.max(fits),
                Err(Obstacle::NoRoom) => {}
                Err(quota) => return Err(quota),
            }
        }
        Err(Obstacle::Gang(most))
    }

    /// Books the tasks one after the other; takes all back when one finds no place.
    fn place_gang(&mut self, job: JobIdx, search: &mut Search) -> Result<(), Obstacle> {
        let tasks = self.jobs.get(job).spec.tasks;
        let cursor = self.cursor.clone();
        for task in 0..tasks {
            if let Err(obstacle) = self.place_task(job, task, search) {
                for task in 0..task {
                    self.unseat(job, task);
                }
                self.cursor = cursor;
                return Err(match (obstacle, search.excess.take()) {
                    // Its queue cannot pay for all of it where there is room: nodes would not help.
                    (Obstacle::Quota(excess), _) | (_, Some(excess)) => Obstacle::Quota(excess),
                    (Obstacle::NoRoom | Obstacle::Gang(_), None) => Obstacle::Gang(task),
                });
            }
            if let Domain::Fewest(key, counts) = &mut search.domain {
                let node =
                    self.jobs.get(job).tasks[task as usize].seat.as_ref().map(|seat| seat.node);
                let domains = self.cluster.domains(key);
                if let Some(domain) = node.and_then(|node| domains.of[node as usize]) {
                    *counts.entry(domain).or_default() += 1;
                }
            }
        }
        Ok(())
    }

    /// Books one task on the best node that fits and that its queue can pay for. A quota on a GPU
    /// model closes that model and the search goes on without it.
    fn place_task(&mut self, job: JobIdx, task: u32, search: &mut Search) -> Result<(), Obstacle> {
        let queue = self.jobs.get(job).queue;
        loop {
            let Some((node, claim)) = self.find(search) else {
                return Err(Obstacle::NoRoom);
            };
            match self.queues.excess(&self.cluster, queue, &Charge::of(&claim)) {
                None => {
                    if search.strategy == Strategy::RoundRobin {
                        self.cursor = Some(self.cursor_at(node, &claim));
                    }
                    self.seat(job, task, node, claim);
                    return Ok(());
                }
                Some(excess) => {
                    let shape = self.cluster.shape(search.shape);
                    let by_device = matches!(excess.resource, QuotaResource::GpuModel(_))
                        || (excess.resource == QuotaResource::Gpu
                            && matches!(shape.ask, Ask::Memory(_)));
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
                    if !self.any_standing(search) {
                        return Err(Obstacle::Quota(excess));
                    }
                }
            }
        }
    }

    /// The best node and the devices there.
    fn find(&mut self, search: &Search) -> Option<(NodeIdx, Claim)> {
        let request = &search.request;
        let plain = matches!(search.domain, Domain::Any) && search.avoid.is_none();
        if plain && self.terms.ignore(request) {
            let prefers = request.preferred_model.is_some() || !request.preferred_nodes.is_empty();
            if search.strategy == Strategy::RoundRobin && prefers {
                return self.find_among(search, None, None);
            }
            if search.strategy == Strategy::RoundRobin {
                return self.find_next(search, None);
            }
            let outlook = (&self.outlook, self.outlook_version);
            let node = self.indexes.best(&self.cluster, outlook, search.shape, search.strategy)?;
            let view = self.view(node, search.shape);
            return pick::claim(search.strategy, &view, None).map(|claim| (node, claim));
        }
        let judgement = (!self.terms.ignore(request))
            .then(|| self.judge(request, search.shape, search.strategy, &[]));
        let found = self.find_among(search, judgement.as_ref(), search.avoid);
        // A node that refused is better than none.
        if found.is_none() && search.avoid.is_some() {
            return self.find_among(search, judgement.as_ref(), None);
        }
        found
    }

    /// The best node that the domain and the terms between tasks allow: a walk over all that fit.
    fn find_among(
        &mut self,
        search: &Search,
        judgement: Option<&Judgement>,
        avoid: Option<NodeIdx>,
    ) -> Option<(NodeIdx, Claim)> {
        let domains = match &search.domain {
            Domain::Any => None,
            Domain::Only(key, _) | Domain::Fewest(key, _) => {
                Some(self.cluster.domains(key).of.clone())
            }
        };
        let index = self.indexes.get(
            &self.cluster,
            (&self.outlook, self.outlook_version),
            search.shape,
            search.strategy,
        );
        let mut allowed: Vec<(i64, i64, usize)> = Vec::new();
        for (place, score) in index.candidates() {
            let node = self.cluster.order[place];
            let domain = domains.as_ref().map(|of| of[node as usize]);
            let crowd = match (&search.domain, domain) {
                (Domain::Any, _) => 0,
                (Domain::Only(_, only), Some(Some(domain))) if domain == *only => 0,
                (Domain::Fewest(_, counts), Some(Some(domain))) => {
                    counts.get(&domain).copied().unwrap_or(0)
                }
                _ => continue,
            };
            let verdict =
                judgement.map(|judgement| judgement.verdicts[node as usize]).unwrap_or_default();
            if verdict.lack.is_none() && avoid != Some(node) {
                let score = score.saturating_add(i64::from(verdict.liking).saturating_mul(1 << 40));
                allowed.push((-i64::from(crowd), score, place));
            }
        }
        if search.strategy == Strategy::RoundRobin {
            // Preferences and even domains come first, the turn decides among equals.
            let best = allowed.iter().map(|(crowd, score, _)| (*crowd, *score)).max()?;
            let equal = allowed.iter().filter(|(crowd, score, _)| (*crowd, *score) == best);
            let places: Vec<usize> = equal.map(|(_, _, place)| *place).collect();
            return self.find_next(search, Some(&places));
        }
        let best = allowed
            .into_iter()
            .max_by_key(|(crowd, score, place)| (*crowd, *score, std::cmp::Reverse(*place)));
        let node = self.cluster.order[best?.2];
        let view = self.view(node, search.shape);
        pick::claim(search.strategy, &view, None).map(|claim| (node, claim))
    }

    /// Round robin: the first fitting device behind the cursor, in order of nodes and devices.
    fn find_next(&mut self, search: &Search, among: Option<&[usize]>) -> Option<(NodeIdx, Claim)> {
        let (start, after) = self.after_cursor();
        let fits_here = self.first_place(search, among, start) == Some(start);
        if let Some(after) = after.filter(|_| fits_here) {
            let node = self.cluster.order[start];
            let view = self.view(node, search.shape);
            if let Some(claim) =
                pick::claim(search.strategy, &view, Some(after)).filter(|c| !c.devices.is_empty())
            {
                return Some((node, claim));
            }
        }
        let next = start + usize::from(after.is_some());
        let place =
            self.first_place(search, among, next).or_else(|| self.first_place(search, among, 0))?;
        let node = self.cluster.order[place];
        let view = self.view(node, search.shape);
        pick::claim(search.strategy, &view, None).map(|claim| (node, claim))
    }

    fn first_place(
        &mut self,
        search: &Search,
        among: Option<&[usize]>,
        from: usize,
    ) -> Option<usize> {
        if let Some(places) = among {
            return places.iter().copied().find(|place| *place >= from);
        }
        let outlook = (&self.outlook, self.outlook_version);
        self.indexes.first_from(&self.cluster, outlook, search.shape, search.strategy, from)
    }

    /// Where round robin goes on: a place in the order and, if its node was the last one used, the
    /// device behind which to look.
    fn after_cursor(&self) -> (usize, Option<usize>) {
        let Some(cursor) = &self.cursor else { return (0, None) };
        let order = &self.cluster.order;
        let place = order.partition_point(|node| {
            let spec = &self.cluster.host(*node).spec;
            (spec.rank, &spec.id) < (cursor.rank, &cursor.node)
        });
        let Some(host) = order.get(place).map(|node| self.cluster.host(*node)) else {
            return (0, None);
        };
        if host.spec.id != cursor.node {
            return (place, None);
        }
        let last = host.spec.gpus.len().saturating_sub(1);
        let device = cursor.gpu.as_ref().and_then(|gpu| host.device(gpu)).unwrap_or(last);
        (place, Some(device))
    }

    fn cursor_at(&self, node: NodeIdx, claim: &Claim) -> Cursor {
        let spec = &self.cluster.host(node).spec;
        let last = claim.devices.iter().map(|part| usize::from(part.device)).max();
        Cursor {
            rank: spec.rank,
            node: spec.id.clone(),
            gpu: last.map(|device| spec.gpus[device].id.clone()),
        }
    }

    pub(crate) fn view(&self, node: NodeIdx, shape: ShapeIdx) -> View<'_> {
        View {
            room: self.cluster.room(node),
            shape: self.cluster.shape(shape),
            outlook: &self.outlook,
        }
    }

    /// What terms between tasks say about every node for a task of this shape.
    pub(crate) fn judge(
        &mut self,
        request: &Request,
        shape: ShapeIdx,
        strategy: Strategy,
        without: &[(NodeIdx, &Request)],
    ) -> Judgement {
        let outlook = (&self.outlook, self.outlook_version);
        let mut index = self.indexes.get(&self.cluster, outlook, shape, strategy);
        let mut eligible = vec![false; self.cluster.hosts.len()];
        for (place, node) in self.cluster.order.iter().enumerate() {
            let barred = matches!(
                index.standing(place),
                Standing::No(fit::Code::OtherNode | fit::Code::Selector | fit::Code::NodeAffinity)
            );
            eligible[*node as usize] = !barred;
        }
        let mut tainted = vec![false; eligible.len()];
        if request.spread.iter().any(|spread| spread.honor_taints) {
            for node in &self.cluster.order {
                let taints = &self.cluster.host(*node).spec.taints;
                tainted[*node as usize] =
                    labels::first_untolerated(taints, &request.tolerations).is_some();
            }
        }
        let counts = |node: NodeIdx, spread: &Spread| {
            let node = node as usize;
            (eligible[node] || spread.ignore_node_affinity)
                && !(tainted[node] && spread.honor_taints)
        };
        self.terms.judge(&mut self.cluster, request, counts, without)
    }

    /// How many tasks of the shape fit now, counted up to `enough`.
    fn room_for(&mut self, search: &Search, enough: u32) -> u32 {
        let outlook = (&self.outlook, self.outlook_version);
        let index = self.indexes.get(&self.cluster, outlook, search.shape, search.strategy);
        let shape = self.cluster.shape(search.shape);
        let mut room = 0;
        for (place, _) in index.candidates() {
            room += fit::copies(shape, self.cluster.room(self.cluster.order[place]), enough - room);
            if room >= enough {
                break;
            }
        }
        room
    }

    /// The same for each value of a topology key.
    fn room_by_domain(&mut self, search: &Search, key: &str, enough: u32) -> BTreeMap<u32, u32> {
        let of = self.cluster.domains(key).of.clone();
        let outlook = (&self.outlook, self.outlook_version);
        let index = self.indexes.get(&self.cluster, outlook, search.shape, search.strategy);
        let shape = self.cluster.shape(search.shape);
        let mut rooms = BTreeMap::new();
        for (place, _) in index.candidates() {
            let node = self.cluster.order[place];
            if let Some(domain) = of[node as usize] {
                let room = rooms.entry(domain).or_insert(0_u32);
                *room = room.saturating_add(fit::copies(shape, self.cluster.room(node), enough));
            }
        }
        rooms
    }

    /// Refuses what its queue could not pay for, before a place is looked for: more nodes would not
    /// cure that, so room must not be given as the reason.
    fn check_quota(&self, job: JobIdx) -> Result<(), Obstacle> {
        let job = self.jobs.get(job);
        let charge = self.nominal_charge(job.shape, job.spec.tasks);
        match self.queues.excess(&self.cluster, job.queue, &charge) {
            Some(excess) => Err(Obstacle::Quota(excess)),
            None => Ok(()),
        }
    }

    /// What so many tasks cost at least, whatever devices they get.
    pub(crate) fn nominal_charge(&self, shape: ShapeIdx, tasks: u32) -> Charge {
        let shape = self.cluster.shape(shape);
        let times = i64::from(tasks);
        let mut base = shape.need.amounts.map(|amount| amount * times);
        let milli = match shape.ask {
            Ask::None => 0,
            // At least its share of the largest GPU.
            Ask::Memory(mib) if !shape.exclusive => {
                let largest = i64::from(self.cluster.largest_gpu().max(mib).max(1));
                (i64::from(mib) * 1000 / largest).max(1)
            }
            // How much that is depends on the device.
            Ask::Mig(..) if !shape.exclusive => 1,
            Ask::Share(milli) if !shape.exclusive => i64::from(milli),
            Ask::Whole(count) => i64::from(count) * 1000,
            _ => 1000,
        };
        base[crate::queues::GPU] = milli * times;
        let named =
            shape.need.named.iter().map(|(resource, amount)| (*resource, amount * times)).collect();
        Charge { base, models: smallvec::SmallVec::new(), named }
    }

    /// Whether any node's description still allows the shape.
    fn any_standing(&mut self, search: &Search) -> bool {
        let outlook = (&self.outlook, self.outlook_version);
        let mut index = self.indexes.get(&self.cluster, outlook, search.shape, search.strategy);
        (0..self.cluster.order.len()).any(|place| matches!(index.standing(place), Standing::Yes(_)))
    }
}
