//! Activity of the engines and the tensor cores, which the driver reports as the difference of two samples.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nvml_wrapper::Nvml;
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::gpm::{GpmSample, gpm_metrics_get};

/// Time between two samples; bounds the time the thread outlives its owner.
const INTERVAL: Duration = Duration::from_secs(2);

/// Percent of an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Activity {
    /// With an active compute or graphics engine.
    pub(crate) engine: Option<f64>,
    /// With active tensor cores.
    pub(crate) tensor: Option<f64>,
}

/// Sampling thread; stops when dropped. Ends by itself on GPUs before Hopper, which do not report the activity.
#[derive(Debug)]
pub(crate) struct ActivityWatch {
    last: Arc<Mutex<BTreeMap<String, Activity>>>,
    stop: Arc<AtomicBool>,
}

impl ActivityWatch {
    /// The thread opens its own handle of the library, because samples borrow the handle.
    pub(crate) fn start(load: impl FnOnce() -> Result<Nvml, NvmlError> + Send + 'static) -> Self {
        let watch = Self { last: Arc::default(), stop: Arc::default() };
        let (last, stop) = (Arc::clone(&watch.last), Arc::clone(&watch.stop));
        let thread = std::thread::Builder::new().name("gpu-activity".into()).spawn(move || {
            if let Ok(nvml) = load() {
                sample(&nvml, &last, &stop);
            }
        });
        if let Err(error) = thread {
            tracing::warn!(%error, "cannot watch the activity of the GPUs");
        }
        watch
    }

    /// Activity in the last interval.
    pub(crate) fn activity(&self, uuid: &str) -> Activity {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.get(uuid).copied().unwrap_or_default()
    }
}

impl Drop for ActivityWatch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn sample(nvml: &Nvml, published: &Mutex<BTreeMap<String, Activity>>, stop: &AtomicBool) {
    let mut last: BTreeMap<String, GpmSample<'_>> = BTreeMap::new();
    while !stop.load(Ordering::Relaxed) {
        let mut supported = false;
        let mut current = BTreeMap::new();
        for index in 0..nvml.device_count().unwrap_or(0) {
            let Ok(gpu) = nvml.device_by_index(index) else { continue };
            if !gpu.gpm_support().unwrap_or(false) {
                continue;
            }
            supported = true;
            let (Ok(uuid), Ok(sample)) = (gpu.uuid(), gpu.gpm_sample()) else { continue };
            let before = last.insert(uuid.clone(), sample);
            if let (Some(before), Some(after)) = (before, last.get(&uuid)) {
                current.insert(uuid, activity(nvml, &before, after));
            }
        }
        if !supported {
            return;
        }
        *published.lock().unwrap_or_else(PoisonError::into_inner) = current;
        std::thread::sleep(INTERVAL);
    }
}

fn activity(nvml: &Nvml, before: &GpmSample<'_>, after: &GpmSample<'_>) -> Activity {
    let percent = |metric| {
        let results = gpm_metrics_get(nvml, before, after, &[metric]).ok()?;
        let value = results.into_iter().next()?.ok()?.value;
        (0.0..=100.0).contains(&value).then_some(value)
    };
    Activity {
        engine: percent(GpmMetricId::GraphicsUtil),
        tensor: percent(GpmMetricId::AnyTensorUtil),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_driver_no_activity_is_reported() {
        let watch = ActivityWatch::start(|| Err(NvmlError::LibraryNotFound));
        assert_eq!(watch.activity("GPU-a"), Activity::default());
    }
}
