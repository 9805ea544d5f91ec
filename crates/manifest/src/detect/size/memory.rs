//! GPU memory of a model: weights, gradients, optimizer states, activations, KV cache.

use serde::Serialize;

use super::gpu::GpuType;
use crate::detect::models::Shape;

const GIB: f64 = (1u64 << 30) as f64;
const MIB: f64 = (1u64 << 20) as f64;
/// Memory of driver, libraries and kernels on each GPU.
const CONTEXT: f64 = GIB;
/// Factor for allocator fragmentation.
const LOSS: f64 = 1.1;
/// Assumed vocabulary of the last layer.
const VOCABULARY: f64 = 64_000.0;
/// Bytes of activations for each layer, token and unit of width in 16 bits, with fused attention.
const ACTIVATION_BYTES: f64 = 34.0;

/// Number format of the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::detect) enum Precision {
    Single,
    Half,
    Brain,
    Float8,
    Int8,
    Int4,
    /// `mxfp4` and its like, beside which GPUs compute in bf16.
    Float4,
    /// GGUF format with this many bits for most weights.
    Gguf(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::detect) enum Optimiser {
    Adam,
    Adam8Bit,
    Sgd,
    Adafactor,
}

/// Low-rank adapters that are trained instead of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::detect) enum Adapter {
    Plain,
    /// The base model is quantized to 4 bits.
    Quantised,
}

/// Model with its use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub(super) parameters: f64,
    pub(super) shape: Shape,
    pub(super) training: bool,
    pub(super) precision: Precision,
    pub(super) optimiser: Optimiser,
    pub(super) adapter: Option<Adapter>,
    pub(super) checkpointing: bool,
    /// Frozen models beside the trained one; with adapters they share its weights.
    pub(super) judges: u8,
    pub(super) batch: f64,
    pub(super) batch_per_gpu: bool,
    pub(super) sequence: f64,
}

/// One line of the arithmetic.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Term {
    /// Consumer of the memory.
    pub name: &'static str,
    pub formula: String,
    pub mib: u64,
}

/// Memory requirement of a workload.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct MemoryNeed {
    pub(super) terms: Vec<Term>,
    pub(super) precision: Precision,
    pub(super) training: bool,
    /// Divided among the GPUs.
    divided: f64,
    /// Per sample of the batch.
    by_sample: f64,
    batch: f64,
    batch_per_gpu: bool,
}

impl Precision {
    /// Bytes of a weight. Weights of 4 bits come with their scales.
    pub(super) const fn bytes(self) -> f64 {
        match self {
            Self::Single => 4.0,
            Self::Half | Self::Brain => 2.0,
            Self::Float8 | Self::Int8 => 1.0,
            Self::Int4 | Self::Float4 => 0.5625,
            // Size of the most common variants (`Q4_K_M`, `Q8_0`): some tensors have more bits than most.
            Self::Gguf(bits) => match bits {
                ..=2 => 0.42,
                3 => 0.49,
                4 => 0.61,
                5 => 0.71,
                6 => 0.82,
                _ => 1.0625,
            },
        }
    }

    /// True if weights are quantized too far to be trained themselves.
    pub(super) const fn is_quantised(self) -> bool {
        matches!(self, Self::Int8 | Self::Int4 | Self::Float4 | Self::Gguf(_))
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Single => "fp32",
            Self::Half => "fp16",
            Self::Brain => "bf16",
            Self::Float8 => "fp8",
            Self::Int8 => "int8",
            Self::Int4 | Self::Float4 => "4 bits with scales",
            Self::Gguf(bits) => match bits {
                ..=2 => "GGUF Q2",
                3 => "GGUF Q3",
                4 => "GGUF Q4",
                5 => "GGUF Q5",
                6 => "GGUF Q6",
                _ => "GGUF Q8",
            },
        }
    }
}

impl Optimiser {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Adam => "Adam",
            Self::Adam8Bit => "8-bit Adam",
            Self::Sgd => "SGD with momentum",
            Self::Adafactor => "Adafactor",
        }
    }

    /// Bytes of state for each weight.
    const fn bytes(self) -> f64 {
        match self {
            Self::Adam => 8.0,
            Self::Adam8Bit => 2.0,
            Self::Sgd => 4.0,
            Self::Adafactor => 0.1,
        }
    }
}

impl MemoryNeed {
    pub(super) fn of(work: &Work) -> Self {
        let mut terms = states(work);
        let divided = terms.iter().map(|(_, _, bytes)| bytes).sum();
        let samples = samples(work);
        let by_sample = samples.iter().map(|(_, _, bytes)| bytes / work.batch).sum();
        terms.extend(samples);
        let term = |(name, formula, bytes): (_, _, f64)| Term {
            name,
            formula,
            mib: (bytes / MIB).ceil() as u64,
        };
        Self {
            terms: terms.into_iter().map(term).collect(),
            precision: work.precision,
            training: work.training,
            divided,
            by_sample,
            batch: work.batch,
            batch_per_gpu: work.batch_per_gpu,
        }
    }

    /// MiB on each of this many GPUs, including fragmentation and driver.
    pub(super) fn each_mib(&self, gpus: u32) -> u64 {
        let gpus = f64::from(gpus.max(1));
        let batch = if self.batch_per_gpu { self.batch } else { (self.batch / gpus).ceil() };
        // Serving divides the cache of every sample; training divides samples.
        let samples =
            if self.training { batch * self.by_sample } else { self.batch * self.by_sample / gpus };
        (((self.divided / gpus + samples) * LOSS + CONTEXT) / MIB).ceil() as u64
    }

