//! Taints and tolerations.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

use super::error::{LabelError, check_key, check_value};

/// Effect of a taint on tasks that do not tolerate it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// The node takes no new task.
    NoSchedule,
    /// The node takes a new task only when no other node fits.
    PreferNoSchedule,
    /// The node takes no new task. The driver evicts running tasks.
    NoExecute,
}

/// A node property that repels tasks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Taint {
    pub key: Arc<str>,
    /// May be empty.
    #[serde(default, skip_serializing_if = "is_default")]
    pub value: Arc<str>,
    pub effect: Effect,
}

/// Operator of a [`Toleration`].
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum TolerationOp {
    #[default]
    Equal,
    Exists,
    /// The taint's value is an integer less than the toleration's.
    Lt,
    /// The taint's value is an integer greater than the toleration's.
    Gt,
}

/// Permits a task on nodes with matching taints.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Toleration {
    /// `None` matches every taint, which needs [`TolerationOp::Exists`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<Arc<str>>,
    #[serde(skip_serializing_if = "is_default")]
    pub op: TolerationOp,
    #[serde(skip_serializing_if = "is_default")]
    pub value: Arc<str>,
    /// `None` matches every effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect: Option<Effect>,
}

/// The first untolerated taint with the effect `NoSchedule` or `NoExecute`; for `PreferNoSchedule` see
/// [`untolerated_preferences`].
pub fn first_untolerated<'a>(taints: &'a [Taint], tolerations: &[Toleration]) -> Option<&'a Taint> {
    taints
        .iter()
        .find(|taint| taint.effect != Effect::PreferNoSchedule && !is_tolerated(taint, tolerations))
}

/// Number of untolerated `PreferNoSchedule` taints.
pub fn untolerated_preferences(taints: &[Taint], tolerations: &[Toleration]) -> usize {
    let discourages = |taint: &&Taint| taint.effect == Effect::PreferNoSchedule;
    taints.iter().filter(discourages).filter(|taint| !is_tolerated(taint, tolerations)).count()
}

impl Taint {
    pub fn new(key: impl Into<Arc<str>>, value: impl Into<Arc<str>>, effect: Effect) -> Self {
        Self { key: key.into(), value: value.into(), effect }
    }

    /// Rejects an empty key and overlong texts.
    pub fn validate(&self) -> Result<(), LabelError> {
        check_key(&self.key)?;
        check_value(&self.value)
    }
}

impl Toleration {
    /// `lt` and `gt` read only integers in their shortest form: `0950` is not a number.
    pub fn tolerates(&self, taint: &Taint) -> bool {
        let effect = self.effect.is_none_or(|effect| effect == taint.effect);
        let key = self.key.as_ref().is_none_or(|key| *key == taint.key);
        effect && key && self.accepts(&taint.value)
    }

    /// Rejects the same tolerations as Kubernetes: no key without `exists`, a value with `exists`, `lt` and
    /// `gt` without an integer, and overlong texts.
    pub fn validate(&self) -> Result<(), LabelError> {
        let key = match (&self.key, self.op) {
            (Some(key), _) => key.clone(),
            (None, TolerationOp::Exists) => "*".into(),
            (None, _) => return Err(LabelError::KeylessToleration),
        };
        check_key(&key)?;
        check_value(&self.value)?;
        match self.op {
            TolerationOp::Exists if !self.value.is_empty() => Err(LabelError::UnusedValue(key)),
            TolerationOp::Lt | TolerationOp::Gt if plain_integer(&self.value).is_none() => {
                Err(LabelError::NotOneInteger(key))
            }
            _ => Ok(()),
        }
    }

    fn accepts(&self, value: &Arc<str>) -> bool {
        let numbers = || plain_integer(value).zip(plain_integer(&self.value));
        match self.op {
            TolerationOp::Equal => *value == self.value,
            TolerationOp::Exists => true,
            TolerationOp::Lt => numbers().is_some_and(|(taint, limit)| taint < limit),
            TolerationOp::Gt => numbers().is_some_and(|(taint, limit)| taint > limit),
        }
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSchedule => "NoSchedule",
            Self::PreferNoSchedule => "PreferNoSchedule",
            Self::NoExecute => "NoExecute",
        })
    }
}

/// The format of `kubectl`: `key=value:NoSchedule`.
impl fmt::Display for Taint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, value, effect } = self;
        let equal = if value.is_empty() { "" } else { "=" };
        write!(f, "{key}{equal}{value}:{effect}")
    }
}

/// The format of the matching taints, with `*` for any value: `key=value:NoSchedule`, `key=*`, `key<5`, `*`.
impl fmt::Display for Toleration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, op, value, effect } = self;
        match (key, op) {
            (None, _) => write!(f, "*")?,
            (Some(key), TolerationOp::Equal) if value.is_empty() => write!(f, "{key}")?,
            (Some(key), TolerationOp::Equal) => write!(f, "{key}={value}")?,
            (Some(key), TolerationOp::Exists) => write!(f, "{key}=*")?,
            (Some(key), TolerationOp::Lt) => write!(f, "{key}<{value}")?,
            (Some(key), TolerationOp::Gt) => write!(f, "{key}>{value}")?,
        }
        effect.iter().try_for_each(|effect| write!(f, ":{effect}"))
    }
}

fn is_tolerated(taint: &Taint, tolerations: &[Toleration]) -> bool {
    tolerations.iter().any(|toleration| toleration.tolerates(taint))
}

