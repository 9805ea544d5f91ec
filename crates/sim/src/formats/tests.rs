use std::path::PathBuf;

use agentaflow_engine::{GpuRequest, MiB, MilliCpu, MilliGpu, Span, Time};

use super::*;

/// A temporary file, deleted on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new(text: &str) -> Self {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("agentaflow-sim-{}-{number}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn with<T>(text: &str, read: impl Fn(&Path) -> Result<T, SimError>) -> Result<T, SimError> {
    read(&Scratch::new(text).0)
}

/// The error without the path, which differs between runs.
fn error<T: std::fmt::Debug>(text: &str, read: impl Fn(&Path) -> Result<T, SimError>) -> String {
    let scratch = Scratch::new(text);
    let message = read(&scratch.0).unwrap_err().to_string();
    message.replace(&scratch.0.display().to_string(), "FILE")
}

#[test]
fn a_node_list_is_read_with_crlf_and_blank_lines() {
    let text =
        "sn,cpu_milli,memory_mib,gpu,model\r\n\r\na,64000,262144,2,P100\r\nb,32000,1024,0,\r\n";
    let nodes = with(text, read_alibaba_nodes).unwrap();
    assert_eq!(nodes.len(), 2);
    let first = nodes[0].node();
    assert_eq!((first.cpu, first.memory, first.gpus.len()), (MilliCpu(64_000), MiB(262_144), 2));
    assert_eq!(first.gpus[1].model.as_str(), "P100");
    assert!(nodes[1].node().gpus.is_empty());
}

#[test]
fn a_pod_list_is_read_without_its_optional_columns() {
    let text = "\u{feff}name,num_gpu,gpu_milli,cpu_milli,memory_mib\nx,1,460,6000,12288\ny,0,0,1000,1\nz,8,1000,1,1\nw,1,2000,1,1\n";
    let pods = with(text, read_alibaba_pods).unwrap();
    assert_eq!(pods[0].gpu_request(), GpuRequest::Fraction(MilliGpu::new(460).unwrap()));
    assert_eq!(pods[1].gpu_request(), GpuRequest::None);
    assert_eq!(pods[2].gpu_request(), GpuRequest::Whole(8));
    assert_eq!((pods[3].milli, pods[3].gpu_request()), (1000, GpuRequest::Whole(1)));
    assert_eq!((pods[0].created, pods[0].lifetime), (None, None));
}

#[test]
fn a_pod_runs_from_being_scheduled_to_being_deleted() {
    let text = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time,scheduled_time\n\
                a,1,1,1,1000,V100M16|V100M32,10,100,40\nb,1,1,1,1000,,10,100,\n";
    let pods = with(text, read_alibaba_pods).unwrap();
    assert_eq!((pods[0].created, pods[0].lifetime), (Some(Time(10_000)), Some(Span::seconds(60))));
    assert_eq!(pods[1].lifetime, Some(Span::seconds(90)));
    let models: Vec<_> = pods[0].models().iter().map(ToString::to_string).collect();
    assert_eq!(models, ["V100M16", "V100M32"]);
}

#[test]
fn a_trace_model_matches_exactly() {
    let node = TraceNode {
        name: "n".into(),
        cpu: MilliCpu(1),
        memory: MiB(1),
        gpus: 1,
        model: "A100-80G".into(),
    };
    let model = node.node().gpus[0].model.clone();
    let spec = |spec: &str| {
        let text =
            format!("name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\na,1,1,1,1000,{spec}\n");
        with(&text, read_alibaba_pods).unwrap()[0].models()
    };
    assert!(!model.serves(&spec("A100")[0]));
    assert!(model.serves(&spec("T4|A100-80G")[1]));
}

#[test]
fn elasticflow_counts_seconds_and_philly_milliseconds() {
    let jobs =
        with("job_id,submission_time,duration,num_gpu\nx,5810,288476,16\n", read_elasticflow)
            .unwrap();
    assert_eq!((jobs[0].at, jobs[0].duration), (Time(5_810_000), Span(288_476_000)));
    let text = "job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration\r\n0,1,7,5,dqn,1,2868294000\r\n";
    let jobs = with(text, read_philly).unwrap();
    assert_eq!((jobs[0].at, jobs[0].duration), (Time(7), Span(2_868_294_000)));
}

#[test]
fn a_job_larger_than_a_node_becomes_a_gang() {
    for (gpus, per_node, tasks, each) in
        [(4, 8, 1, 4), (8, 8, 1, 8), (64, 8, 8, 8), (12, 8, 2, 6), (13, 8, 13, 1)]
    {
        let job = TraceJob { name: "j".into(), at: Time(0), duration: Span(1), gpus };
        let workload = job.job(per_node).workload;
        assert_eq!(
            (workload.tasks, workload.request.gpu),
            (tasks, GpuRequest::Whole(each)),
            "{gpus} on {per_node}"
        );
    }
}

