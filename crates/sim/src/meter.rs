//! Independent accounting of allocation and fragmentation.
//!
//! The engine knows the same numbers, but a measurement based on the engine's own accounting would not notice
//! its errors.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use agentaflow_engine::mig::Geometry;
use agentaflow_engine::{
    GpuAssignment, GpuModel, GpuRequest, GpuShare, MigMode, MigProfile, Node, NodeId, Placement,
    Request, WorkloadId,
};

/// Thousandths of a GPU.
const WHOLE: i64 = 1000;
/// Share of all tasks that the typical demand covers; rare shapes only add noise.
const TYPICAL_PERCENT: u64 = 95;
/// Limit of typical shapes, which keeps measuring cheaper than deciding.
const MAX_SHAPES: usize = 200;

/// Follows placements and ends of workloads.
#[derive(Debug)]
pub(crate) struct Meter {
    shapes: Vec<Shape>,
    /// Number of tasks that the shapes represent.
    weight: i64,
    free: Vec<FreeResources>,
    numbers: HashMap<NodeId, usize>,
    allocations: HashMap<WorkloadId, Vec<TaskAllocation>>,
    pub(crate) capacity: i64,
    pub(crate) allocated: i64,
    /// Sum over nodes and shapes of unusable thousandths times the shape's weight.
    unusable: i64,
}

/// A shape of the typical demand.
#[derive(Debug)]
struct Shape {
    cpu: i64,
    gpu: GpuRequest,
    /// By model index.
    accepts: Vec<bool>,
    count: i64,
}

/// Free resources of a node.
#[derive(Debug)]
struct FreeResources {
    cpu: i64,
    devices: Vec<Device>,
    unusable: i64,
}

#[derive(Debug)]
struct Device {
    left: i64,
    model: usize,
    mib: i64,
    geometry: Option<&'static Geometry>,
    id: agentaflow_engine::GpuId,
}

/// Resources of one task.
#[derive(Debug)]
struct TaskAllocation {
    node: usize,
    cpu: i64,
    parts: Vec<(usize, i64)>,
}

impl Meter {
    /// Empty nodes; `demand` lists all requests with their number of tasks.
    pub(crate) fn new<'a>(
        nodes: &[Node],
        demand: impl Iterator<Item = (&'a Request, u64)>,
    ) -> Self {
        let all = nodes.iter().flat_map(|node| &node.gpus).map(|gpu| gpu.model.clone());
        let models: Vec<GpuModel> = all.collect::<BTreeSet<_>>().into_iter().collect();
        let shapes = typical(demand, &models);
        let mut meter = Self {
            weight: shapes.iter().map(|shape| shape.count).sum(),
            shapes,
            free: nodes.iter().map(|node| FreeResources::new(node, &models)).collect(),
            numbers: nodes
                .iter()
                .enumerate()
                .map(|(number, node)| (node.id.clone(), number))
                .collect(),
            allocations: HashMap::new(),
            capacity: nodes.iter().map(|node| node.gpus.len() as i64 * WHOLE).sum(),
            allocated: 0,
            unusable: 0,
        };
        for node in 0..meter.free.len() {
            meter.measure(node);
        }
        meter
    }

    pub(crate) fn place(&mut self, placement: &Placement, request: &Request) {
        let Some(node) = self.numbers.get(&placement.node).copied() else { return };
        let parts = self.free[node].parts(&placement.gpus);
        let allocation = TaskAllocation { node, cpu: request.cpu.0 as i64, parts };
        self.change(&allocation, -1);
        self.allocations.entry(placement.workload.clone()).or_default().push(allocation);
    }

    pub(crate) fn leave(&mut self, workload: &WorkloadId) {
        for allocation in self.allocations.remove(workload).unwrap_or_default() {
            self.change(&allocation, 1);
        }
    }

    /// Unallocated GPU thousandths.
    pub(crate) fn idle(&self) -> i64 {
        self.capacity - self.allocated
    }

    /// Idle thousandths that the average typical task cannot use.
    pub(crate) fn unusable(&self) -> f64 {
        if self.weight == 0 { 0.0 } else { self.unusable as f64 / self.weight as f64 }
    }

    pub(crate) fn allocated_percent(&self) -> f64 {
        percent(self.allocated as f64, self.capacity as f64)
    }

    pub(crate) fn fragmentation_percent(&self) -> f64 {
        percent(self.unusable(), self.idle() as f64)
    }

