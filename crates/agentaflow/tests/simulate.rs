//! `agentaflow simulate` with the real binary and small inputs.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const NODES: &str =
    "sn,cpu_milli,memory_mib,gpu,model\nn1,64000,262144,2,P100\nn2,64000,262144,4,T4\n";

const PODS: &str = "\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
p1,4000,8192,1,500,,LS,Running,0,1000,0
p2,4000,8192,1,1000,T4,LS,Running,10,900,10
p3,4000,8192,2,1000,P100,LS,Running,20,800,20
p4,4000,8192,1,250,,LS,Running,30,700,30
p5,4000,8192,4,1000,,LS,Running,40,600,40
";

const JOBS: &str = "job_id,submission_time,duration,num_gpu\na,0,600,4\nb,60,1200,8\nc,120,300,1\n";

/// Creates a directory with the inputs.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let files = [
        ("nodes.csv", NODES),
        ("pods.csv", PODS),
        ("jobs.csv", JOBS),
        ("arrivals.txt", "p5\np1\np1\np3\n"),
        ("ranks.csv", "n1,1\nn2,0\n"),
    ];
    for (file, text) in files {
        std::fs::write(folder.join(file), text).unwrap();
    }
    folder
}

fn agentaflow(folder: &Path, line: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_agentaflow"))
        .args(line.split_whitespace())
        .env("COLUMNS", "80")
        .current_dir(folder)
        .output()
        .unwrap()
}

/// Stdout of a successful command, which must not write to stderr without a terminal.
fn output(folder: &Path, line: &str) -> String {
    let output = agentaflow(folder, line);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), errors.as_str()), (Some(0), ""), "{line}");
    String::from_utf8(output.stdout).unwrap()
}

/// Exit code and stderr of a failing command.
fn failure(folder: &Path, line: &str) -> (i32, String) {
    let output = agentaflow(folder, line);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "", "{line}");
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

fn json(folder: &Path, line: &str) -> Vec<serde_json::Value> {
    serde_json::from_str(&output(folder, line)).unwrap()
}

fn without_real_time(mut outcomes: Vec<serde_json::Value>) -> Vec<serde_json::Value> {
    for outcome in &mut outcomes {
        outcome["seconds"] = 0.into();
    }
    outcomes
}

#[test]
fn without_arguments_it_prints_help() {
    let folder = folder("help");
    assert!(output(&folder, "").contains("simulate"));
    assert_eq!(output(&folder, "--version"), format!("agentaflow {}\n", env!("CARGO_PKG_VERSION")));
    let help = output(&folder, "simulate --help");
    for part in ["Examples:", "--strategy", "least_fragmented", "--html", "Exit codes"] {
        assert!(help.contains(part), "{part}");
    }
}

#[test]
fn the_demo_shows_numbers_curves_and_an_explanation() {
    let text = output(&folder("demo"), "simulate --demo --strategy best_fit,least_fragmented");
    for part in [
        "12 nodes",
        "virtual hours",
        "STRATEGY",
        "least_fragmented",
        "█",
        "nodes fit",
        "--html report.html",
        "docs/simulator.md",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(!text.contains('\u{1b}'), "no colours where there is no terminal");
}

#[test]
fn the_experiment_prints_stable_json() {
    let folder = folder("experiment");
    let base = "simulate --experiment fgd --nodes nodes.csv --pods pods.csv --strategy fgd,bestfit,least_fragmented -o json";
    for arrivals in ["", " --arrivals arrivals.txt --ranks ranks.csv", " --seed 42 --inflate 1.3"] {
        let outcomes = json(&folder, &format!("{base}{arrivals}"));
        let names: Vec<_> =
            outcomes.iter().map(|outcome| outcome["strategy"].as_str().unwrap()).collect();
        assert_eq!(names, ["fgd", "bestfit", "least_fragmented"]);
        for outcome in &outcomes {
            assert_eq!(outcome["capacity_milli"], 6000);
            for field in ["allocated_milli", "dropped", "decisions"] {
                assert!(outcome[field].is_u64(), "{field}: {outcome}");
            }
            assert!(outcome["seconds"].is_f64() && outcome.get("curve").is_none(), "{outcome}");
        }
    }
    let outcomes = json(&folder, &format!("{base} --arrivals arrivals.txt --ranks ranks.csv"));
    assert_eq!(
        (&outcomes[0]["allocated_milli"], &outcomes[0]["dropped"]),
        (&5000.into(), &1.into())
    );
}

#[test]
fn a_trace_format_is_detected_by_its_header() {
    let folder = folder("trace");
    let text = output(&folder, "simulate --trace jobs.csv --cluster 2x4:V100 --strategy best_fit");
    assert!(text.starts_with("2 nodes with 8 GPUs (V100): 3 jobs"), "{text}");
    let outcomes = json(
        &folder,
        "simulate --trace pods.csv --nodes nodes.csv --strategy pack -o json --curve",
    );
    assert_eq!(outcomes[0]["jobs"], 5);
    assert!(outcomes[0]["curve"].as_array().is_some_and(|curve| curve.len() > 1));
}

#[test]
fn csv_has_one_line_for_each_run_and_orders_are_compared_too() {
    let text = output(
        &folder("csv"),
        "simulate --trace jobs.csv --cluster 2x4 --strategy pack,best_fit --order fifo,shortest -o csv",
    );
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 5);
    assert!(lines[0].starts_with("strategy,order,jobs,finished,dropped,"), "{}", lines[0]);
    assert!(lines[4].starts_with("best_fit,shortest,3,3,0,"), "{}", lines[4]);
    let fields = |line: &str| line.split(',').count();
    assert!(lines.iter().all(|line| fields(line) == fields(lines[0])));
}

