//! GPUs through the program `nvidia-smi`, for drivers with an unusable library.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::smi_text::{self, APPS, BASIC, EXTRA, Row};
use crate::types::{Device, DeviceProcess, GpuError, GpuSource, Host, Sample};
use crate::{command, mig};

#[derive(Debug)]
pub struct SmiSource {
    program: PathBuf,
    host: Host,
    /// This version rejects the fields in [`smi_text::EXTRA`].
    no_extra: AtomicBool,
}

impl SmiSource {
    /// Reads all GPUs once. `NoDriver` if the program does not exist.
    pub fn open() -> Result<Self, GpuError> {
        let program = command::find_smi().ok_or(GpuError::NoDriver)?;
        Self::with_program(&program)
    }

    pub fn with_program(program: &Path) -> Result<Self, GpuError> {
        let host = Host { source: "nvidia-smi", ..Host::default() };
        let mut source =
            Self { program: program.to_owned(), host, no_extra: AtomicBool::new(false) };
        source.host.driver = source.rows()?.into_iter().find_map(|row| row.driver);
        // Only the table contains the CUDA version, which is optional.
        source.host.cuda = command::run(program, &[]).ok().and_then(|table| smi_text::cuda(&table));
        Ok(source)
    }

    fn rows(&self) -> Result<Vec<Row>, GpuError> {
        let text = self.query("gpu", BASIC)?;
        let mut rows = smi_text::rows(&text).map_err(broken)?;
        if !self.no_extra.load(Ordering::Relaxed) {
            match self.query("gpu", EXTRA) {
                Ok(text) => smi_text::add_extra(&mut rows, &text),
                Err(error) => {
                    tracing::info!(%error, "this version of nvidia-smi reports no ECC errors, throttling or MIG mode");
                    self.no_extra.store(true, Ordering::Relaxed);
                }
            }
        }
        Ok(rows)
    }

    fn query(&self, what: &str, fields: &str) -> Result<String, GpuError> {
        let query = format!("--query-{what}={fields}");
        command::run(&self.program, &[&query, "--format=csv,noheader,nounits"]).map_err(broken)
    }

    fn add_slices(&self, devices: &mut [Device]) {
        if devices.iter().all(|gpu| gpu.mig.is_none()) {
            return;
        }
        let run = |args: &[&str]| command::run(&self.program, args).unwrap_or_default();
        let mut slices = smi_text::slices(&run(&["-L"]));
        let reported = mig::placements(&run(&["mig", "-lgi"]));
        for gpu in devices.iter_mut().filter(|gpu| gpu.mig.is_some()) {
            let mut mine = slices.remove(&gpu.uuid).unwrap_or_default();
            let reported = reported.get(&gpu.index).cloned().unwrap_or_default();
            mig::place(&mut mine, &reported, &gpu.name, gpu.memory);
            gpu.mig = Some(mine);
        }
    }
}

impl GpuSource for SmiSource {
    fn host(&self) -> Host {
        self.host.clone()
    }

    fn devices(&self) -> Result<Vec<Device>, GpuError> {
        let mut devices: Vec<Device> = self.rows()?.into_iter().map(|row| row.device).collect();
        devices.sort_by_key(|gpu| gpu.index);
        self.add_slices(&mut devices);
        Ok(devices)
    }

    fn sample(&self) -> Result<Vec<Sample>, GpuError> {
        let mut rows = self.rows()?;
        rows.sort_by_key(|row| row.device.index);
        Ok(rows.into_iter().map(|row| row.sample).collect())
    }

    fn processes(&self) -> Result<Vec<DeviceProcess>, GpuError> {
        Ok(smi_text::processes(&self.query("compute-apps", APPS)?))
    }
}

fn broken(message: String) -> GpuError {
    GpuError::Broken(message)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use tempfile::TempDir;

    use super::*;

    /// Script in place of `nvidia-smi`. A shell writes the file: another test's child process could inherit a file
    /// handle opened here for writing, and the script could not be executed.
    fn fake(body: &str) -> (TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("nvidia-smi");
        let write = r#"printf '#!/bin/sh\n%s\n' "$1" > "$2" && chmod 755 "$2""#;
        let args = ["-c", write, "sh", body, file.to_str().unwrap()];
        assert!(Command::new("/bin/sh").args(args).status().unwrap().success());
        (folder, file)
    }

    #[test]
    fn an_old_program_without_newer_fields_reports_the_rest() {
        let (_folder, program) = fake(
            r#"case "$1" in
            *query-gpu=index*) echo '0, GPU-a, Tesla K80, 11441, 3, 11438, 00000000:00:1E.0, 149, 450.1, 0, 30, 27, 324, 324';;
            *query-gpu*) echo 'Field "mig.mode.current" is not a valid field to query.'; exit 2;;
            *compute-apps*) echo 'GPU-a, 77, 3';;
            *) echo '| Driver Version: 450.1   CUDA Version: 11.0 |';;
            esac"#,
        );
        let source = SmiSource::with_program(&program).unwrap();
        let host = source.host();
        assert_eq!((host.driver.as_deref(), host.cuda.as_deref()), (Some("450.1"), Some("11.0")));
        let devices = source.devices().unwrap();
        assert_eq!((devices.len(), &*devices[0].name), (1, "Tesla K80"));
        assert_eq!(source.sample().unwrap()[0].ecc_errors, None);
        assert_eq!(source.processes().unwrap()[0].pid, 77);
    }

    #[test]
    fn a_failing_program_is_broken_with_the_drivers_message() {
        let message = "Failed to initialize NVML: Driver/library version mismatch";
        let (_folder, program) = fake(&format!("echo '{message}'; exit 18"));
        let error = SmiSource::with_program(&program).unwrap_err();
        assert!(matches!(&error, GpuError::Broken(text) if text == message), "{error}");
    }
}
