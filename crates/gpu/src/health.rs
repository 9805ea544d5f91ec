//! Health of a GPU from its readings and its history. Pure.
//!
//! * From 85 °C, or while its hardware throttles it, a GPU has a warning and stays available.
//! * From 95 °C, lost, broken, with uncorrected memory errors or after a driver error (XID) that asks for a reset, a
//!   restart of the machine or the vendor's support, a GPU is unavailable. An overheated GPU must first fall below 85 °C.
//! * After an XID that asks for a restart of the application, a GPU has a warning and stays available.
//! * An unavailable GPU becomes available after [`HEALTHY_SAMPLES`] consecutive healthy samples.
//! * Memory errors count since the driver was loaded: a reset clears them. The driver reports an XID once and never
//!   clears it: an XID that takes the GPU out is kept until the machine restarts, or maintenance or a cordon ends.

use serde::{Deserialize, Serialize};

use crate::types::Sample;
use crate::xid::worse;
use crate::xid_action::XidAction;

/// Degrees Celsius for a warning.
pub const HOT: u32 = 85;
/// Degrees Celsius at which a GPU becomes unavailable.
pub const CRITICAL: u32 = 95;
/// Consecutive healthy samples before a GPU is available again: protects workloads from a flapping GPU.
pub const HEALTHY_SAMPLES: u32 = 3;

/// Throttle reasons of `agentaflow-gpu` that are caused by the environment; a power cap is normal.
const SLOWDOWNS: [&str; 4] = ["hardware slowdown", "thermal", "thermal (hardware)", "power brake"];

/// Problem of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cause {
    /// The driver fails for all GPUs.
    Driver,
    /// Not listed, or not responding.
    Lost,
    /// Fault reported by the GPU.
    Fault,
    /// Uncorrected memory errors.
    Ecc,
    /// Driver error that takes the GPU out.
    Xid,
    /// At or above [`CRITICAL`].
    Overheated,
    /// At or above [`HOT`].
    Hot,
    /// Throttled by its hardware.
    Throttled,
    /// Driver error of an application; the GPU is healthy.
    Application,
}

impl Cause {
    /// True if it makes the GPU unavailable.
    pub fn is_critical(self) -> bool {
        !matches!(self, Self::Hot | Self::Throttled | Self::Application)
    }

    /// Reason of the Kubernetes event.
    pub fn event(self) -> &'static str {
        match self {
            Self::Driver => "GPUDriverFailed",
            Self::Lost => "GPULost",
            Self::Fault => "GPUFault",
            Self::Ecc => "GPUEccError",
            Self::Xid => "GPUXidError",
            Self::Overheated => "GPUOverheated",
            Self::Hot => "GPUHot",
            Self::Throttled => "GPUThrottled",
            Self::Application => "GPUApplicationError",
        }
    }
}

/// Problem with its recovery progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthProblem {
    pub cause: Cause,
    /// Message without changing readings.
    pub message: String,
    /// Consecutive samples without the problem.
    pub better: u32,
}

/// Health of a GPU over time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    pub problem: Option<HealthProblem>,
    /// Driver error (XID) that takes the GPU out.
    pub xid: Option<u64>,
}

