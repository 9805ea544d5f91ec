//! Driver errors (XID). The driver reports each only once, so a thread must listen continuously.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;

use crate::xid_action::XidAction;

/// Timeout of one wait; bounds the time the thread outlives its owner.
const WAIT_MILLISECONDS: u32 = 2_000;

/// Errors of a GPU between two samples.
const MOST: usize = 1_000;

/// Listener thread; stops when dropped.
#[derive(Debug)]
pub(crate) struct XidWatch {
    reported: Arc<Mutex<BTreeMap<String, Vec<u64>>>>,
    stop: Arc<AtomicBool>,
}

impl XidWatch {
    /// The thread opens its own handle of the library, because events borrow the handle.
    pub(crate) fn start(load: impl FnOnce() -> Result<Nvml, NvmlError> + Send + 'static) -> Self {
        let watch = Self { reported: Arc::default(), stop: Arc::default() };
        let (reported, stop) = (Arc::clone(&watch.reported), Arc::clone(&watch.stop));
        let thread = std::thread::Builder::new().name("xid-watch".into()).spawn(move || {
            if let Err(error) = load().and_then(|nvml| listen(&nvml, &reported, &stop)) {
                tracing::warn!(%error, "cannot watch driver errors (XID)");
            }
        });
        if let Err(error) = thread {
            tracing::warn!(%error, "cannot watch driver errors (XID)");
        }
        watch
    }

    /// Errors of this GPU since the previous call.
    pub(crate) fn take(&self, uuid: &str) -> Vec<u64> {
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        reported.remove(uuid).unwrap_or_default()
    }
}

impl Drop for XidWatch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn listen(
    nvml: &Nvml,
    reported: &Mutex<BTreeMap<String, Vec<u64>>>,
    stop: &AtomicBool,
) -> Result<(), NvmlError> {
    let mut set = nvml.create_event_set()?;
    for index in 0..nvml.device_count()? {
        let Ok(gpu) = nvml.device_by_index(index) else { continue };
        if !gpu
            .supported_event_types()
            .is_ok_and(|types| types.contains(EventTypes::CRITICAL_XID_ERROR))
        {
            continue;
        }
        set = gpu
            .register_events(EventTypes::CRITICAL_XID_ERROR, set)
            .map_err(|failed| failed.error)?;
    }
    while !stop.load(Ordering::Relaxed) {
        match set.wait(WAIT_MILLISECONDS) {
            Ok(event) => {
                let number = match event.event_data {
                    Some(XidError::Value(number)) => number,
                    Some(XidError::Unknown) => 999,
                    None => continue,
                };
                match event.device.uuid() {
                    Ok(uuid) => {
                        let mut reported = reported.lock().unwrap_or_else(PoisonError::into_inner);
                        keep(reported.entry(uuid).or_default(), number);
                    }
                    // The GPU is lost; `sample` reports it.
                    Err(error) => {
                        tracing::warn!(number, %error, "driver error (XID) of a GPU without an identifier");
                    }
                }
            }
            Err(NvmlError::Timeout) => {}
            // For a lost GPU the call fails at once: do not spin.
            Err(NvmlError::GpuLost | NvmlError::Unknown) => {
                std::thread::sleep(std::time::Duration::from_millis(WAIT_MILLISECONDS.into()));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Adds an error. A full list keeps its first errors and the most severe one.
fn keep(list: &mut Vec<u64>, number: u64) {
    match list.get_mut(MOST - 1) {
        Some(full) => *full = worse(*full, number),
        None => list.push(number),
    }
}

/// The error with the more severe action; the later one of two equal actions.
pub(crate) fn worse(earlier: u64, later: u64) -> u64 {
    if XidAction::of(earlier) > XidAction::of(later) { earlier } else { later }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_severe_error_between_two_samples_is_kept() {
        assert_eq!(worse(109, 13), 109);
        assert_eq!(worse(13, 109), 109);
        assert_eq!(worse(48, 109), 109);
    }

    #[test]
    fn a_storm_of_errors_is_bounded_and_keeps_the_most_severe_one() {
        let mut list = Vec::new();
        for number in
            std::iter::repeat_n(13, 5_000).chain([79]).chain(std::iter::repeat_n(94, 5_000))
        {
            keep(&mut list, number);
        }
        assert_eq!((list.len(), list.last()), (MOST, Some(&79)));
    }

    #[test]
    fn without_a_driver_no_errors_are_reported() {
        let watch = XidWatch::start(|| Err(NvmlError::LibraryNotFound));
        assert!(watch.take("GPU-a").is_empty());
    }
}