#[test]
fn a_table_fits_eighty_columns_and_a_wide_one_has_everything() {
    let folder = folder("wide");
    let line = "simulate --trace jobs.csv --cluster 2x4 --strategy all --order fifo,least_service";
    let table = output(&folder, line);
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    let wide = output(&folder, &format!("{line} -o wide"));
    for column in ["WAIT P50", "DONE P99", "MAKESPAN", "DROPPED", "PREEMPTED", "DECISIONS/S"] {
        assert!(wide.contains(column), "{wide}");
    }
    assert!(table.contains("-o wide") && !wide.contains("-o wide"), "{wide}");
}

#[test]
fn the_same_seed_gives_the_same_outcome() {
    let folder = folder("seed");
    let run = |seed: u32| {
        let line = format!(
            "simulate --synthetic --cluster 2x4 --hours 3 --load 1.1 --seed {seed} --check --curve -o json"
        );
        without_real_time(json(&folder, &line))
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}

#[test]
fn the_page_needs_nothing_from_elsewhere() {
    let folder = folder("html");
    output(
        &folder,
        "simulate --trace jobs.csv --cluster 2x4 --strategy best_fit,pack --html report.html -o csv",
    );
    let page = std::fs::read_to_string(folder.join("report.html")).unwrap();
    for reference in ["http:", "https:", "src=", "href=", "url(", "@import", "<link"] {
        assert!(!page.contains(reference), "{reference}");
    }
    assert!(page.contains("best_fit") && page.contains("prefers-color-scheme: dark"));
}

#[test]
fn every_example_scenario_runs_under_every_strategy() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/scenarios");
    let mut seen = 0;
    for entry in std::fs::read_dir(&examples).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let outcomes = json(&examples, &format!("simulate {name} --strategy all -o json"));
        for outcome in &outcomes {
            assert_eq!(
                (&outcome["finished"], &outcome["dropped"]),
                (&outcome["jobs"], &0.into()),
                "{name}: {outcome}"
            );
        }
        seen += 1;
    }
    assert!(seen >= 4);
}

#[test]
fn the_scenario_of_the_documentation_runs() {
    let folder = folder("docs");
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/simulator.md");
    let text = std::fs::read_to_string(docs).unwrap();
    let scenario =
        text.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    std::fs::write(folder.join("docs.yaml"), scenario).unwrap();
    let outcomes = json(&folder, "simulate docs.yaml -o json");
    assert_eq!((&outcomes[0]["jobs"], &outcomes[0]["finished"]), (&50.into(), &50.into()));
}

#[test]
fn a_misspelt_strategy_is_answered_with_the_right_one() {
    let (code, message) =
        failure(&folder("strategy"), "simulate --demo --strategy least_fragmentd");
    assert_eq!(code, 2);
    assert!(message.contains("'least_fragmented'"), "{message}");
}

#[test]
fn a_missing_or_invalid_file_is_named() {
    let folder = folder("missing");
    let (code, message) = failure(&folder, "simulate nowhere.yaml");
    assert_eq!(code, 3);
    assert!(message.contains("`nowhere.yaml`"), "{message}");
    std::fs::write(folder.join("bad.yaml"), "nodes:\n  - name: a\n    gpu: 8\n").unwrap();
    let (code, message) = failure(&folder, "simulate bad.yaml");
    assert_eq!(code, 2);
    assert!(
        message.contains("bad.yaml") && message.contains("line 3") && message.contains("gpu"),
        "{message}"
    );
    let (code, message) = failure(&folder, "simulate --demo --html no/such/folder/x.html");
    assert_eq!(code, 1);
    assert!(message.contains("`no/such/folder`"), "{message}");
    for line in ["simulate nowhere.yaml", "simulate bad.yaml", "simulate ."] {
        let (_, message) = failure(&folder, line);
        assert!(!message.contains("os error") && !message.contains("Os {"), "{message}");
    }
}

