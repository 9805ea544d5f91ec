//! Books of its own: what is allocated, and how much of the rest is of no use.
//!
//! The engine knows all this too, but a run that measured the engine with the engine's own books
//! would not notice when they are wrong.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use agentaflow_engine::mig::Geometry;
use agentaflow_engine::{
    GpuAssignment, GpuModel, GpuRequest, GpuShare, MigMode, MigProfile, Node, NodeId, Placement,
    Request, WorkloadId,
};

/// A whole GPU in thousandths.
const WHOLE: i64 = 1000;
/// The typical demand covers this share of all tasks: rare shapes only add noise.
const TYPICAL_PERCENT: u64 = 95;
/// And consists of at most so many shapes, so that measuring stays cheaper than deciding.
const MOST_SHAPES: usize = 200;

/// Follows placements and ends.
#[derive(Debug)]
pub(crate) struct Meter {
    shapes: Vec<Shape>,
    /// Tasks that the shapes stand for.
    weight: i64,
    books: Vec<Book>,
    numbers: HashMap<NodeId, usize>,
    seats: HashMap<WorkloadId, Vec<Seat>>,
    pub(crate) capacity: i64,
    pub(crate) allocated: i64,
    /// Sum over nodes and shapes of useless thousandths times the shape's weight.
    useless: i64,
}

/// One kind of task of the typical demand.
#[derive(Debug)]
struct Shape {
    cpu: i64,
    gpu: GpuRequest,
    /// By model number.
    accepts: Vec<bool>,
    count: i64,
}

/// What is left on a node.
#[derive(Debug)]
struct Book {
    cpu: i64,
    devices: Vec<Device>,
    useless: i64,
}

#[derive(Debug)]
struct Device {
    left: i64,
    model: usize,
    mib: i64,
    geometry: Option<&'static Geometry>,
    id: agentaflow_engine::GpuId,
}

/// What one task has.
#[derive(Debug)]
struct Seat {
    node: usize,
    cpu: i64,
    parts: Vec<(usize, i64)>,
}

impl Meter {
    /// Empty nodes; `demand` is every task that will come, with its number.
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
            books: nodes.iter().map(|node| Book::new(node, &models)).collect(),
            numbers: nodes
                .iter()
                .enumerate()
                .map(|(number, node)| (node.id.clone(), number))
                .collect(),
            seats: HashMap::new(),
            capacity: nodes.iter().map(|node| node.gpus.len() as i64 * WHOLE).sum(),
            allocated: 0,
            useless: 0,
        };
        for node in 0..meter.books.len() {
            meter.measure(node);
        }
        meter
    }

    /// A task was placed.
    pub(crate) fn place(&mut self, placement: &Placement, request: &Request) {
        let Some(node) = self.numbers.get(&placement.node).copied() else { return };
        let parts = self.books[node].parts(&placement.gpus);
        let seat = Seat { node, cpu: request.cpu.0 as i64, parts };
        self.change(&seat, -1);
        self.seats.entry(placement.workload.clone()).or_default().push(seat);
    }

    /// A workload has left.
    pub(crate) fn leave(&mut self, workload: &WorkloadId) {
        for seat in self.seats.remove(workload).unwrap_or_default() {
            self.change(&seat, 1);
        }
    }

    /// Thousandths of GPUs that nobody has.
    pub(crate) fn idle(&self) -> i64 {
        self.capacity - self.allocated
    }

    /// Idle thousandths that the average typical task cannot use.
    pub(crate) fn useless(&self) -> f64 {
        if self.weight == 0 { 0.0 } else { self.useless as f64 / self.weight as f64 }
    }

    pub(crate) fn allocated_percent(&self) -> f64 {
        percent(self.allocated as f64, self.capacity as f64)
    }

    pub(crate) fn fragmentation_percent(&self) -> f64 {
        percent(self.useless(), self.idle() as f64)
    }

    fn change(&mut self, seat: &Seat, sign: i64) {
        let book = &mut self.books[seat.node];
        book.cpu += sign * seat.cpu;
        for (device, milli) in &seat.parts {
            book.devices[*device].left += sign * milli;
            self.allocated -= sign * milli;
        }
        self.measure(seat.node);
    }

    fn measure(&mut self, node: usize) {
        let book = &mut self.books[node];
        let useless = self.shapes.iter().map(|shape| shape.count * shape.useless(book)).sum();
        self.useless += useless - book.useless;
        book.useless = useless;
    }
}