fn plain_integer(text: &str) -> Option<i64> {
    let number: i64 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[cfg(test)]
mod tests {
    use super::Effect::{NoExecute, NoSchedule, PreferNoSchedule};
    use super::TolerationOp::{Equal, Exists, Gt, Lt};
    use super::*;

    #[test]
    fn a_toleration_covers_taints_as_in_kubernetes() {
        let cases = [
            (toleration("gpu", Equal, "true"), "true", true),
            (toleration("gpu", Equal, "true"), "present", false),
            (toleration("gpu", Equal, ""), "", true),
            (toleration("gpu", Equal, ""), "true", false),
            (toleration("gpu", Exists, ""), "present", true),
            (toleration("spot", Exists, ""), "true", false),
            (Toleration { op: Exists, ..Toleration::default() }, "true", true),
            (Toleration { effect: Some(NoSchedule), ..toleration("gpu", Exists, "") }, "", true),
            (Toleration { effect: Some(NoExecute), ..toleration("gpu", Exists, "") }, "", false),
            (toleration("gpu", Lt, "10"), "9", true),
            (toleration("gpu", Lt, "10"), "10", false),
            (toleration("gpu", Gt, "10"), "11", true),
            (toleration("gpu", Gt, "-1"), "0", true),
            (toleration("gpu", Gt, "10"), "10", false),
            (toleration("gpu", Gt, "10"), "many", false),
            (toleration("gpu", Gt, "10"), "0950", false),
            (toleration("gpu", Lt, "010"), "9", false),
            (toleration("gpu", Lt, ""), "9", false),
        ];
        for (toleration, value, expected) in cases {
            let taint = Taint::new("gpu", value, NoSchedule);
            assert_eq!(toleration.tolerates(&taint), expected, "{toleration} for {taint}");
        }
    }

    #[test]
    fn only_no_schedule_and_no_execute_taints_exclude_a_task() {
        let taints = [
            Taint::new("slow", "", PreferNoSchedule),
            Taint::new("gpu", "true", NoSchedule),
            Taint::new("broken", "", NoExecute),
        ];
        let exists = |key| toleration(key, Exists, "");
        let cases = [
            (vec![], Some("gpu=true:NoSchedule"), 1),
            (vec![exists("gpu")], Some("broken:NoExecute"), 1),
            (vec![exists("gpu"), exists("broken")], None, 1),
            (vec![exists("gpu"), exists("slow")], Some("broken:NoExecute"), 0),
            (vec![Toleration { op: Exists, ..Toleration::default() }], None, 0),
        ];
        for (tolerations, expected, discouraged) in cases {
            let first = first_untolerated(&taints, &tolerations).map(Taint::to_string);
            assert_eq!(first.as_deref(), expected);
            assert_eq!(untolerated_preferences(&taints, &tolerations), discouraged);
        }
    }

    #[test]
    fn invalid_tolerations_are_rejected() {
        let long = "x".repeat(64);
        let too_long = LabelError::TooLong { text: "x".repeat(32), limit: 63 };
        let cases = [
            (toleration("gpu", Equal, "true"), None),
            (toleration("gpu", Lt, "-5"), None),
            (Toleration { op: Exists, ..Toleration::default() }, None),
            (Toleration::default(), Some(LabelError::KeylessToleration)),
            (toleration("", Exists, ""), Some(LabelError::EmptyKey)),
            (toleration("gpu", Exists, "true"), Some(LabelError::UnusedValue("gpu".into()))),
            (toleration("gpu", Gt, "many"), Some(LabelError::NotOneInteger("gpu".into()))),
            (toleration("gpu", Gt, "007"), Some(LabelError::NotOneInteger("gpu".into()))),
            (toleration(&long, Exists, ""), Some(too_long.clone())),
            (toleration("gpu", Equal, &long), Some(too_long)),
        ];
        for (toleration, expected) in cases {
            assert_eq!(toleration.validate().err(), expected, "{toleration}");
        }
    }

    #[test]
    fn invalid_taints_are_rejected() {
        let taint = |key: &str| Taint::new(key, "", NoSchedule);
        assert_eq!(taint("nvidia.com/gpu").validate(), Ok(()));
        assert_eq!(taint("").validate(), Err(LabelError::EmptyKey));
        let long = Taint::new("gpu", "x".repeat(64), NoSchedule);
        assert!(matches!(long.validate(), Err(LabelError::TooLong { limit: 63, .. })));
    }

    #[test]
    fn taints_and_tolerations_are_displayed_as_in_kubectl() {
        let effect = Some(NoSchedule);
        let cases = [
            (toleration("gpu", Equal, "true"), "gpu=true"),
            (toleration("gpu", Equal, ""), "gpu"),
            (Toleration { effect, ..toleration("gpu", Equal, "true") }, "gpu=true:NoSchedule"),
            (toleration("gpu", Exists, ""), "gpu=*"),
            (toleration("risk", Lt, "5"), "risk<5"),
            (Toleration { effect, op: Exists, ..Toleration::default() }, "*:NoSchedule"),
        ];
        for (toleration, expected) in cases {
            assert_eq!(toleration.to_string(), expected);
        }
        assert_eq!(Taint::new("gpu", "", PreferNoSchedule).to_string(), "gpu:PreferNoSchedule");
    }

    #[test]
    fn taints_and_tolerations_serialize_without_empty_fields_and_reject_unknown_fields() {
        let text = r#"{"key":"gpu","value":"true","effect":"no_schedule"}"#;
        let taint: Taint = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&taint).unwrap(), text);
        let toleration: Toleration = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&toleration).unwrap(), text);
        assert_eq!(serde_json::to_string(&Toleration::default()).unwrap(), "{}");
        assert!(serde_json::from_str::<Toleration>(r#"{"operator":"exists"}"#).is_err());
    }

    fn toleration(key: &str, op: TolerationOp, value: &str) -> Toleration {
        Toleration { key: Some(key.into()), op, value: value.into(), effect: None }
    }
}
