//! Device files that a task may not open.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use agentaflow_linux::device_filter::DeniedDevice;

/// Denied character device files. The text is a rule of the devices controller of cgroup v1: `c 195:* rwm`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct DeviceRule {
    pub(crate) major: u32,
    /// `None` means all minor numbers.
    pub(crate) minor: Option<u32>,
}

/// Enforcement of [`DeviceRule`]s on this host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DeviceControl {
    /// Devices controller of cgroup v1.
    CgroupV1,
    /// Program in the kernel, attached to the task's cgroup of version 2.
    CgroupV2,
    /// The kernel enforces nothing; the agent stops a task that uses memory of a foreign GPU. Also an unknown value of a
    /// newer guardian.
    #[default]
    #[serde(other)]
    Monitoring,
}

impl DeviceControl {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::CgroupV1 => "cgroup_v1",
            Self::CgroupV2 => "cgroup_v2",
            Self::Monitoring => "monitoring",
        }
    }
}

#[derive(Debug, Error)]
#[error("invalid device rule")]
pub(crate) struct InvalidRule;

impl DeviceRule {
    pub(super) fn denied(self) -> DeniedDevice {
        DeniedDevice { major: self.major, minor: self.minor }
    }
}

impl fmt::Display for DeviceRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.minor {
            Some(minor) => write!(f, "c {}:{minor} rwm", self.major),
            None => write!(f, "c {}:* rwm", self.major),
        }
    }
}

impl FromStr for DeviceRule {
    type Err = InvalidRule;

    fn from_str(text: &str) -> Result<Self, InvalidRule> {
        let numbers = text.strip_prefix("c ").and_then(|rest| rest.strip_suffix(" rwm"));
        let (major, minor) = numbers.and_then(|text| text.split_once(':')).ok_or(InvalidRule)?;
        let number = |text: &str| text.parse::<u32>().map_err(|_| InvalidRule);
        let minor = if minor == "*" { None } else { Some(number(minor)?) };
        Ok(Self { major: number(major)?, minor })
    }
}

impl TryFrom<String> for DeviceRule {
    type Error = InvalidRule;

    fn try_from(text: String) -> Result<Self, InvalidRule> {
        text.parse()
    }
}

impl From<DeviceRule> for String {
    fn from(rule: DeviceRule) -> Self {
        rule.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_have_the_form_of_the_devices_controller() {
        for (text, major, minor) in [("c 195:* rwm", 195, None), ("c 195:3 rwm", 195, Some(3))] {
            let rule = DeviceRule { major, minor };
            assert_eq!(rule.to_string(), text);
            assert_eq!(text.parse::<DeviceRule>().unwrap(), rule);
        }
        for text in ["a *:* rwm", "c 195 rwm", "c x:* rwm", "c 195:* r"] {
            assert!(text.parse::<DeviceRule>().is_err(), "{text}");
        }
    }

    #[test]
    fn names_of_the_report_match_the_protocol() {
        for control in [DeviceControl::CgroupV1, DeviceControl::CgroupV2, DeviceControl::Monitoring]
        {
            assert_eq!(serde_json::to_value(control).unwrap(), control.as_str());
        }
        let newer = serde_json::from_str::<DeviceControl>("\"landlock\"").unwrap();
        assert_eq!(newer, DeviceControl::Monitoring);
    }
}
