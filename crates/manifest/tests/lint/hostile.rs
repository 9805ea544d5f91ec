//! Arbitrary input does not panic, and a fix never changes other values.

use agentaflow_manifest::lint::{Options, RULES, check_values, fix};
use agentaflow_manifest::yaml::{Limits, read};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};
use serde_json::{Map, Value, json};

/// Words of rules, so that arbitrary values reach them.
const WORDS: [&str; 44] = [
    "apiVersion",
    "kind",
    "metadata",
    "name",
    "spec",
    "template",
    "podTemplate",
    "jobTemplate",
    "containers",
    "resources",
    "limits",
    "requests",
    "nvidia.com/gpu",
    "nvidia.com/mig-1g.5gb",
    "memory",
    "cpu",
    "tolerations",
    "key",
    "operator",
    "value",
    "effect",
    "Exists",
    "nodeSelector",
    "accelerator",
    "affinity",
    "nodeAffinity",
    "env",
    "image",
    "command",
    "args",
    "volumes",
    "volumeMounts",
    "mountPath",
    "/dev/shm",
    "emptyDir",
    "schedule",
    "0 9 * * 1-5",
    "restartPolicy",
    "livenessProbe",
    "replicas",
    "selector",
    "matchLabels",
    "data",
    "node.kubernetes.io/instance-type",
];

fn value() -> impl Strategy<Value = Value> {
    let word = prop::sample::select(WORDS.to_vec()).prop_map(str::to_owned);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        word.clone().prop_map(Value::from),
        "\\PC{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 60, 6, move |inner| {
        let entry = (prop_oneof![word.clone(), "\\PC{0,4}"], inner.clone());
        prop_oneof![
            prop::collection::vec(inner, 0..5).prop_map(Value::Array),
            prop::collection::vec(entry, 0..6)
                .prop_map(|entries| Value::Object(entries.into_iter().collect())),
        ]
    })
}

fn object() -> impl Strategy<Value = Value> {
    let kinds = [
        "Pod",
        "Job",
        "CronJob",
        "Deployment",
        "GPUWorkload",
        "ConfigMap",
        "List",
        "PersistentVolumeClaim",
    ];
    (prop::sample::select(kinds.to_vec()), value(), value()).prop_map(|(kind, metadata, spec)| {
        json!({"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": spec})
    })
}

/// An example with one replaced part.
fn disturbed() -> impl Strategy<Value = Value> {
    let examples: Vec<Value> = RULES
        .iter()
        .flat_map(|rule| read(rule.bad.as_bytes(), &Limits::default()).unwrap())
        .map(|document| document.value)
        .collect();
    (prop::sample::select(examples), any::<prop::sample::Index>(), value()).prop_map(
        |(mut example, at, new)| {
            let mut pointers = Vec::new();
            collect(&example, String::new(), &mut pointers);
            let pointer = at.get(&pointers).clone();
            if let Some(place) = example.pointer_mut(&pointer) {
                *place = new;
            }
            example
        },
    )
}

fn collect(value: &Value, pointer: String, all: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                collect(
                    value,
                    format!("{pointer}/{}", key.replace('~', "~0").replace('/', "~1")),
                    all,
                );
            }
        }
        Value::Array(items) => {
            for (number, value) in items.iter().enumerate() {
                collect(value, format!("{pointer}/{number}"), all);
            }
        }
        _ => {}
    }
    all.push(pointer);
}

/// Deterministic cases, unless `PROPTEST_RNG_SEED` and `PROPTEST_CASES` are set.
fn cases() -> Config {
    let mut config = Config { failure_persistence: None, ..Config::default() };
    if matches!(config.rng_seed, RngSeed::Random) {
        config.rng_seed = RngSeed::Fixed(42);
    }
    config
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn arbitrary_objects_do_not_panic(objects in prop::collection::vec(object(), 1..4)) {
        check_values(objects, &Options::default());
    }

    #[test]
    fn a_disturbed_manifest_is_checked_and_its_fix_is_readable(value in disturbed()) {
        check_values(vec![value.clone()], &Options::default());
        let text = value.to_string();
        let fixed = fix(&[("a".to_owned(), text)], &Options::default());
        prop_assert!(serde_json::from_str::<Value>(&fixed.texts[0]).is_ok(), "{}", fixed.texts[0]);
    }

    #[test]
    fn a_second_fix_does_not_change_a_fixed_yaml_manifest(value in disturbed()) {
        let Ok(text) = serde_saphyr::to_string(&value) else { return Ok(()) };
        let once = fix(&[("a".to_owned(), text.clone())], &Options::default()).texts.remove(0);
        // Readable texts stay readable.
        let readable = |text: &str| read(text.as_bytes(), &Limits::default()).is_ok();
        prop_assert!(!readable(&text) || readable(&once), "{text}\n{once}");
        let twice = fix(&[("a".to_owned(), once.clone())], &Options::default()).texts.remove(0);
        prop_assert_eq!(&twice, &once, "{}", text);
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = read(&bytes, &Limits::default());
    }

    #[test]
    fn arbitrary_text_does_not_panic(text in "[\\[\\]{}:,&*!|>'\"%@`a-c0-9 \\n\\t#~<.-]{0,120}") {
        let _ = read(text.as_bytes(), &Limits::default());
    }

    #[test]
    fn json_means_the_same_as_yaml(value in value()) {
        let map = Map::from_iter([("a".to_owned(), value)]);
        let text = Value::Object(map.clone()).to_string();
        let documents = read(text.as_bytes(), &Limits::default());
        // Keys in JSON objects may be long, which YAML does not allow; none here are.
        let documents = documents.map_err(|error| TestCaseError::fail(format!("{error}: {text}")))?;
        prop_assert_eq!(&documents[0].value, &Value::Object(map));
    }
}
