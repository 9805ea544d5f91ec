//! Values of priority classes, which an administrator may replace.

use agentaflow_engine::Priority;
use agentaflow_kube_core::names;
use agentaflow_kube_core::slim::PriorityClass;
use std::collections::BTreeMap;

use super::names_of;

#[derive(Debug, Default)]
pub(super) struct PriorityClasses {
    classes: BTreeMap<String, Entry>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Entry {
    value: i32,
    is_default: bool,
}

impl PriorityClasses {
    /// Returns true if a value changed.
    pub(super) fn record(&mut self, class: &PriorityClass) -> bool {
        let entry =
            Entry { value: class.value, is_default: class.global_default.unwrap_or_default() };
        self.classes.insert(names_of(&class.metadata).1.to_owned(), entry) != Some(entry)
    }

    /// Returns true if the class was known.
    pub(super) fn remove(&mut self, name: &str) -> bool {
        self.classes.remove(name).is_some()
    }

    /// Priority that admission gives to a pod with this class, or without one.
    pub(super) fn priority(&self, class: Option<&str>) -> Priority {
        let known = class.and_then(|name| self.classes.get(name)).map(|entry| entry.value);
        let installed = || {
            let number = class?.strip_prefix(names::PRIORITY_CLASS_PREFIX)?.parse().ok()?;
            Some(names::priority_class_value(number))
        };
        let default = || {
            // Among several defaults, admission takes the lowest.
            let values = self.classes.values().filter(|entry| entry.is_default);
            values.map(|entry| entry.value).min().unwrap_or(0)
        };
        Priority(known.or_else(installed).unwrap_or_else(default))
    }

    /// Highest priority of pods in a queue with this `maxPriority`: the value of its class, no limit for the highest one.
    pub(super) fn limit(&self, max_priority: u8) -> Priority {
        if max_priority >= names::HIGHEST_PRIORITY {
            return Priority::MAX;
        }
        let Some(class) = names::priority_class(max_priority) else { return self.priority(None) };
        match self.classes.get(&class) {
            Some(entry) => Priority(entry.value),
            None => Priority(names::priority_class_value(max_priority)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_the_value_of_the_class_or_of_the_default_and_the_highest_is_none() {
        let mut classes = PriorityClasses::default();
        let class = |name: &str, value: i32, default: bool| {
            let mut class = PriorityClass { value, ..PriorityClass::default() };
            class.metadata.name = Some(name.to_owned());
            class.global_default = Some(default);
            class
        };
        assert_eq!([3, 5, 8].map(|most| classes.limit(most).0), [-2, 0, 3], "as installed");
        assert!(classes.record(&class("agentaflow-8", 800, false)));
        assert!(!classes.record(&class("agentaflow-8", 800, false)));
        assert!(classes.record(&class("usual", 70, true)));
        assert!(classes.record(&class("other", 60, true)));
        assert_eq!([3, 5, 8].map(|most| classes.limit(most).0), [-2, 60, 800]);
        assert_eq!(classes.limit(10), Priority::MAX);
        assert_eq!(classes.priority(Some("agentaflow-8")), Priority(800));
        assert!(classes.remove("usual") && classes.remove("other"));
        assert_eq!(classes.priority(None), Priority(0));
    }
}
