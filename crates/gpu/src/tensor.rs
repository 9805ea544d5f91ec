//! Activity of the tensor cores, which the driver reports as the difference of two samples.

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

/// Sampling thread; stops when dropped. Ends by itself on GPUs before Hopper, which do not report the activity.
#[derive(Debug)]
pub(crate) struct TensorWatch {
    percent: Arc<Mutex<BTreeMap<String, f64>>>,
    stop: Arc<AtomicBool>,
}

impl TensorWatch {
    /// The thread opens its own handle of the library, because samples borrow the handle.
    pub(crate) fn start(load: impl FnOnce() -> Result<Nvml, NvmlError> + Send + 'static) -> Self {
        let watch = Self { percent: Arc::default(), stop: Arc::default() };
        let (percent, stop) = (Arc::clone(&watch.percent), Arc::clone(&watch.stop));
        let thread = std::thread::Builder::new().name("tensor-watch".into()).spawn(move || {
            if let Ok(nvml) = load() {
                sample(&nvml, &percent, &stop);
            }
        });
        if let Err(error) = thread {
            tracing::warn!(%error, "cannot watch the tensor cores");
        }
        watch
    }

    /// Percent of the last interval with active tensor cores.
    pub(crate) fn percent(&self, uuid: &str) -> Option<f64> {
        self.percent.lock().unwrap_or_else(PoisonError::into_inner).get(uuid).copied()
    }
}

impl Drop for TensorWatch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn sample(nvml: &Nvml, percent: &Mutex<BTreeMap<String, f64>>, stop: &AtomicBool) {
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
            if let (Some(before), Some(after)) = (before, last.get(&uuid))
                && let Some(active) = activity(nvml, &before, after)
            {
                current.insert(uuid, active);
            }
        }
        if !supported {
            return;
        }
        *percent.lock().unwrap_or_else(PoisonError::into_inner) = current;
        std::thread::sleep(INTERVAL);
    }
}

fn activity(nvml: &Nvml, before: &GpmSample<'_>, after: &GpmSample<'_>) -> Option<f64> {
    let results = gpm_metrics_get(nvml, before, after, &[GpmMetricId::AnyTensorUtil]).ok()?;
    let value = results.into_iter().next()?.ok()?.value;
    (0.0..=100.0).contains(&value).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_driver_no_activity_is_reported() {
        let watch = TensorWatch::start(|| Err(NvmlError::LibraryNotFound));
        assert_eq!(watch.percent("GPU-a"), None);
    }
}
