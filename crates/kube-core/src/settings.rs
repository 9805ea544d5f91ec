//! Settings of the scheduler that apply without a restart: the keys of the `ConfigMap` [`names::SCHEDULER_CONFIG`].
//!
//! [`names::SCHEDULER_CONFIG`]: crate::names::SCHEDULER_CONFIG

use agentaflow_engine::{Ageing, Percent, Policy, Span, Strategy};
use std::collections::BTreeMap;

use crate::translate::{duration, short};

/// Most points per minute: a pod without a class passes every class in less than two days.
const MAX_POINTS: u32 = 1_000_000;
const WEEK: Span = Span::minutes(7 * 24 * 60);
const YEAR: Span = Span::minutes(365 * 24 * 60);

/// A key that is unknown, or whose value is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: `{value}` is refused: {expected}")]
pub struct InvalidSetting {
    pub key: String,
    pub value: String,
    pub expected: String,
}

/// One key of the `ConfigMap`.
struct Setting {
    key: &'static str,
    expected: fn() -> String,
    /// None if the value is refused.
    set: fn(&mut Policy, &str) -> Option<()>,
    copy: fn(&mut Policy, &Policy),
}

const SETTINGS: [Setting; 8] = [
    Setting {
        key: "strategy",
        expected: || {
            let names: Vec<&str> = Strategy::names().collect();
            format!("use one of {}", names.join(", "))
        },
        set: |policy, text| {
            policy.strategy = text.parse().ok()?;
            Some(())
        },
        copy: |policy, other| policy.strategy = other.strategy,
    },
    Setting {
        key: "utilizationGoal",
        expected: || "use a percentage from 0 to 100".to_owned(),
        set: |policy, text| {
            let number = text.trim_end_matches('%').trim().parse().ok()?;
            policy.utilization_goal = Some(Percent::new(number).ok()?);
            Some(())
        },
        copy: |policy, other| policy.utilization_goal = other.utilization_goal,
    },
    Setting {
        key: "ageingPointsPerMinute",
        expected: || format!("use a whole number from 0 to {MAX_POINTS}"),
        set: |policy, text| {
            let points = text.parse().ok().filter(|points| *points <= MAX_POINTS)?;
            policy.ageing = Ageing::points_per_minute(points);
            Some(())
        },
        copy: |policy, other| policy.ageing = other.ageing,
    },
    Setting {
        key: "patience",
        expected: || "use a duration from 0s to 168h, such as 10m".to_owned(),
        set: |policy, text| {
            policy.patience = span(text, Span(0), WEEK)?;
            Some(())
        },
        copy: |policy, other| policy.patience = other.patience,
    },
    Setting {
        key: "backfill",
        expected: || "use true or false".to_owned(),
        set: |policy, text| {
            policy.backfill = text.parse().ok()?;
            Some(())
        },
        copy: |policy, other| policy.backfill = other.backfill,
    },
    Setting {
        key: "minRuntime",
        expected: || "use a duration from 0s to 168h, such as 15m".to_owned(),
        set: |policy, text| {
            policy.min_runtime = span(text, Span(0), WEEK)?;
            Some(())
        },
        copy: |policy, other| policy.min_runtime = other.min_runtime,
    },
    Setting {
        key: "replacementTimeout",
        expected: || "use a duration from 0s to 168h, such as 5m".to_owned(),
        set: |policy, text| {
            policy.replacement_wait = span(text, Span(0), WEEK)?;
            Some(())
        },
        copy: |policy, other| policy.replacement_wait = other.replacement_wait,
    },
    Setting {
        key: "usageHalfLife",
        expected: || "use a duration from 1m to 8760h, such as 24h".to_owned(),
        set: |policy, text| {
            policy.half_life = span(text, Span::minutes(1), YEAR)?;
            Some(())
        },
        copy: |policy, other| policy.half_life = other.half_life,
    },
];

