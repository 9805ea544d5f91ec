//! Price of GPUs per hour: the node's annotation, else the list price of the model. A unit of a shared GPU costs its
//! share.

use agentaflow_engine::mig::{self, Geometry};
use agentaflow_engine::{MicroDollars, list_price};
use std::collections::BTreeMap;

use super::node::SLICED;
use super::{NodeView, gpu_resources};
use crate::names;
use crate::slim::{Node, Pod};

/// Upper bound; a higher price is a typing error.
const MOST: f64 = 1e6;

/// Dollars per hour of a unit, by resource; `shared` units make a device.
pub(super) fn charges(
    node: &Node,
    model: Option<&str>,
    shared: u32,
) -> BTreeMap<String, MicroDollars> {
    let label = |key| node.metadata.labels.as_ref().and_then(|labels| labels.get(key));
    let product = label(names::NVIDIA_PRODUCT).map(String::as_str);
    let model = model.or(product).unwrap_or_default();
    let memory = label(names::NVIDIA_MEMORY).and_then(|text| text.parse().ok()).unwrap_or(0);
    let Some(device) = message(node).or_else(|| list_price(model)) else { return BTreeMap::new() };
    // MIG's single strategy advertises slices as GPUs.
    let single = product.and_then(|product| product.split_once(SLICED)).map(|(_, profile)| profile);
    let unit = single.map_or(device, |profile| slice(device, model, memory, profile));
    let unit = MicroDollars(unit.0 / u64::from(shared.max(1)));
    let resources = node.status.allocatable.iter().flatten().map(|(name, _)| name);
    let slices = resources.filter(|name| name.starts_with(names::MIG_PREFIX));
    let slices = slices.map(|name| (name.clone(), slice(device, model, memory, name)));
    slices.chain([(names::GPU_RESOURCE.to_owned(), unit)]).collect()
}

/// Price of a pod's GPUs and slices on a node.
pub fn hourly(view: &NodeView, pod: &Pod) -> MicroDollars {
    let costs = gpu_resources(pod)
        .into_iter()
        .filter_map(|(resource, count)| Some(view.prices.get(&resource)?.0.saturating_mul(count)));
    MicroDollars(costs.fold(0, u64::saturating_add))
}

/// Dollars without trailing zeros.
pub fn dollars(price: MicroDollars) -> String {
    let text = format!("{}.{:06}", price.0 / 1_000_000, price.0 % 1_000_000);
    let cents = text.len() - 4;
    let kept = text.trim_end_matches('0').len().max(cents);
    text[..kept].to_owned()
}

/// Inverse of [`dollars`].
pub fn micro_dollars(text: &str) -> Option<MicroDollars> {
    let dollars: f64 = text.trim().trim_start_matches('$').parse().ok()?;
    (0.0..=MOST).contains(&dollars).then(|| MicroDollars((dollars * 1e6).round() as u64))
}

/// Price annotation of the node.
fn message(node: &Node) -> Option<MicroDollars> {
    micro_dollars(node.metadata.annotations.as_ref()?.get(names::NODE_PRICE)?)
}

/// Price of a slice of a device; the whole price if the geometry is unknown.
fn slice(device: MicroDollars, model: &str, memory: u64, profile: &str) -> MicroDollars {
    let nominal = |geometry: &&Geometry| geometry.profile(profile).is_some();
    let geometry = Geometry::for_gpu(model, memory).filter(nominal);
    let share = geometry.and_then(|geometry| {
        let profile = geometry.get(geometry.profile(profile)?)?;
        Some(u64::from(mig::milli(profile.compute, geometry)))
    });
    MicroDollars(device.0.saturating_mul(share.unwrap_or(1000).min(1000)) / 1000)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::translate::node;

    fn check(
        labels: &serde_json::Value,
        price: Option<&str>,
        (of, count): (&str, u32),
        expected: &str,
    ) {
        let annotations = price.map(|price| json!({names::NODE_PRICE: price}));
        let made: Node = serde_json::from_value(json!({
            "metadata": {"name": "n", "labels": labels, "annotations": annotations},
            "status": {"allocatable": {"nvidia.com/gpu": "4", "nvidia.com/mig-3g.20gb": "2"}},
        }))
        .unwrap();
        let limits = json!({format!("nvidia.com/{of}"): count.to_string()});
        let pod = json!({"spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        assert_eq!(dollars(hourly(&node(&made, None, None), &pod)), expected);
    }

    #[test]
    fn a_unit_costs_its_share_of_the_device() {
        let labels = |more: serde_json::Value| {
            let mut labels = json!({
                "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB",
                "nvidia.com/gpu.memory": "40960",
            });
            labels.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            labels
        };
        check(&labels(json!({})), None, ("gpu", 2), "4.00");
        check(&labels(json!({})), Some("3.3333"), ("gpu", 1), "3.3333");
        check(&labels(json!({})), Some("cheap"), ("gpu", 1), "2.00");
        check(&labels(json!({"nvidia.com/gpu.replicas": "4"})), None, ("gpu", 1), "0.50");
        check(&labels(json!({"nvidia.com/gpu.replicas": "4"})), Some("$1"), ("gpu", 2), "0.50");
        check(&labels(json!({})), None, ("mig-3g.20gb", 2), "1.716");
        let single = json!({"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"});
        check(&labels(single), None, ("gpu", 1), "0.286");
        check(&json!({}), None, ("gpu", 1), "0.00");
    }
}
