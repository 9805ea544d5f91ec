//! Resource needs: base rules, GPUs named in a text, and computation from numbers.

pub(super) mod gpu;
pub(super) mod memory;
mod others;
mod price;

use serde::Serialize;

pub use gpu::GpuType;
pub use memory::Term;

use self::gpu::{Choice, MOST, NamedGpus, PER_NODE};
use self::memory::{Adapter, MemoryNeed, Optimiser, Precision, Work, billions, usual_shape};
use self::others::Alternatives;
use super::kind::WorkloadType;
use super::models::{self, Shape};
use super::numbers::Facts;
use super::scan::SizeWords;

/// Resource needs of ML work. Memory, CPU and shared memory are per machine; up to eight GPUs are one machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Sizing {
    /// Total.
    pub gpu_count: u32,
    pub gpu_type: GpuType,
    /// MiB needed on each GPU; where nothing is computed, the whole GPU.
    pub gpu_memory_mib: u64,
    /// GiB of memory: the limit.
    pub memory_gib: u64,
    /// Thousandths of a core: the limit.
    pub cpu_millis: u64,
    /// `/dev/shm` in GiB.
    pub shm_gib: u64,
    pub rule: SizingRule,
    /// Computation, if numbers are known.
    pub arithmetic: Vec<Term>,
    /// Sentences about findings, assumptions and choices.
    pub reasons: Vec<String>,
    /// False if the text names GPUs that are too small.
    pub fits: bool,
    /// Alternatives for clusters with only some GPU types.
    others: Alternatives,
}

/// Basis of a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SizingRule {
    /// Base rules: "large model", "billion", "training".
    Base,
    /// GPUs requested in the text.
    Asked,
    /// By arithmetic from numbers in the text.
    Computed,
}

impl Sizing {
    /// The memory as a Kubernetes quantity.
    pub fn memory(&self) -> String {
        format!("{}Gi", self.memory_gib)
    }

    /// The CPU as a Kubernetes quantity.
    pub fn cpu(&self) -> String {
        format!("{}m", self.cpu_millis)
    }

    /// The size of `/dev/shm` as a Kubernetes quantity.
    pub fn shm(&self) -> String {
        format!("{}Gi", self.shm_gib)
    }

    /// Machines with eight GPUs each.
    pub fn nodes(&self) -> u32 {
        self.gpu_count.div_ceil(PER_NODE).max(1)
    }
}

/// Tokens of 30 seconds of audio, the input of speech models.
const HEARD: f64 = 1500.0;

/// Most requests of a server in one batch; further requests wait.
const MOST_TOGETHER: f64 = 256.0;

/// Size of ML work, with notes about unused numbers. Each concurrent request has its own cache, like each sample of a
/// batch.
pub(super) fn size(kind: WorkloadType, facts: &Facts, words: SizeWords) -> Sizing {
    let together = facts.concurrent.filter(|_| facts.batch.is_none() && !kind.is_training());
    let Some(requests) = together else {
        return with_ignored_facts(sized(kind, facts, words), facts);
    };
    let batch = requests.min(MOST_TOGETHER);
    let facts = Facts { batch: Some(batch), ..facts.clone() };
    let mut sizing = sized(kind, &facts, words);
    if sizing.rule == SizingRule::Computed {
        let more = if requests > batch { "; the others wait, or go to more replicas" } else { "" };
        sizing.reasons.push(format!("{requests} requests at once are a batch of {batch}{more}"));
    }
    with_ignored_facts(sizing, &facts)
}

fn with_ignored_facts(mut sizing: Sizing, facts: &Facts) -> Sizing {
    sizing.reasons.extend(facts.ignored.iter().cloned());
    sizing
}

fn sized(kind: WorkloadType, facts: &Facts, words: SizeWords) -> Sizing {
    let base = base(kind, words);
    let Some((work, assumed)) = work(kind, facts) else { return asked(base, facts) };
    let computed = computed(&work, assumed, facts);
    // "7 billion", or a model name, without precision or batch: the base rules apply.
    let named = facts.parameters.is_none();
    let told = match &facts.parameters {
        Some(parameters) => !parameters.in_words || has_more(facts),
        None => facts.batch.is_some() || facts.precision.is_some(),
    };
    if told {
        return computed;
    }
    let mut base = asked(base, facts);
    let enough = computed.gpu_memory_mib * u64::from(computed.gpu_count)
        <= base.gpu_type.memory_mib() * u64::from(base.gpu_count);
    if named && enough {
        return base;
    }
    base.reasons.push(format!(
        "in {} the arithmetic would give {} × {}; write a precision (\"in bf16\") or a batch size to have it computed",
        work.precision.name(),
        computed.gpu_count,
        computed.gpu_type.name()
    ));
    base
}

