//! Resource limits and requests: presets by default, requests of half the limits.

use std::collections::BTreeMap;

use agentaflow_units::Amount;
use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::names::short;
use super::placement::{NodeRequest, ResolvedPlacement};
use super::pod::{PodShape, some};
use super::quantity;
use super::{BuildError, refuse};
use crate::catalogue::InstanceType;
use crate::mig::Slices;

/// Parser of a flag's quantity.
type Read = fn(&'static str, &str) -> Result<Amount, BuildError>;

impl PodShape {
    /// Explicit resource requests of the pod. Kubernetes uses the limit as the request if the request is absent.
    pub(super) fn node_request(&self, gpus: u32) -> Result<NodeRequest, BuildError> {
        let half = |amount: Amount| if self.bare { amount } else { amount.half() };
        let request = |[limit, request]: [(&'static str, &Option<String>); 2], read: Read| {
            let read = |(flag, text): (&'static str, &Option<String>)| {
                text.as_ref().map(|text| read(flag, text)).transpose()
            };
            let (limit, request) = (read(limit)?, read(request)?);
            Ok::<_, BuildError>(request.or(limit.map(half)))
        };
        let cpu = [("cpu", &self.cpu), ("cpu-request", &self.cpu_request)];
        let memory = [("memory", &self.memory), ("memory-request", &self.memory_request)];
        Ok(NodeRequest {
            gpus: if self.mig.is_some() { 1 } else { gpus },
            slices: self.slices(gpus)?,
            cpu_milli: request(cpu, quantity::cpu)?.map_or(0, Amount::ceil_milli),
            memory_mib: request(memory, quantity::memory)?.map_or(0, Amount::ceil_mib),
        })
    }

    pub(super) fn resources(
        &self,
        gpus: u32,
        placed: &ResolvedPlacement,
    ) -> Result<ResourceRequirements, BuildError> {
        let preset = (!self.bare).then(|| self.preset(gpus, placed));
        let (cpu, memory) =
            preset.map_or((None, None), |preset| (Some(preset.cpu), Some(preset.memory)));
        let cpu = Pairing::new(
            ["cpu", "cpu-request"],
            self.cpu.as_ref(),
            self.cpu_request.as_ref(),
            cpu,
            quantity::cpu,
        )?;
        let memory = Pairing::new(
            ["memory", "memory-request"],
            self.memory.as_ref(),
            self.memory_request.as_ref(),
            memory,
            quantity::memory,
        )?;
        let mut limits = BTreeMap::new();
        let mut requests = BTreeMap::new();
        for (name, pairing) in [("cpu", cpu), ("memory", memory)] {
            let amount = |text| (name.to_owned(), Quantity(text));
            limits.extend(pairing.limit.map(amount));
            requests.extend(pairing.request.map(amount));
        }
        let resource = placed.resource.clone();
        limits.insert(resource.clone(), Quantity(gpus.to_string()));
        if !self.bare {
            // The request must equal the limit: the API server rejects any other amount.
            requests.insert(resource, Quantity(gpus.to_string()));
        }
        Ok(ResourceRequirements { limits: some(limits), requests: some(requests), claims: None })
    }

    /// Requested MIG slices.
    fn slices(&self, count: u32) -> Result<Option<Slices>, BuildError> {
        let Some(profile) = &self.mig else { return Ok(None) };
        let known = agentaflow_engine::mig::known_profile(profile);
        known.map(|profile| Some(Slices { profile, count })).map_or_else(
            || {
                refuse(
                    "mig",
                    format!(
                        "no GPU has the profile `{}`: use a form such as 1g.5gb",
                        short(profile)
                    ),
                )
            },
            Ok,
        )
    }

    /// Preset of the model for each GPU, limited to the pod's share of the machine.
    fn preset(&self, gpus: u32, placed: &ResolvedPlacement) -> Preset {
        let (cores, gib) = placed.gpu.map_or((8, 16), crate::cloud::Gpu::preset);
        let whole = if self.mig.is_some() { 1 } else { gpus };
        let times = u64::from(whole);
        let (cpu, mib) = (u64::from(cores) * 1000 * times, (u64::from(gib) << 10) * times);
        let (mut cpu, mut memory) = (Sizes::half_of(cpu), Sizes::half_of(mib));
        if let Some(instance) = &placed.instance {
            let (cpu_share, memory_share) = share(instance, whole);
            cpu.cut(u64::from(instance.vcpus) * 1000, cpu_share, 100);
            memory.cut(u64::from(instance.memory_gib) << 10, memory_share, 256);
        }
        let milli = |milli: u64| format!("{milli}m");
        let mib = |mib: u64| Amount::from_mib(mib).to_binary();
        Preset {
            cpu: (milli(cpu.limit), milli(cpu.request)),
            memory: (mib(memory.limit), mib(memory.request)),
        }
    }
}

/// Limit and request of one resource.
struct Pairing {
    limit: Option<String>,
    request: Option<String>,
}

impl Pairing {
    /// Explicit values override the preset; the request defaults to half of an explicit limit.
    fn new(
        [limit_flag, request_flag]: [&'static str; 2],
        limit: Option<&String>,
        request: Option<&String>,
        preset: Option<(String, String)>,
        read: Read,
    ) -> Result<Self, BuildError> {
        let given = limit.map(|text| read(limit_flag, text)).transpose()?;
        let asked = request.map(|text| read(request_flag, text)).transpose()?;
        let filled = preset.is_some();
        let (preset_limit, preset_request) = preset.unzip();
        let (limit, request) = match (limit, request) {
            (Some(limit), None) => {
                let half = quantity::half(limit, limit_flag == "memory");
                (Some(limit.clone()), half.filter(|_| filled))
            }
            (None, Some(request)) => {
                // A preset limit below the request would be rejected: no limit then.
                let enough = preset_limit.filter(|limit| quantity::parse(limit) >= asked);
                (enough, Some(request.clone()))
            }
            (Some(limit), Some(request)) => (Some(limit.clone()), Some(request.clone())),
            (None, None) => (preset_limit, preset_request),
        };
        if given.is_some() && asked > given {
            return refuse(
                request_flag,
                format!("the request exceeds the limit of --{limit_flag}"),
            );
        }
        Ok(Self { limit, request })
    }
}

/// Limits and requests of the preset, as texts.
struct Preset {
    cpu: (String, String),
    memory: (String, String),
}

struct Sizes {
    limit: u64,
    request: u64,
}

impl Sizes {
    fn half_of(limit: u64) -> Self {
        Self { limit, request: limit / 2 }
    }

    /// At most the whole machine, and a request of at most the share, in whole steps.
    fn cut(&mut self, whole: u64, share: u64, step: u64) {
        self.limit = self.limit.min(whole);
        if self.request > share {
            self.request = (share / step * step).max(step);
        }
        self.request = self.request.min(self.limit);
    }
}

/// Share of a machine for this many of its GPUs, less a tenth for DaemonSets.
fn share(instance: &InstanceType, gpus: u32) -> (u64, u64) {
    let (cpu, memory) = instance.allocatable();
    let part = |amount: u64| {
        amount * 9 / 10 * u64::from(gpus.min(instance.gpus)) / u64::from(instance.gpus.max(1))
    };
    (part(cpu), part(memory))
}
