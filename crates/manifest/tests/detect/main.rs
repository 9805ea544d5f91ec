//! Tables of texts and files with their detection.

mod numbers;
mod size;
mod verdict;

use agentaflow_manifest::detect::{Detection, File, WorkloadType};

fn check(text: &str) -> Detection {
    let detection = Detection::of_text(text);
    assert!((0.0..=1.0).contains(&detection.confidence), "{text}: {}", detection.confidence);
    assert_eq!(detection.is_ml_workload, detection.sizing.is_some(), "{text}");
    assert_eq!(detection.is_ml_workload, detection.workload_type != WorkloadType::None, "{text}");
    assert!(!detection.reasoning.is_empty(), "{text}");
    detection
}

fn files(files: &[(&str, &str)]) -> Detection {
    let files: Vec<_> = files.iter().map(|(path, content)| File::new(*path, *content)).collect();
    Detection::of_files(&files)
}