#[test]
fn arrivals_and_ranks_are_read() {
    assert_eq!(with("a\r\n\r\nb\na\n", read_arrivals).unwrap(), ["a", "b", "a"]);
    let ranks = with("name,rank\na, 3\nb,0\n", read_ranks).unwrap();
    assert_eq!(ranks.into_iter().collect::<Vec<_>>(), [("a".to_owned(), 3), ("b".to_owned(), 0)]);
}

#[test]
fn every_format_is_detected_by_its_first_line() {
    let table = [
        ("sn,cpu_milli,memory_mib,gpu,model", Format::AlibabaNodes),
        ("name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec", Format::AlibabaPods),
        ("job_id,submission_time,duration,num_gpu", Format::Elasticflow),
        ("job_id,num_gpu,submit_time,iterations", Format::Philly),
        ("\n\npod-1\npod-2", Format::Arrivals),
        ("node-1,17", Format::Ranks),
        ("nodes:\n- name: a", Format::Scenario),
        ("{\"nodes\": []}", Format::Scenario),
    ];
    for (text, format) in table {
        assert_eq!(with(text, detect).unwrap(), format, "{text}");
    }
    assert!(
        error("a,b,c\n", detect)
            .starts_with("`FILE` has an unknown format: it starts with `a,b,c`")
    );
    assert_eq!(error(" \n", detect), "`FILE` contains no text; check the path");
}

#[test]
fn an_invalid_value_is_rejected_with_line_and_column() {
    let pod = |row: &str| {
        format!(
            "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time\nok,1,1,0,0,0,1\n{row}\n"
        )
    };
    let table = [
        ("a,-1,1,0,0,0,1", "`FILE`, line 3, column `cpu_milli`: `-1` must not be negative"),
        (
            "a,1,x,0,0,0,1",
            "`FILE`, line 3, column `memory_mib`: `x` is not a number; use 0 to 70368744177664",
        ),
        ("a,1,1,65,1000,0,1", "`FILE`, line 3, column `num_gpu`: `65` exceeds the limit of 64"),
        ("a,1,1,1.5,1000,0,1", "`FILE`, line 3, column `num_gpu`: `1.5` is not a whole number"),
        (
            "a,1,1,1,0,0,1",
            "`FILE`, line 3, column `gpu_milli`: `0` is not a GPU share; use 1 to 1000, or set `num_gpu` to 0",
        ),
        (
            "a,1,NaN,0,0,0,1",
            "`FILE`, line 3, column `memory_mib`: `NaN` is not a number; use 0 to 70368744177664",
        ),
        ("a,1", "`FILE`, line 3, column `num_gpu`: `` is empty; use 0 to 64"),
        (
            "ok,1,1,0,0,0,1",
            "`FILE`, line 3, column `name`: `ok` is already on line 2; names must be unique",
        ),
        (
            "a,1,1,0,0,9,3",
            "`FILE`, line 3, column `deletion_time`: `3` is before the start of the pod at 9",
        ),
    ];
    for (row, message) in table {
        assert_eq!(error(&pod(row), read_alibaba_pods), message, "{row}");
    }
}

#[test]
fn invalid_files_are_rejected() {
    let missing = "`FILE`, line 1: column `gpu_milli` is missing; a pod list file starts with the line `name,cpu_milli,";
    assert!(
        error("name,cpu_milli,memory_mib,num_gpu\na,1,1,1\n", read_alibaba_pods)
            .starts_with(missing)
    );
    let none = "`FILE` contains no nodes; check the path";
    assert_eq!(error("sn,cpu_milli,memory_mib,gpu,model\n", read_alibaba_nodes), none);
    let rank = "`FILE`, line 2, column `rank`: `-3` is not a rank; write `name,rank` on each line";
    assert_eq!(error("a,1\nb,-3\n", read_ranks), rank);
    assert_eq!(
        error("a,1\na,2\n", read_ranks),
        "`FILE`, line 2, column `name`: `a` already has a rank; names must be unique"
    );
    let gpus = "`FILE`, line 2, column `num_gpu`: `0` must be at least 1";
    assert_eq!(error("job_id,submission_time,duration,num_gpu\nx,1,1,0\n", read_elasticflow), gpus);
    assert!(
        read_arrivals(Path::new("no/such/file"))
            .unwrap_err()
            .to_string()
            .starts_with("cannot read `no/such/file`")
    );
}

#[test]
fn a_pod_list_without_nodes_or_times_cannot_be_replayed() {
    let pods = Scratch::new("name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1,1,1,1000\n");
    let nodes = Scratch::new("sn,cpu_milli,memory_mib,gpu,model\nn,1,1,1,T4\n");
    let error = |nodes| read_load(&pods.0, nodes, &UniformCluster::default()).unwrap_err();
    assert!(matches!(error(None), SimError::Parameter { name: "the node list", .. }));
    assert!(matches!(error(Some(nodes.0.as_path())), SimError::UnknownFormat { .. }));
    let zero = UniformCluster { nodes: 0, ..UniformCluster::default() };
    assert_eq!(
        zero.machines().unwrap_err().to_string(),
        "the number of nodes is 0: give 1 to 200000"
    );
}