/// The policy with these settings. An absent or empty key has its value in `defaults`; a refused one keeps its value in
/// `current`, and is returned.
pub fn apply(
    data: &BTreeMap<String, String>,
    defaults: &Policy,
    current: &Policy,
) -> (Policy, Vec<InvalidSetting>) {
    let mut policy = defaults.clone();
    let mut refused = Vec::new();
    for (key, value) in data {
        let (text, setting) = (value.trim(), SETTINGS.iter().find(|setting| setting.key == key));
        let expected = match setting {
            Some(setting) if text.is_empty() || (setting.set)(&mut policy, text).is_some() => {
                continue;
            }
            Some(setting) => {
                (setting.copy)(&mut policy, current);
                (setting.expected)()
            }
            None => {
                let keys: Vec<&str> = SETTINGS.iter().map(|setting| setting.key).collect();
                format!("no such setting; use {}", keys.join(", "))
            }
        };
        refused.push(InvalidSetting { key: short(key), value: short(text), expected });
    }
    (policy, refused)
}

fn span(text: &str, least: Span, most: Span) -> Option<Span> {
    duration(text).ok().filter(|span| (least..=most).contains(span))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(key: &str, value: &str) -> (Policy, Vec<InvalidSetting>) {
        let data = BTreeMap::from([(key.to_owned(), value.to_owned())]);
        apply(&data, &Policy::default(), &Policy::default())
    }

    #[test]
    fn each_setting_changes_its_part_of_the_policy_only() {
        let usual = Policy::default;
        let minutes = Span::minutes;
        let table: [(&str, &str, Policy); 10] = [
            ("strategy", " best_fit ", Policy { strategy: Strategy::BestFit, ..usual() }),
            (
                "utilizationGoal",
                "85%",
                Policy { utilization_goal: Percent::new(85.0).ok(), ..usual() },
            ),
            (
                "ageingPointsPerMinute",
                "100",
                Policy { ageing: Ageing::points_per_minute(100), ..usual() },
            ),
            ("patience", "1h", Policy { patience: minutes(60), ..usual() }),
            ("patience", "0s", Policy { patience: Span(0), ..usual() }),
            ("backfill", "false", Policy { backfill: false, ..usual() }),
            ("minRuntime", "15m", Policy { min_runtime: minutes(15), ..usual() }),
            ("usageHalfLife", "1m", Policy { half_life: minutes(1), ..usual() }),
            ("replacementTimeout", "0s", Policy { replacement_wait: Span(0), ..usual() }),
            ("patience", " ", usual()),
        ];
        for (key, value, expected) in table {
            assert_eq!(read(key, value), (expected, Vec::new()), "{key}: {value}");
        }
    }

    #[test]
    fn a_refused_value_is_named_and_keeps_the_current_one() {
        let current = Policy { patience: Span::minutes(3), backfill: false, ..Policy::default() };
        let data = [("patience", "soon"), ("minRuntime", "1h"), ("colour", "green")];
        let data = data.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let (policy, refused) = apply(&data, &Policy::default(), &current);
        assert_eq!(policy.patience, Span::minutes(3), "the current value");
        assert_eq!(policy.min_runtime, Span::minutes(60), "other keys apply");
        assert!(policy.backfill, "an absent key has its default");
        let keys: Vec<&str> = refused.iter().map(|one| one.key.as_str()).collect();
        assert_eq!(keys, ["colour", "patience"]);
        let text = refused[1].to_string();
        assert_eq!(
            text,
            "patience: `soon` is refused: use a duration from 0s to 168h, such as 10m"
        );
        for (key, value) in [
            ("strategy", "fastest"),
            ("utilizationGoal", "120"),
            ("ageingPointsPerMinute", "-1"),
            ("ageingPointsPerMinute", "1000001"),
            ("patience", "169h"),
            ("backfill", "yes"),
            ("minRuntime", "1d"),
            ("usageHalfLife", "59s"),
        ] {
            let (policy, refused) = read(key, value);
            assert_eq!((policy, refused.len()), (Policy::default(), 1), "{key}: {value}");
        }
    }
}
