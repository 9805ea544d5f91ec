//! Temporary files of tasks.

use std::fs;
use std::path::Path;

use agentaflow_linux::process::Mounts;

use super::super::wire::{ProcessSpec, TemporaryFiles};
use super::{TestDir, run};
use crate::skip::skip;

/// Clients of MPS share memory with the service.
#[tokio::test]
async fn a_client_of_mps_sees_the_pipes_and_the_shared_memory_of_the_host() {
    if let Err(error) = Mounts::probe() {
        skip!("needs the right to create mount namespaces: {error}");
    }
    let test = TestDir::new();
    let agent = test.agent();
    let pipes = tempfile::tempdir_in("/tmp").unwrap();
    fs::write(pipes.path().join("control"), "of the service\n").unwrap();
    let shared = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
    let files = [pipes.path().join("control"), shared.path().to_owned()];
    let script = format!("cat {}; ls {}", files[0].display(), files[1].display());
    for (job, mps) in [(1, true), (2, false)] {
        let spec = test.spec(job, &script);
        let folder = test.task(job).join("tmp");
        fs::create_dir(&folder).unwrap();
        let mps_pipes = mps.then(|| pipes.path().to_owned());
        let files = TemporaryFiles { folder, shared_memory: 1, mps_pipes };
        let exit = run(&agent, ProcessSpec { temporary_files: Some(files), ..spec }).await;
        assert_eq!(exit.code == Some(0), mps, "{}", test.output(job));
    }
    let expected = format!("of the service\n{}\n", files[1].display());
    assert_eq!(test.output(1), expected);
    assert!(!test.output(2).contains("of the service"));
    assert!(Path::new(&files[0]).exists());
}
