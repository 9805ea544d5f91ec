//! Errors that the driver reports once, by number (XID), and never again: somebody has to listen all the time.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;

/// Errors that programs cause and that leave the GPU as good as before; NVIDIA's device plugin passes over the same.
const FAULTS_OF_PROGRAMS: [u64; 6] = [13, 31, 43, 45, 68, 109];

/// How long to listen at a time; also how long the thread outlives its owner.
const PATIENCE_MILLISECONDS: u32 = 2_000;

/// Listens on a thread of its own until it is dropped.
#[derive(Debug)]
pub(crate) struct XidWatch {
    last: Arc<Mutex<BTreeMap<String, u64>>>,
    stop: Arc<AtomicBool>,
}

impl XidWatch {
    /// Begins to listen. The thread has a handle of the library of its own, because events borrow it.
    pub(crate) fn start(load: impl FnOnce() -> Result<Nvml, NvmlError> + Send + 'static) -> Self {
        let watch = Self { last: Arc::default(), stop: Arc::default() };
        let (last, stop) = (Arc::clone(&watch.last), Arc::clone(&watch.stop));
        let thread = std::thread::Builder::new().name("xid-watch".into()).spawn(move || {
            if let Err(error) = load().and_then(|nvml| listen(&nvml, &last, &stop)) {
                tracing::warn!(%error, "errors that the driver reports (XID) cannot be watched");
            }
        });
        if let Err(error) = thread {
            tracing::warn!(%error, "errors that the driver reports (XID) cannot be watched");
        }
        watch
    }

    /// The last error that speaks against this GPU since this was asked before.
    pub(crate) fn take(&self, uuid: &str) -> Option<u64> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).remove(uuid)
    }
}

impl Drop for XidWatch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn listen(
    nvml: &Nvml,
    last: &Mutex<BTreeMap<String, u64>>,
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
        match set.wait(PATIENCE_MILLISECONDS) {
            Ok(event) => {
                let number = match event.event_data {
                    Some(XidError::Value(number)) => number,
                    Some(XidError::Unknown) => 999,
                    None => continue,
                };
                if !speaks_against_device(number) {
                    continue;
                }
                match event.device.uuid() {
                    Ok(uuid) => {
                        last.lock().unwrap_or_else(PoisonError::into_inner).insert(uuid, number);
                    }
                    // It is gone; its readings will tell.
                    Err(error) => {
                        tracing::warn!(number, %error, "an error of a GPU without a name");
                    }
                }
            }
            Err(NvmlError::Timeout) => {}
            // A lost GPU makes the call fail at once: do not spin.
            Err(NvmlError::GpuLost | NvmlError::Unknown) => {
                std::thread::sleep(std::time::Duration::from_millis(PATIENCE_MILLISECONDS.into()));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn speaks_against_device(number: u64) -> bool {
    !FAULTS_OF_PROGRAMS.contains(&number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_crashes_does_not_take_its_gpu_with_it() {
        for (number, expected) in
            [(13, false), (31, false), (43, false), (48, true), (79, true), (95, true)]
        {
            assert_eq!(speaks_against_device(number), expected, "XID {number}");
        }
    }

    #[test]
    fn a_machine_whose_driver_cannot_be_watched_reports_no_errors() {
        let watch = XidWatch::start(|| Err(NvmlError::LibraryNotFound));
        assert_eq!(watch.take("GPU-a"), None);
    }
}