/// One observation of a GPU.
#[derive(Clone, Copy, Debug)]
pub enum DeviceObservation<'a> {
    Sample(&'a Sample),
    /// Not listed by the driver.
    Gone,
    /// The driver fails, with its message.
    DriverFailed(&'a str),
}

impl Health {
    pub fn is_available(&self) -> bool {
        !self.problem.as_ref().is_some_and(|problem| problem.cause.is_critical())
    }

    pub fn message(&self) -> Option<String> {
        let problem = self.problem.as_ref()?;
        if problem.better == 0 || !problem.cause.is_critical() {
            return Some(problem.message.clone());
        }
        Some(format!(
            "{}; healthy for {} of {HEALTHY_SAMPLES} samples",
            problem.message, problem.better
        ))
    }

    /// Health after another observation. `fresh` discards the history: the machine was restarted, or maintenance
    /// ended.
    #[must_use]
    pub fn after(&self, look: DeviceObservation<'_>, fresh: bool) -> Self {
        let before = if fresh { &Self::default() } else { self };
        let reported = match look {
            DeviceObservation::Sample(sample) => sample.xid,
            _ => None,
        };
        let severe = reported.filter(|xid| XidAction::of(*xid).takes_gpu_out());
        let xid = match (before.xid, severe) {
            (Some(earlier), Some(later)) => Some(worse(earlier, later)),
            (earlier, later) => later.or(earlier),
        };
        let overheated = before.problem.as_ref().is_some_and(|old| old.cause == Cause::Overheated);
        let found = diagnose(look, xid, overheated);
        let Some(old) = &before.problem else { return Self { problem: found, xid } };
        let problem = match found {
            Some(new) if new.cause.is_critical() || !old.cause.is_critical() => Some(new),
            // No problem as severe as before: keep the old problem until enough samples are healthy.
            _ if old.better + 1 < HEALTHY_SAMPLES => {
                Some(HealthProblem { better: old.better + 1, ..old.clone() })
            }
            milder => milder,
        };
        Self { problem, xid }
    }
}

/// Most severe current problem.
fn diagnose(
    look: DeviceObservation<'_>,
    xid: Option<u64>,
    overheated: bool,
) -> Option<HealthProblem> {
    let problem = |cause, message: String| Some(HealthProblem { cause, message, better: 0 });
    let sample = match look {
        DeviceObservation::Sample(sample) => sample,
        DeviceObservation::Gone => {
            let message = "not listed by the driver; see `dmesg` and restart the machine";
            return problem(Cause::Lost, message.into());
        }
        DeviceObservation::DriverFailed(message) => return problem(Cause::Driver, message.into()),
    };
    if let Some(fault) = &sample.fault {
        let silent = sample.memory_used.is_none() && sample.temperature.is_none();
        return problem(if silent { Cause::Lost } else { Cause::Fault }, fault.clone());
    }
    if let Some(count) = sample.ecc_errors.filter(|count| *count > 0) {
        let message = format!(
            "{count} uncorrected memory errors since the driver was loaded; drain the node and reset the GPU"
        );
        return problem(Cause::Ecc, message);
    }
    if let Some(number) = xid {
        return problem(Cause::Xid, xid_message(number));
    }
    let degrees = sample.temperature.unwrap_or(0);
    if degrees >= CRITICAL {
        return problem(Cause::Overheated, format!("{CRITICAL} °C or more; check the cooling"));
    }
    if overheated && degrees >= HOT {
        return problem(Cause::Overheated, format!("overheated and still above {HOT} °C"));
    }
    if degrees >= HOT {
        return problem(Cause::Hot, format!("{HOT} °C or more; check the cooling"));
    }
    let slow: Vec<&str> = sample.throttled.iter().map(String::as_str).collect();
    let slow: Vec<&str> = slow.into_iter().filter(|word| SLOWDOWNS.contains(word)).collect();
    if !slow.is_empty() {
        return problem(Cause::Throttled, format!("throttled: {}", slow.join(", ")));
    }
    let failed = sample.xid.filter(|xid| XidAction::of(*xid) == XidAction::RestartApplication)?;
    problem(Cause::Application, xid_message(failed))
}

fn xid_message(number: u64) -> String {
    format!("the driver reported XID {number}; {}", XidAction::of(number).remedy())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cool() -> Sample {
        Sample {
            uuid: "GPU-a".into(),
            memory_used: Some(0),
            temperature: Some(40),
            ecc_errors: Some(0),
            ..Sample::default()
        }
    }

    fn at(degrees: u32) -> Sample {
        Sample { temperature: Some(degrees), ..cool() }
    }

    /// Asserts availability and problem after each observation.
    fn check(looks: &[(DeviceObservation<'_>, bool, Option<Cause>)]) {
        let mut health = Health::default();
        for (step, (look, available, cause)) in looks.iter().enumerate() {
            health = health.after(*look, false);
            let message =
                (health.is_available(), health.problem.as_ref().map(|problem| problem.cause));
            assert_eq!(message, (*available, *cause), "step {step}: {health:?}");
        }
    }

    #[test]
    fn from_85_degrees_a_gpu_is_watched_and_from_95_taken_out() {
        let (fine, hot, critical) = (at(84), at(85), at(95));
        check(&[
            (DeviceObservation::Sample(&fine), true, None),
            (DeviceObservation::Sample(&hot), true, Some(Cause::Hot)),
            (DeviceObservation::Sample(&critical), false, Some(Cause::Overheated)),
        ]);
    }

    #[test]
    fn a_gpu_that_overheated_comes_back_after_three_cool_samples_in_a_row() {
        let (cool, hot, critical) = (at(60), at(94), at(97));
        let out = Some(Cause::Overheated);
        check(&[
            (DeviceObservation::Sample(&critical), false, out),
            (DeviceObservation::Sample(&cool), false, out),
            (DeviceObservation::Sample(&cool), false, out),
            (DeviceObservation::Sample(&hot), false, out),
            (DeviceObservation::Sample(&cool), false, out),
            (DeviceObservation::Sample(&cool), false, out),
            (DeviceObservation::Sample(&cool), true, None),
        ]);
    }

    #[test]
    fn memory_errors_keep_a_gpu_out_until_a_reset_clears_their_count() {
        let (well, unhealthy) = (cool(), Sample { ecc_errors: Some(2), ..cool() });
        let out = Some(Cause::Ecc);
        check(&[
            (DeviceObservation::Sample(&unhealthy), false, out),
            (DeviceObservation::Sample(&unhealthy), false, out),
            (DeviceObservation::Sample(&unhealthy), false, out),
            (DeviceObservation::Sample(&unhealthy), false, out),
            (DeviceObservation::Sample(&well), false, out),
            (DeviceObservation::Sample(&well), false, out),
            (DeviceObservation::Sample(&well), true, None),
        ]);
    }

    #[test]
    fn an_xid_that_takes_a_gpu_out_is_kept_until_maintenance_ends() {
        for (number, remedy) in [(109, "reset"), (79, "restart the machine"), (54, "support")] {
            let (well, unhealthy) = (cool(), Sample { xid: Some(number), ..cool() });
            let mut health = Health::default().after(DeviceObservation::Sample(&unhealthy), false);
            for _ in 0..10 {
                health = health.after(DeviceObservation::Sample(&well), false);
                assert!(!health.is_available());
            }
            let message = health.message().unwrap();
            assert!(
                message.contains(&format!("XID {number}")) && message.contains(remedy),
                "{message}"
            );
            assert!(health.after(DeviceObservation::Sample(&well), true).is_available());
        }
    }

    #[test]
    fn an_xid_of_an_application_is_a_warning_that_ends_by_itself() {
        let (well, failed) = (cool(), Sample { xid: Some(94), ..cool() });
        let warned = Some(Cause::Application);
        check(&[
            (DeviceObservation::Sample(&failed), true, warned),
            (DeviceObservation::Sample(&well), true, warned),
            (DeviceObservation::Sample(&well), true, warned),
            (DeviceObservation::Sample(&well), true, None),
        ]);
    }

    #[test]
    fn an_informational_xid_changes_nothing() {
        let noted = Sample { xid: Some(63), ..cool() };
        check(&[(DeviceObservation::Sample(&noted), true, None)]);
    }

    #[test]
    fn the_most_severe_xid_is_kept() {
        let (lost, reset) =
            (Sample { xid: Some(79), ..cool() }, Sample { xid: Some(109), ..cool() });
        let health = Health::default().after(DeviceObservation::Sample(&lost), false);
        let health = health.after(DeviceObservation::Sample(&reset), false);
        assert_eq!(health.xid, Some(79));
    }

    #[test]
    fn a_gpu_that_is_gone_silent_or_broken_is_out() {
        let silent =
            Sample { fault: Some("lost".into()), uuid: "GPU-a".into(), ..Sample::default() };
        let broken = Sample { fault: Some("rows".into()), ..cool() };
        let well = cool();
        check(&[
            (DeviceObservation::Gone, false, Some(Cause::Lost)),
            (DeviceObservation::Sample(&silent), false, Some(Cause::Lost)),
            (DeviceObservation::Sample(&broken), false, Some(Cause::Fault)),
            (DeviceObservation::DriverFailed("mismatch"), false, Some(Cause::Driver)),
            (DeviceObservation::Sample(&well), false, Some(Cause::Driver)),
            (DeviceObservation::Gone, false, Some(Cause::Lost)),
        ]);
    }

    #[test]
    fn a_gpu_slowed_down_by_its_surroundings_is_watched_and_a_power_cap_is_normal() {
        let slow = Sample { throttled: vec!["power cap".into(), "thermal".into()], ..cool() };
        let capped = Sample { throttled: vec!["power cap".into()], ..cool() };
        let watched = Some(Cause::Throttled);
        check(&[
            (DeviceObservation::Sample(&capped), true, None),
            (DeviceObservation::Sample(&slow), true, watched),
            (DeviceObservation::Sample(&capped), true, watched),
            (DeviceObservation::Sample(&capped), true, watched),
            (DeviceObservation::Sample(&capped), true, None),
        ]);
    }

    #[test]
    fn a_gpu_that_recovers_into_a_warning_is_used_again_and_still_watched() {
        let unhealthy = Sample { fault: Some("rows".into()), ..cool() };
        let hot = at(88);
        let out = Some(Cause::Fault);
        check(&[
            (DeviceObservation::Sample(&unhealthy), false, out),
            (DeviceObservation::Sample(&hot), false, out),
            (DeviceObservation::Sample(&hot), false, out),
            (DeviceObservation::Sample(&hot), true, Some(Cause::Hot)),
        ]);
    }
}