fn base(kind: WorkloadType, words: SizeWords) -> Sizing {
    let (gpu_count, gpu_type, memory_gib, cpu_millis, why) = match words {
        SizeWords { large: Some(word), .. } => {
            (4, GpuType::A100, 64, 32_000, format!("\"{word}\" is written"))
        }
        SizeWords { training: true, .. } => {
            (1, GpuType::A100, 32, 16_000, "\"training\" is written".to_owned())
        }
        _ => {
            let why = "neither \"large model\", \"billion\" nor \"training\" is written".to_owned();
            (1, GpuType::V100, 16, 8_000, why)
        }
    };
    let reason = format!("{gpu_count} × {} and {memory_gib}Gi, because {why}", gpu_type.name());
    Sizing {
        gpu_count,
        gpu_type,
        gpu_memory_mib: gpu_type.memory_mib(),
        memory_gib,
        cpu_millis,
        shm_gib: shm(gpu_count, kind.is_training() || words.training),
        rule: SizingRule::Base,
        arithmetic: Vec::new(),
        reasons: vec![reason],
        fits: true,
        others: Alternatives::AtLeast,
    }
}

/// Base size with the GPUs requested in the text.
fn asked(mut sizing: Sizing, facts: &Facts) -> Sizing {
    let wanted = facts.gpu_memory_mib;
    let choice = wanted.map(|mib| gpu::holding(mib, named_gpus(facts)));
    let gpu_type = choice.map(|choice| choice.gpu).or(facts.gpu).unwrap_or(sizing.gpu_type);
    let one = if facts.gpu.is_some() { 1 } else { sizing.gpu_count };
    let gpu_count = choice.map(|choice| choice.count).or(facts.gpus).unwrap_or(one);
    if (gpu_type, gpu_count) == (sizing.gpu_type, sizing.gpu_count) && wanted.is_none() {
        return sizing;
    }
    let in_node = u64::from(gpu_count.min(PER_NODE));
    sizing.memory_gib = sizing.memory_gib.max(16 * in_node);
    sizing.cpu_millis = sizing.cpu_millis.max(8_000 * in_node);
    let per_gpu = if sizing.shm_gib > 2 * u64::from(sizing.gpu_count) { 4 } else { 2 };
    sizing.shm_gib = (per_gpu * in_node).min(64);
    let (count, name) = (gpu_count, gpu_type.name());
    sizing.fits = choice.is_none_or(|choice| choice.fits);
    sizing.reasons = vec![match wanted {
        Some(mib) if sizing.fits => {
            format!("{count} × {name}: the text asks for {mib} MiB of GPU memory")
        }
        Some(mib) => {
            format!(
                "{count} × {name} do not have the {mib} MiB of GPU memory that the text asks for"
            )
        }
        None => format!("{count} × {name}: the text asks for it"),
    }];
    // Memory beyond one GPU is divided among them.
    let each = wanted
        .map(|mib| if mib <= gpu_type.memory_mib() { mib } else { mib.div_ceil(u64::from(count)) });
    sizing.gpu_memory_mib = each.unwrap_or(u64::MAX).min(gpu_type.memory_mib());
    sizing.gpu_type = gpu_type;
    sizing.gpu_count = gpu_count;
    sizing.rule = SizingRule::Asked;
    if facts.gpu.is_some() {
        sizing.others = Alternatives::None;
    }
    sizing
}

fn named_gpus(facts: &Facts) -> NamedGpus {
    NamedGpus { gpu: facts.gpu, exact: facts.gpu_is_exact, count: facts.gpus }
}

/// True if the text has more than a parameter count.
fn has_more(facts: &Facts) -> bool {
    facts.precision.is_some()
        || facts.batch.is_some()
        || facts.sequence.is_some()
        || facts.optimiser.is_some()
}

/// Computable work with its assumptions; none if the text has no numbers.
fn work(kind: WorkloadType, facts: &Facts) -> Option<(Work, Vec<String>)> {
    let mut assumed = Vec::new();
    let mut assume = |text: String| assumed.push(text);
    let (parameters, shape) = match (&facts.parameters, facts.model) {
        (Some(given), _) => {
            let known = models::shape(facts.family, given.count / 1e9);
            let shape = known.unwrap_or_else(|| usual_shape(given.count));
            if let (None, Shape::Layers { layers, width, .. }) = (known, shape) {
                assume(format!("a transformer of the usual shape: {layers} layers, {width} wide"));
            }
            (given.count, shape)
        }
        (None, Some(known)) => {
            assume(format!("{} has {} parameters", known.name, billions(known.millions * 1e6)));
            (known.millions * 1e6, known.shape)
        }
        _ => return None,
    };
    let training = kind.is_training();
    let quantised = training && facts.precision.is_some_and(Precision::is_quantised);
    let adapter = facts.adapter.or(quantised.then_some(Adapter::Quantised)).filter(|_| training);
    let name = facts.family.or(facts.model.map(|known| known.name));
    let published = models::published(name, parameters / 1e9).filter(|_| !training);
    let precision = facts.precision.or(published).unwrap_or(Precision::Half);
    match (facts.precision, published) {
        (None, Some(_)) => assume(format!("{}, as the model is published", precision.name())),
        (None, None) if adapter != Some(Adapter::Quantised) => {
            assume("16 bits for each weight".to_owned());
        }
        _ => {}
    }
    let optimiser = facts.optimiser.unwrap_or_else(|| {
        if training {
            assume("Adam as the optimiser".to_owned());
        }
        Optimiser::Adam
    });
    let batch = facts.batch.unwrap_or_else(|| {
        assume("a batch of 1".to_owned());
        1.0
    });
    let sequence = facts.sequence.unwrap_or_else(|| match shape {
        Shape::Pictures { .. } => 1.0,
        Shape::Layers { kept, .. } => {
            let hears = facts.model.is_some_and(|known| known.name.starts_with("whisper"));
            let usual = if kept == 0.0 {
                512.0
            } else if hears {
                HEARD
            } else if training {
                2048.0
            } else {
                4096.0
            };
            assume(format!("{usual} tokens in a sequence"));
            usual
        }
    });
    let checkpointing = facts.checkpointing || adapter == Some(Adapter::Quantised);
    let batch_per_gpu = facts.batch_per_gpu;
    let work = Work {
        parameters,
        shape,
        training,
        precision,
        optimiser,
        adapter,
        checkpointing,
        judges: facts.judges,
        batch,
        batch_per_gpu,
        sequence,
    };
    Some((work, assumed))
}

