//! Whether a GPU can be used, from its readings and from what was known of it. Pure.
//!
//! * From 85 °C, or while its hardware slows it down, it is watched: a reason is told, work still goes there.
//! * From 95 °C, lost, broken, with uncorrected memory errors or after an error of the driver's (XID) that speaks
//!   against the device, it is out. One that overheated must fall below 85 °C first.
//! * Out, it comes back after [`HEALTHY_SAMPLES`] healthy samples in a row.
//! * Memory errors count since the driver was loaded, so they end with a reset, which clears the counter. An XID is
//!   told once and nothing takes it back, so it is kept until the machine was restarted or people say that they
//!   have looked after it: the end of a maintenance, or of a cordon.

use agentaflow_gpu::Sample;
use serde::{Deserialize, Serialize};

/// Degrees Celsius from which a GPU is watched.
pub const HOT: u32 = 85;
/// Degrees Celsius from which a GPU is taken out.
pub const CRITICAL: u32 = 95;
/// So many healthy samples in a row bring a GPU back: one that flaps would take work down with it.
pub const HEALTHY_SAMPLES: u32 = 3;

/// What slows a GPU down because of its surroundings, in the words of `agentaflow-gpu`; a power cap is normal work.
const SLOWDOWNS: [&str; 4] = ["hardware slowdown", "thermal", "thermal (hardware)", "power brake"];

/// What is wrong with a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cause {
    /// The driver as a whole fails.
    Driver,
    /// It is no longer there, or does not answer.
    Lost,
    /// It says itself that it is broken.
    Fault,
    /// Uncorrected memory errors.
    Ecc,
    /// An error of the driver's that speaks against the device.
    Xid,
    /// From [`CRITICAL`].
    Overheated,
    /// From [`HOT`].
    Hot,
    /// Its hardware slows it down.
    Throttled,
}

impl Cause {
    /// It takes the GPU out.
    pub fn is_critical(self) -> bool {
        !matches!(self, Self::Hot | Self::Throttled)
    }

    /// The reason of the Event that tells of it.
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
        }
    }
}

/// Something wrong, and how long it has looked better.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// What.
    pub cause: Cause,
    /// In words, without readings that change all the time.
    pub words: String,
    /// Samples in a row without it.
    pub better: u32,
}

/// What is known about the health of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// What is wrong.
    pub trouble: Option<Trouble>,
    /// The error of the driver's that speaks against it.
    pub xid: Option<u64>,
}