    fn change(&mut self, allocation: &TaskAllocation, sign: i64) {
        let book = &mut self.free[allocation.node];
        book.cpu += sign * allocation.cpu;
        for (device, milli) in &allocation.parts {
            book.devices[*device].left += sign * milli;
            self.allocated -= sign * milli;
        }
        self.measure(allocation.node);
    }

    fn measure(&mut self, node: usize) {
        let book = &mut self.free[node];
        let unusable = self.shapes.iter().map(|shape| shape.count * shape.unusable(book)).sum();
        self.unusable += unusable - book.unusable;
        book.unusable = unusable;
    }
}

/// Percentage; zero for an empty whole.
pub(crate) fn percent(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { 100.0 * part / whole } else { 0.0 }
}

impl Shape {
    /// Idle thousandths that this shape cannot use: all of them when no task fits, otherwise thousandths on devices
    /// with too little left.
    fn unusable(&self, book: &FreeResources) -> i64 {
        let (mut idle, mut lost, mut places) = (0, 0, 0);
        for device in &book.devices {
            let left = device.left.max(0);
            idle += left;
            match self.need(device).filter(|need| left >= *need) {
                // Slices may share a device; every other request needs that many devices.
                Some(need) if matches!(self.gpu, GpuRequest::Mig { .. }) => places += left / need,
                Some(_) => places += 1,
                None => lost += left,
            }
        }
        let wanted = match self.gpu {
            GpuRequest::None => return idle,
            GpuRequest::Whole(count) | GpuRequest::Mig { count, .. } => i64::from(count),
            GpuRequest::Fraction(_) | GpuRequest::Memory(_) => 1,
        };
        if self.cpu > book.cpu || places < wanted { idle } else { lost }
    }

    /// Thousandths that a task takes of the device; `None` when the device is unsuitable.
    fn need(&self, device: &Device) -> Option<i64> {
        if !self.accepts[device.model] {
            return None;
        }
        match (self.gpu, device.geometry) {
            (GpuRequest::Mig { profile, .. }, Some(geometry)) => slice_milli(geometry, profile),
            (GpuRequest::Whole(_), None) => Some(WHOLE),
            (GpuRequest::Fraction(share), None) => Some(share.get().into()),
            (GpuRequest::Memory(mib), None) => Some(mib.0 as i64 * WHOLE / device.mib.max(1)),
            _ => None,
        }
    }
}

impl FreeResources {
    fn new(node: &Node, models: &[GpuModel]) -> Self {
        let device = |gpu: &agentaflow_engine::Gpu| Device {
            left: WHOLE,
            model: models.binary_search(&gpu.model).unwrap_or(0),
            mib: gpu.memory.0 as i64,
            geometry: (gpu.mig != MigMode::Off)
                .then(|| Geometry::for_gpu(gpu.model.as_str(), gpu.memory.0))
                .flatten(),
            id: gpu.id.clone(),
        };
        let devices = node.gpus.iter().map(device).collect();
        Self { cpu: node.cpu.0 as i64, devices, unusable: 0 }
    }

    /// Devices and thousandths of an assignment.
    fn parts(&self, gpus: &GpuAssignment) -> Vec<(usize, i64)> {
        let devices = || self.devices.iter().enumerate();
        match gpus {
            // The node chooses; count any free device.
            GpuAssignment::Count(count) => {
                let free = devices().filter(|(_, device)| device.left >= WHOLE);
                free.take(*count as usize).map(|(index, _)| (index, WHOLE)).collect()
            }
            GpuAssignment::Devices(parts) => {
                let part = |part: &agentaflow_engine::GpuAllocation| {
                    let (index, device) = devices().find(|(_, device)| device.id == part.gpu)?;
                    let milli = match part.share {
                        GpuShare::Whole => WHOLE,
                        GpuShare::Fraction { milli, .. } => milli.into(),
                        GpuShare::MigSlice { profile, .. } => {
                            slice_milli(device.geometry?, profile)?
                        }
                    };
                    Some((index, milli))
                };
                parts.iter().filter_map(part).collect()
            }
        }
    }
}

/// GPU share of a slice, rounded down so that all slices together fit one GPU.
fn slice_milli(geometry: &Geometry, profile: MigProfile) -> Option<i64> {
    let profile = geometry.get(geometry.profile(profile.as_str())?)?;
    Some(i64::from(profile.compute) * WHOLE / i64::from(geometry.compute_slices))
}