#[test]
fn options_that_contradict_each_other_are_refused_with_advice() {
    let folder = folder("conflicts");
    let table = [
        ("simulate", "missing input"),
        ("simulate x.yaml --demo", "cannot be combined with --demo"),
        (
            "simulate --demo --pods pods.csv",
            "--pods requires --experiment, and cannot be combined with --demo",
        ),
        ("simulate --demo --seed 3", "--seed requires --synthetic or --experiment"),
        ("simulate --experiment fgd --pods pods.csv", "requires --nodes NODES.csv"),
        ("simulate --experiment fgd --nodes nodes.csv", "requires --pods PODS.csv"),
        (
            "simulate --experiment fgd --nodes nodes.csv --pods pods.csv --arrivals a.txt --seed 1",
            "--arrivals cannot be combined with --seed",
        ),
        (
            "simulate --experiment fgd --nodes nodes.csv --pods pods.csv --inflate 2",
            "requires --seed",
        ),
        (
            "simulate --experiment fgd --nodes nodes.csv --pods pods.csv --order fifo",
            "--order requires",
        ),
        (
            "simulate --trace jobs.csv --nodes nodes.csv --cluster 2x2",
            "--nodes cannot be combined with --cluster",
        ),
        ("simulate --trace nodes.csv", "use --nodes"),
        ("simulate --trace pods.csv", "requires --nodes NODES.csv"),
        ("simulate jobs.csv", "use --trace jobs.csv"),
        ("simulate --synthetic --cluster 8by8", "NODESxGPUS"),
        ("simulate --synthetic --load -1", "the load is -1"),
        ("simulate --synthetic --seed -1", "invalid value '-1' for '--seed"),
        ("simulate --synthetic --load 0", "the load is 0"),
        ("simulate --demo --curve", "requires -o json"),
        ("simulate --demo --until 0", "--until 12"),
    ];
    for (line, advice) in table {
        let (code, message) = failure(&folder, line);
        assert_eq!(code, 2, "{line}: {message}");
        assert!(message.contains(advice), "{line}: {message}");
    }
}

#[test]
fn cut_off_and_unplaceable_jobs_are_noted_below_the_table() {
    let folder = folder("notes");
    let scenario = "
nodes: [{ name: n, gpus: 1 }]
jobs:
  - { name: huge, count: 3, gpus: 8, duration: 1s }
  - { name: long, count: 3, every: 1h, gpus: 1, duration: 90m }
";
    std::fs::write(folder.join("notes.yaml"), scenario).unwrap();
    let all = output(&folder, "simulate notes.yaml");
    assert!(all.contains("`huge-0` and 2 more were never placed: 0/1 nodes fit even"), "{all}");
    assert!(!all.contains("Cut off"), "{all}");
    let cut = output(&folder, "simulate notes.yaml --until 1.2");
    let line = "Cut off by --until: 1 running, 1 pending, 1 not yet arrived.";
    assert!(cut.contains(line), "{cut}");
}

#[test]
fn an_arrival_that_is_no_pod_is_named_with_its_line() {
    let folder = folder("stranger");
    std::fs::write(folder.join("arrivals.txt"), "p1\n\nstranger\n").unwrap();
    let line =
        "simulate --experiment fgd --nodes nodes.csv --pods pods.csv --arrivals arrivals.txt";
    let (code, message) = failure(&folder, line);
    assert_eq!(code, 2);
    assert!(message.contains("`arrivals.txt`, line 3, column `name`: `stranger`"), "{message}");
}

#[test]
fn a_quoted_header_is_recognised() {
    let folder = folder("quoted");
    let quoted = JOBS.replace("job_id,submission_time", "\"job_id\",\"submission_time\"");
    std::fs::write(folder.join("quoted.csv"), quoted).unwrap();
    let outcomes = json(&folder, "simulate --trace quoted.csv -s best_fit -o json");
    assert_eq!(outcomes[0]["finished"], 3);
}

#[cfg(target_os = "linux")]
#[test]
fn help_that_cannot_be_printed_is_a_failure() {
    for line in ["simulate --help", "--version", ""] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_agentaflow"))
            .args(line.split_whitespace())
            .stdout(full)
            .output()
            .unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{line}: {message}");
        assert!(message.contains("cannot write to stdout"), "{line}: {message}");
    }
}