fn computed(work: &Work, mut assumed: Vec<String>, facts: &Facts) -> Sizing {
    let need = MemoryNeed::of(work);
    let named = named_gpus(facts);
    let choice = gpu::choose(&need, named);
    // Large models are trained with recomputed activations.
    if work.training && !work.checkpointing && (!choice.fits || choice.count > PER_NODE) {
        let checkpointed = Work { checkpointing: true, ..*work };
        let instead = gpu::choose(&MemoryNeed::of(&checkpointed), named);
        if instead.fits && (!choice.fits || instead.count < choice.count) {
            let Choice { gpu, count, fits } = choice;
            let without = if fits {
                format!("it takes {count} × {}", gpu.name())
            } else if (named.gpu, named.count) == (None, None) {
                format!("nothing up to {MOST} × h200 would hold it")
            } else {
                "it does not fit on the GPUs that are named".to_owned()
            };
            assumed.push(format!("gradient checkpointing, without which {without}"));
            return computed(&checkpointed, assumed, facts);
        }
    }
    let mut sizing = on(&need, choice);
    if !choice.fits {
        let free = gpu::choose(&need, NamedGpus::default());
        let instead = if free.fits {
            format!("{} × {} would hold it", free.count, free.gpu.name())
        } else {
            format!("nothing up to {MOST} × h200 would hold it")
        };
        sizing.reasons.push(format!(
            "it does not fit on {} × {}: {instead}",
            choice.count,
            choice.gpu.name()
        ));
    }
    if !choice.gpu.computes(work.precision) {
        sizing.reasons.push(format!(
            "{} does not compute in {}",
            choice.gpu.name(),
            work.precision.name()
        ));
    }
    if let Some(mib) = facts.gpu_memory_mib {
        sizing.reasons.push(format!(
            "the text names {mib} MiB of GPU memory; not used, since the model and its numbers give the need"
        ));
    }
    sizing.reasons.extend(assumed.into_iter().map(|text| format!("assumed: {text}")));
    sizing.others = Alternatives::Computed(Box::new((need, named)));
    sizing
}

/// Machine resources for these GPUs, with a reason.
fn on(need: &MemoryNeed, choice: Choice) -> Sizing {
    let each = need.each_mib(choice.count);
    let in_node = u64::from(choice.count.min(PER_NODE));
    let per_gpu = if need.training { 32 } else { 16 };
    // Weights pass through host memory once, in shards; they are divided over machines, too.
    let nodes = u64::from(choice.count.div_ceil(PER_NODE).max(1));
    let weights_gib = (need.weights_mib() / nodes).div_ceil(1024);
    let memory = (weights_gib + weights_gib / 4 + 8).max(per_gpu * in_node);
    let reason = format!(
        "{} on each of {} × {} with {} MiB: computed need, 10 % for allocators, 1 GiB for the driver",
        mib(each),
        choice.count,
        choice.gpu.name(),
        choice.gpu.memory_mib()
    );
    Sizing {
        gpu_count: choice.count,
        gpu_type: choice.gpu,
        gpu_memory_mib: each,
        memory_gib: memory.div_ceil(8) * 8,
        cpu_millis: 8_000 * in_node,
        shm_gib: shm(choice.count, need.training),
        rule: SizingRule::Computed,
        arithmetic: need.terms.clone(),
        reasons: vec![reason],
        fits: choice.fits,
        others: Alternatives::None,
    }
}

/// Data loaders and NCCL pass data through `/dev/shm`: 2 GiB for each GPU, 4 where models are trained.
fn shm(gpus: u32, training: bool) -> u64 {
    let each = if training { 4 } else { 2 };
    (each * u64::from(gpus.min(PER_NODE))).min(64)
}

fn mib(amount: u64) -> String {
    format!("{amount} MiB")
}