    pub(super) fn fits(&self, gpu: GpuType, count: u32) -> bool {
        self.each_mib(count) <= gpu.memory_mib()
    }

    /// MiB of the weights, which pass through the memory of the machine.
    pub(super) fn weights_mib(&self) -> u64 {
        self.terms.first().map_or(0, |term| term.mib)
    }
}

type Line = (&'static str, String, f64);

/// Memory that depends on the weights.
fn states(work: &Work) -> Vec<Line> {
    let count = billions(work.parameters);
    let line = |name, each: f64, why: &str| {
        (name, format!("{count} × {} bytes ({why})", short(each)), work.parameters * each)
    };
    if !work.training {
        return vec![line("weights", work.precision.bytes(), work.precision.name())];
    }
    if let Some(adapter) = work.adapter {
        let (each, why) = match adapter {
            Adapter::Quantised => (Precision::Int4.bytes(), "frozen, 4 bits with scales"),
            Adapter::Plain => (work.precision.bytes(), "frozen"),
        };
        let trained = 0.005 * work.parameters;
        let adapters = format!(
            "0.5 % of {count} × 16 bytes (weights, gradients and {})",
            work.optimiser.name()
        );
        return vec![line("weights", each, why), ("adapters", adapters, trained * 16.0)];
    }
    let single = work.precision == Precision::Single;
    let each = if single { 4.0 } else { 2.0 };
    let why = if single { "fp32" } else { "16 bits" };
    let copy = if single { 0.0 } else { 4.0 };
    let optimiser = work.optimiser.name();
    let kept = if single { optimiser.to_owned() } else { format!("{optimiser} and an fp32 copy") };
    let mut lines = vec![
        line("weights", each, why),
        line("gradients", each, why),
        line("optimiser states", work.optimiser.bytes() + copy, &kept),
    ];
    match work.judges {
        0 => {}
        1 => lines.push(line("reference model", each, "frozen")),
        many => lines.push(line(
            "reference and reward models",
            each * f64::from(many),
            "frozen, as large as the model",
        )),
    }
    lines
}

/// Memory that depends on the batch.
fn samples(work: &Work) -> Vec<Line> {
    let (batch, sequence) = (work.batch, work.sequence);
    let wide = if work.precision == Precision::Single { 2.0 } else { 1.0 };
    match work.shape {
        Shape::Pictures { mib } => {
            let each = mib * wide / 2.0 * if work.training { 1.0 } else { 0.15 };
            let formula = format!("{} pictures × {} MiB", short(batch), short(each));
            vec![("activations", formula, batch * each * MIB)]
        }
        Shape::Layers { layers, width, .. } if work.training => {
            let each = if work.checkpointing { 2.0 } else { ACTIVATION_BYTES } * wide;
            let whole = if work.checkpointing { ACTIVATION_BYTES * wide } else { 0.0 };
            let tokens = sequence * batch;
            let formula = format!(
                "{} layers × {} tokens × {} samples × {} wide × {} bytes{}",
                short(layers),
                short(sequence),
                short(batch),
                short(width),
                short(each),
                if work.checkpointing { " + one layer whole (gradient checkpointing)" } else { "" }
            );
            let activations = tokens * width * (layers * each + whole);
            let last = format!(
                "{} tokens × {} samples × 64,000 words × 4 bytes",
                short(sequence),
                short(batch)
            );
            vec![("activations", formula, activations), ("logits", last, tokens * VOCABULARY * 4.0)]
        }
        Shape::Layers { layers, width, kept } if kept > 0.0 => {
            let formula = format!(
                "2 × {} layers × {} wide × 2 bytes × {} tokens × {} sequences",
                short(layers),
                short(kept),
                short(sequence),
                short(batch)
            );
            let cache = 4.0 * layers * kept * sequence * batch;
            let running = format!("{} sequences × {} wide × 64 KiB", short(batch), short(width));
            vec![("KV cache", formula, cache), ("activations", running, batch * width * 65_536.0)]
        }
        Shape::Layers { width, .. } => {
            let formula = format!(
                "{} tokens × {} samples × {} wide × {} bytes (two layers)",
                short(sequence),
                short(batch),
                short(width),
                short(2.0 * ACTIVATION_BYTES * wide)
            );
            vec![("activations", formula, 2.0 * ACTIVATION_BYTES * wide * sequence * batch * width)]
        }
    }
}

/// Parameter count above which nearly all models share keys and values among eight heads.
const SHARES_KEYS_FROM: f64 = 3e10;

/// Typical shape of a transformer of this size: 12 × layers × width² parameters, width 128 per layer.
pub(super) fn usual_shape(parameters: f64) -> Shape {
    let width = (parameters * 128.0 / 12.0).cbrt().max(64.0);
    let width = (width / 64.0).round() * 64.0;
    let layers = (width / 128.0).round().max(1.0);
    let kept = if parameters < SHARES_KEYS_FROM { width } else { width / 8.0 };
    Shape::Layers { layers, width, kept }
}

/// `7B`, `350M`, `46.7B`.
pub(super) fn billions(count: f64) -> String {
    if count >= 1e9 {
        format!("{}B", short(count / 1e9))
    } else {
        format!("{}M", short(count / 1e6))
    }
}

/// Number without superfluous digits.
fn short(number: f64) -> String {
    let text = format!("{number:.4}");
    agentaflow_units::trim_zeros(&text).to_owned()
}