/// What one look at a GPU gave.
#[derive(Clone, Copy, Debug)]
pub enum Look<'a> {
    /// Readings.
    Sample(&'a Sample),
    /// The driver no longer lists it.
    Gone,
    /// The driver as a whole fails, with its words.
    DriverFailed(&'a str),
}

impl Health {
    /// It can be used.
    pub fn is_available(&self) -> bool {
        !self.trouble.as_ref().is_some_and(|trouble| trouble.cause.is_critical())
    }

    /// What to say about it.
    pub fn words(&self) -> Option<String> {
        let trouble = self.trouble.as_ref()?;
        if trouble.better == 0 || !trouble.cause.is_critical() {
            return Some(trouble.words.clone());
        }
        Some(format!(
            "{}; better for {} of {HEALTHY_SAMPLES} samples",
            trouble.words, trouble.better
        ))
    }

    /// The health after another look. `fresh` forgets what came before: the machine was restarted, or people
    /// looked after it.
    #[must_use]
    pub fn after(&self, look: Look<'_>, fresh: bool) -> Self {
        let before = if fresh { &Self::default() } else { self };
        let told = match look {
            Look::Sample(sample) => sample.xid,
            _ => None,
        };
        let xid = told.or(before.xid);
        let overheated = before.trouble.as_ref().is_some_and(|old| old.cause == Cause::Overheated);
        let found = judge(look, xid, overheated);
        let Some(old) = &before.trouble else { return Self { trouble: found, xid } };
        let trouble = match found {
            Some(new) if new.cause.is_critical() || !old.cause.is_critical() => Some(new),
            // Nothing as bad as before: wait and see.
            _ if old.better + 1 < HEALTHY_SAMPLES => {
                Some(Trouble { better: old.better + 1, ..old.clone() })
            }
            milder => milder,
        };
        Self { trouble, xid }
    }
}

/// What is wrong now, the worst of it.
fn judge(look: Look<'_>, xid: Option<u64>, overheated: bool) -> Option<Trouble> {
    let trouble = |cause, words: String| Some(Trouble { cause, words, better: 0 });
    let sample = match look {
        Look::Sample(sample) => sample,
        Look::Gone => {
            let words = "the driver no longer lists it; see `dmesg`, and restart the machine";
            return trouble(Cause::Lost, words.into());
        }
        Look::DriverFailed(words) => return trouble(Cause::Driver, words.into()),
    };
    if let Some(fault) = &sample.fault {
        let silent = sample.memory_used.is_none() && sample.temperature.is_none();
        return trouble(if silent { Cause::Lost } else { Cause::Fault }, fault.clone());
    }
    if let Some(count) = sample.ecc_errors.filter(|count| *count > 0) {
        let words = format!(
            "{count} uncorrected memory errors since the driver was loaded; drain the node and reset the GPU"
        );
        return trouble(Cause::Ecc, words);
    }
    if let Some(number) = xid {
        let words = format!(
            "the driver reported XID {number}; drain the node and reset the GPU, or restart the machine"
        );
        return trouble(Cause::Xid, words);
    }
    let degrees = sample.temperature.unwrap_or(0);
    if degrees >= CRITICAL {
        return trouble(Cause::Overheated, format!("{CRITICAL} °C or more; check its cooling"));
    }
    if overheated && degrees >= HOT {
        return trouble(Cause::Overheated, format!("it overheated and is still above {HOT} °C"));
    }
    if degrees >= HOT {
        return trouble(Cause::Hot, format!("{HOT} °C or more; check its cooling"));
    }
    let slow: Vec<&str> = sample.throttled.iter().map(String::as_str).collect();
    let slow: Vec<&str> = slow.into_iter().filter(|word| SLOWDOWNS.contains(word)).collect();
    if slow.is_empty() {
        return None;
    }
    trouble(Cause::Throttled, format!("it is slowed down: {}", slow.join(", ")))
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

    /// Looks one after the other; after each, whether it can be used and why it is talked about.
    fn check(looks: &[(Look<'_>, bool, Option<Cause>)]) {
        let mut health = Health::default();
        for (step, (look, available, cause)) in looks.iter().enumerate() {
            health = health.after(*look, false);
            let told =
                (health.is_available(), health.trouble.as_ref().map(|trouble| trouble.cause));
            assert_eq!(told, (*available, *cause), "step {step}: {health:?}");
        }
    }

    #[test]
    fn from_85_degrees_a_gpu_is_watched_and_from_95_taken_out() {
        let (fine, hot, critical) = (at(84), at(85), at(95));
        check(&[
            (Look::Sample(&fine), true, None),
            (Look::Sample(&hot), true, Some(Cause::Hot)),
            (Look::Sample(&critical), false, Some(Cause::Overheated)),
        ]);
    }

    #[test]
    fn a_gpu_that_overheated_comes_back_after_three_cool_samples_in_a_row() {
        let (cool, hot, critical) = (at(60), at(94), at(97));
        let out = Some(Cause::Overheated);
        check(&[
            (Look::Sample(&critical), false, out),
            (Look::Sample(&cool), false, out),
            (Look::Sample(&cool), false, out),
            (Look::Sample(&hot), false, out),
            (Look::Sample(&cool), false, out),
            (Look::Sample(&cool), false, out),
            (Look::Sample(&cool), true, None),
        ]);
    }

    #[test]
    fn memory_errors_keep_a_gpu_out_until_a_reset_clears_their_count() {
        let (well, sick) = (cool(), Sample { ecc_errors: Some(2), ..cool() });
        let out = Some(Cause::Ecc);
        check(&[
            (Look::Sample(&sick), false, out),
            (Look::Sample(&sick), false, out),
            (Look::Sample(&sick), false, out),
            (Look::Sample(&sick), false, out),
            (Look::Sample(&well), false, out),
            (Look::Sample(&well), false, out),
            (Look::Sample(&well), true, None),
        ]);
    }

    #[test]
    fn an_error_of_the_driver_is_told_once_and_kept_until_somebody_looked_after_it() {
        let (well, sick) = (cool(), Sample { xid: Some(79), ..cool() });
        let mut health = Health::default().after(Look::Sample(&sick), false);
        for _ in 0..10 {
            health = health.after(Look::Sample(&well), false);
            assert!(!health.is_available());
        }
        assert!(health.words().unwrap().contains("XID 79"));
        assert!(health.after(Look::Sample(&well), true).is_available());
    }

    #[test]
    fn a_gpu_that_is_gone_silent_or_broken_is_out() {
        let silent =
            Sample { fault: Some("lost".into()), uuid: "GPU-a".into(), ..Sample::default() };
        let broken = Sample { fault: Some("rows".into()), ..cool() };
        let well = cool();
        check(&[
            (Look::Gone, false, Some(Cause::Lost)),
            (Look::Sample(&silent), false, Some(Cause::Lost)),
            (Look::Sample(&broken), false, Some(Cause::Fault)),
            (Look::DriverFailed("mismatch"), false, Some(Cause::Driver)),
            (Look::Sample(&well), false, Some(Cause::Driver)),
            (Look::Gone, false, Some(Cause::Lost)),
        ]);
    }

    #[test]
    fn a_gpu_slowed_down_by_its_surroundings_is_watched_and_a_power_cap_is_normal() {
        let slow = Sample { throttled: vec!["power cap".into(), "thermal".into()], ..cool() };
        let capped = Sample { throttled: vec!["power cap".into()], ..cool() };
        let watched = Some(Cause::Throttled);
        check(&[
            (Look::Sample(&capped), true, None),
            (Look::Sample(&slow), true, watched),
            (Look::Sample(&capped), true, watched),
            (Look::Sample(&capped), true, watched),
            (Look::Sample(&capped), true, None),
        ]);
    }

    #[test]
    fn a_gpu_that_recovers_into_a_warning_is_used_again_and_still_watched() {
        let sick = Sample { fault: Some("rows".into()), ..cool() };
        let hot = at(88);
        let out = Some(Cause::Fault);
        check(&[
            (Look::Sample(&sick), false, out),
            (Look::Sample(&hot), false, out),
            (Look::Sample(&hot), false, out),
            (Look::Sample(&hot), true, Some(Cause::Hot)),
        ]);
    }
}