/// The most frequent shapes that cover enough of the demand.
fn typical<'a>(
    demand: impl Iterator<Item = (&'a Request, u64)>,
    models: &[GpuModel],
) -> Vec<Shape> {
    type Key<'a> = (u64, String, &'a [GpuModel]);
    let mut counts: BTreeMap<Key<'a>, (GpuRequest, u64)> = BTreeMap::new();
    for (request, count) in demand {
        // GPU requests have no order; their description has.
        let key = (request.cpu.0, format!("{:?}", request.gpu), request.models.as_slice());
        counts.entry(key).or_insert((request.gpu, 0)).1 += count;
    }
    let all: u64 = counts.values().map(|(_, count)| count).sum();
    let mut sorted: Vec<_> = counts.into_iter().collect();
    sorted.sort_by(|(a, (_, more)), (b, (_, less))| less.cmp(more).then_with(|| b.cmp(a)));
    let mut covered = 0;
    let mut shapes = Vec::new();
    for ((cpu, _, asked), (gpu, count)) in sorted {
        if covered * 100 >= all * TYPICAL_PERCENT || shapes.len() == MAX_SHAPES {
            break;
        }
        covered += count;
        let accepts = |model: &GpuModel| asked.is_empty() || asked.iter().any(|a| model.serves(a));
        let accepts = models.iter().map(accepts).collect();
        shapes.push(Shape { cpu: cpu as i64, gpu, accepts, count: count as i64 });
    }
    shapes
}

#[cfg(test)]
mod tests {
    use agentaflow_engine::{Gpu, GpuAllocation, MiB, MilliCpu, MilliGpu};

    use super::*;

    fn node(gpus: usize, mig: &MigMode) -> Node {
        let mut node = Node::new("n");
        node.cpu = MilliCpu(16_000);
        let gpu = |index: usize| Gpu {
            id: index.to_string().into(),
            model: "NVIDIA A100-SXM4-40GB".into(),
            memory: MiB(40 << 10),
            nvlink: None,
            mig: mig.clone(),
        };
        node.gpus = (0..gpus).map(gpu).collect();
        node
    }

    fn request(gpu: GpuRequest, cores: u64) -> Request {
        Request { gpu, cpu: MilliCpu(1000 * cores), ..Request::default() }
    }

    fn placed(gpu: &str, part: GpuShare) -> Placement {
        Placement {
            workload: "w".into(),
            task: 0,
            node: "n".into(),
            gpus: GpuAssignment::Devices(vec![GpuAllocation { gpu: gpu.into(), share: part }]),
        }
    }

    #[test]
    fn an_ended_workload_releases_its_resources() {
        let whole = request(GpuRequest::Whole(1), 4);
        let mut meter = Meter::new(&[node(2, &MigMode::Off)], [(&whole, 1)].into_iter());
        meter.place(&placed("1", GpuShare::Fraction { milli: 300, mib: MiB(12_288) }), &whole);
        meter.place(&placed("0", GpuShare::Whole), &whole);
        assert_eq!((meter.allocated, meter.idle()), (1300, 700));
        assert!(
            (meter.fragmentation_percent() - 100.0).abs() < 1e-9,
            "700 of a GPU is no whole one"
        );
        meter.leave(&"w".into());
        assert_eq!((meter.allocated, meter.unusable), (0, 0));
    }

    #[test]
    fn gpus_without_cpu_are_unusable() {
        let hungry = request(GpuRequest::Whole(1), 17);
        let meter = Meter::new(&[node(2, &MigMode::Off)], [(&hungry, 1)].into_iter());
        assert!((meter.unusable() - 2000.0).abs() < 1e-9);
    }

    #[test]
    fn fragmentation_is_an_average_over_the_demand() {
        let small = request(GpuRequest::Fraction(MilliGpu::new(500).unwrap()), 1);
        let large = request(GpuRequest::Whole(2), 1);
        let mut meter =
            Meter::new(&[node(2, &MigMode::Off)], [(&small, 3), (&large, 1)].into_iter());
        meter.place(&placed("0", GpuShare::Fraction { milli: 400, mib: MiB(16_384) }), &small);
        assert!((meter.unusable() - 1600.0 / 4.0).abs() < 1e-9, "three of four can use all of it");
    }

    #[test]
    fn slices_count_by_share_and_serve_slice_requests_only() {
        let profile = MigProfile::new("1g.5gb").unwrap();
        let slice = request(GpuRequest::Mig { profile, count: 1 }, 1);
        let whole = request(GpuRequest::Whole(1), 1);
        let mut meter =
            Meter::new(&[node(1, &MigMode::Free)], [(&slice, 1), (&whole, 1)].into_iter());
        meter.place(&placed("0", GpuShare::MigSlice { profile, start: 0 }), &slice);
        assert_eq!(meter.allocated, 142);
        assert!((meter.fragmentation_percent() - 50.0).abs() < 1e-9);
    }
}
