//! The history: four rings, two resolutions for devices and for jobs.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::block::{BLOCK_BYTES, Values, short_name};
use crate::tiers::{COARSE, FINE, Tiers};

/// Kind of a series. Jobs have rings of their own, so that many short jobs do not displace the history of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    Device,
    Job,
}

/// Maximum bytes of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub devices: u64,
    pub jobs: u64,
}

/// Damage that was found when the files were opened. The history continues without the lost part.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Warning {
    #[error("{} has another format and is started anew", path.display())]
    Format { path: PathBuf },
    #[error("{} has {blocks} damaged blocks of {of}, which are reused", path.display())]
    Damaged { path: PathBuf, blocks: u64, of: u64 },
}

#[derive(Debug, Error)]
#[error("cannot open the history in {}", path.display())]
pub struct OpenError {
    path: PathBuf,
    source: io::Error,
}

/// Part of a curve, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    pub from: u64,
    /// First second that is excluded.
    pub to: u64,
    /// Maximum number of rows.
    pub points: u64,
    /// Present time, which decides on the resolution.
    pub now: u64,
}

/// Readings of one series at a fixed interval.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curve {
    /// Seconds since 1970.
    pub start: u64,
    /// Seconds between two rows.
    pub step: u64,
    /// Mean of the readings in each interval.
    pub rows: Vec<Values>,
}

/// Readings of devices and jobs. One process may have the files open at a time.
#[derive(Debug)]
pub struct History {
    devices: Tiers,
    jobs: Tiers,
}

impl History {
    /// Opens or creates the files in a directory.
    pub fn open(dir: &Path, limits: Limits) -> Result<(Self, Vec<Warning>), OpenError> {
        let failed = |source| OpenError { path: dir.to_owned(), source };
        std::fs::create_dir_all(dir).map_err(failed)?;
        let mut warnings = Vec::new();
        let devices = Tiers::open(dir, "devices", limits.devices, &mut warnings).map_err(failed)?;
        let jobs = Tiers::open(dir, "jobs", limits.jobs, &mut warnings).map_err(failed)?;
        Ok((Self { devices, jobs }, warnings))
    }

    /// Limit of devices with which a number of GPUs keeps the whole time.
    pub fn bytes_for_devices(gpus: u64) -> u64 {
        gpus * (FINE.blocks() + COARSE.blocks()) * BLOCK_BYTES as u64
    }

    /// Records the readings of a series at `at`, in seconds since 1970.
    pub fn record(&self, class: Class, name: &str, at: u64, values: &Values) -> io::Result<()> {
        let name = short_name(name);
        self.tiers(class).record(&name, at, values)
    }

    /// Writes the means that are complete at `now`. To be called at least every few minutes.
    pub fn write_means(&self, now: u64) -> io::Result<()> {
        self.devices.write_means(now)?;
        self.jobs.write_means(now)
    }

    /// Readings of a series; means of longer intervals for a long range.
    pub fn read(&self, class: Class, name: &str, range: Range) -> io::Result<Curve> {
        self.tiers(class).read(&short_name(name), range)
    }

    /// Present size of all files.
    pub fn bytes(&self) -> u64 {
        let each = [&self.devices, &self.jobs];
        each.iter().map(|tiers| tiers.bytes()).sum()
    }

    fn tiers(&self, class: Class) -> &Tiers {
        match class {
            Class::Device => &self.devices,
            Class::Job => &self.jobs,
        }
    }
}