/// A part in percent; nothing of nothing is zero.
pub(crate) fn percent(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { 100.0 * part / whole } else { 0.0 }
}

impl Shape {
    /// Idle thousandths of a node that this shape cannot use: all of them when no task of it fits,
    /// otherwise those on devices with too little left.
    fn useless(&self, book: &Book) -> i64 {
        let (mut idle, mut lost, mut places) = (0, 0, 0);
        for device in &book.devices {
            let left = device.left.max(0);
            idle += left;
            match self.need(device).filter(|need| left >= *need) {
                // Slices may share a device, everything else asks for that many devices.
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

    /// Thousandths that a task takes of the device; none when it cannot use it at all.
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

impl Book {
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
        Self { cpu: node.cpu.0 as i64, devices, useless: 0 }
    }

    /// Which devices, and how much of each.
    fn parts(&self, gpus: &GpuAssignment) -> Vec<(usize, i64)> {
        let devices = || self.devices.iter().enumerate();
        match gpus {
            // The node chooses; any free device will do to keep count.
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

/// The share of a GPU that a slice is, rounded down so that all slices together are at most one.
fn slice_milli(geometry: &Geometry, profile: MigProfile) -> Option<i64> {
    let profile = geometry.get(geometry.profile(profile.as_str())?)?;
    Some(i64::from(profile.compute) * WHOLE / i64::from(geometry.compute_slices))
}

/// The most frequent shapes, until they cover enough of the demand.
fn typical<'a>(
    demand: impl Iterator<Item = (&'a Request, u64)>,
    models: &[GpuModel],
) -> Vec<Shape> {
    type Key<'a> = (u64, String, &'a [GpuModel]);
    let mut counts: BTreeMap<Key<'a>, (GpuRequest, u64)> = BTreeMap::new();
    for (request, count) in demand {
        // GPU asks have no order of their own; their description has.
        let key = (request.cpu.0, format!("{:?}", request.gpu), request.models.as_slice());
        counts.entry(key).or_insert((request.gpu, 0)).1 += count;
    }
    let all: u64 = counts.values().map(|(_, count)| count).sum();
    let mut sorted: Vec<_> = counts.into_iter().collect();
    sorted.sort_by(|(a, (_, more)), (b, (_, less))| less.cmp(more).then_with(|| b.cmp(a)));
    let mut covered = 0;
    let mut shapes = Vec::new();
    for ((cpu, _, asked), (gpu, count)) in sorted {
        if covered * 100 >= all * TYPICAL_PERCENT || shapes.len() == MOST_SHAPES {
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
    fn what_leaves_gives_back_exactly_what_it_took() {
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
        assert_eq!((meter.allocated, meter.useless), (0, 0));
    }

    #[test]
    fn gpus_without_the_cpu_to_feed_them_are_of_no_use() {
        let hungry = request(GpuRequest::Whole(1), 17);
        let meter = Meter::new(&[node(2, &MigMode::Off)], [(&hungry, 1)].into_iter());
        assert!((meter.useless() - 2000.0).abs() < 1e-9);
    }

    #[test]
    fn usefulness_is_an_average_over_the_demand() {
        let small = request(GpuRequest::Fraction(MilliGpu::new(500).unwrap()), 1);
        let large = request(GpuRequest::Whole(2), 1);
        let mut meter =
            Meter::new(&[node(2, &MigMode::Off)], [(&small, 3), (&large, 1)].into_iter());
        meter.place(&placed("0", GpuShare::Fraction { milli: 400, mib: MiB(16_384) }), &small);
        assert!((meter.useless() - 1600.0 / 4.0).abs() < 1e-9, "three of four can use all of it");
    }

    #[test]
    fn slices_count_for_their_part_and_serve_only_those_who_want_slices() {
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
