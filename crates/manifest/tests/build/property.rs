//! Arbitrary flags give valid objects that parse from their text, or an error that names the flag.

use std::sync::LazyLock;

use agentaflow_manifest::build::yaml;
use agentaflow_manifest::catalogue::Catalogue;
use clap::{CommandFactory, Parser};
use proptest::prelude::*;
use serde_json::Value;

use crate::{Line, check};

/// Values of flags: valid ones, to reach combinations, and arbitrary ones.
fn value(flag: &str) -> BoxedStrategy<String> {
    let good: &'static [&'static str] = match flag {
        "gpu" => &["v100", "a100", "a100-80", "NVIDIA A100", "t4", "h200", "a30"],
        "cloud" => &["generic", "eks", "gke", "aks", "karpenter", "nvidia"],
        "memory" | "memory-request" | "shm" | "size" | "cache-size" => {
            &["16Gi", "1.5Gi", "512Mi", "7G", "none", "2Ti"]
        }
        "cpu" | "cpu-request" => &["8", "8000m", "0.5", "64"],
        "timeout" | "ttl" | "load-time" | "liveness" | "idle" | "duration" | "scale-down-delay"
        | "startup-delay" => &["24h", "90", "none", "10m"],
        "up" | "down" => &["0 9 * * 1-5", "*/5 * * * *"],
        "mig" => &["1g.5gb", "3g.71gb", "nvidia.com/mig-2g.10gb", "1g.10gb.me"],
        "slices" => &["3g.20gb=2", "1g.5gb=7", "1g.18gb=3"],
        "mount" => &["data:/data", "v=claim:/path", "shm:/x"],
        "env" | "label" | "selector" | "annotation" | "metric-label" => {
            &["A=b", "app=x", "a.b/c=d", "A=1"]
        }
        "prefer" => &["a100=100", "v100=50", "a30=20", "l4=0"],
        "instance-type" => &["p4d.24xlarge", "g4dn.xlarge", "own.type"],
        "access-mode" => &["ReadWriteOnce", "rwx"],
        "restart-policy" => &["OnFailure", "Never"],
        "strategy" => &["best_fit", "pack"],
        "prometheus" => &["http://p:9090"],
        "taint" => &["any", "none", "true"],
        "image" => &["train:v1", "registry:5000/x/y@sha256:0123456789abcdef0123456789abcdef"],
        "cache-path" | "health" => &["/health", "/root/.cache"],
        "time-zone" => &["Europe/Berlin", "Etc/UTC"],
        _ => &["train", "1", "4", "8", "ml_task_123"],
    };
    prop_oneof![
        30 => prop::sample::select(good).prop_map(str::to_owned),
        1 => "[a-z0-9=:/._-]{0,12}",
        1 => "\\PC{0,70}",
        1 => any::<String>(),
    ]
    .boxed()
}

pub(crate) static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(|| Catalogue::built_in().unwrap());
static COMMAND: LazyLock<clap::Command> = LazyLock::new(Line::command);

/// Flags of a command: name, and true if it takes a value.
fn flags(kind: &str) -> Vec<(String, bool)> {
    let kind = COMMAND.find_subcommand(kind).unwrap();
    let flag =
        |arg: &clap::Arg| Some((arg.get_long()?.to_owned(), arg.get_action().takes_values()));
    kind.get_arguments().filter_map(flag).filter(|(name, _)| name != "help").collect()
}

pub(crate) fn line() -> impl Strategy<Value = Vec<String>> {
    let kinds: Vec<_> =
        COMMAND.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    prop::sample::select(kinds).prop_flat_map(|kind| {
        let choices = flags(&kind).into_iter().map(|(name, takes)| {
            // Required flags are usually present.
            let needed =
                ["name", "image", "target", "gpu", "slices", "cloud", "cluster", "location"];
            let likely = if needed.contains(&name.as_str()) { 0.9 } else { 0.15 };
            let word = name.clone();
            let given = value(&name).prop_map(move |value| {
                if takes { format!("--{word}={value}") } else { format!("--{word}") }
            });
            prop::option::weighted(likely, given)
        });
        let choices: Vec<_> = choices.collect();
        choices.prop_map(move |given| {
            let start = ["generate".to_owned(), kind.clone()];
            start.into_iter().chain(given.into_iter().flatten()).collect()
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_flags_give_valid_objects_or_name_the_flag(words in line()) {
        // clap rejects invalid numbers and names the flag.
        let Ok(Line { recipe }) = Line::try_parse_from(&words) else { return Ok(()) };
        match recipe.make(&CATALOGUE) {
            Ok(made) => {
                for object in &made.objects {
                    prop_assert_eq!(check::problems(object), Vec::<String>::new(), "{:?}", words);
                }
                let text = yaml(&made.objects).unwrap();
                let read: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
                prop_assert_eq!(read, made.objects, "{}", text);
            }
            Err(error) => {
                let output = error.to_string();
                let flag = output.split_once(": ").and_then(|(flag, _)| flag.strip_prefix("--"));
                let known = flags(&words[1]);
                prop_assert!(known.iter().any(|(name, _)| Some(name.as_str()) == flag), "{}: {:?}", output, words);
            }
        }
    }
}

#[test]
fn most_command_lines_of_the_property_make_something() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let mut made = 0;
    for _ in 0..500 {
        let words = line().new_tree(&mut runner).unwrap().current();
        let recipe = Line::try_parse_from(&words).map(|line| line.recipe);
        made += usize::from(recipe.is_ok_and(|recipe| recipe.make(&CATALOGUE).is_ok()));
    }
    assert!(made > 100, "{made} of 500");
}
