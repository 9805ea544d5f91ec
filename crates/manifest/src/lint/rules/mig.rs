//! mig-parted configurations: MIG layouts that the GPU operator applies.

use agentaflow_engine::mig::GEOMETRIES;
use serde_json::Value;

use crate::lint::{Findings, Rule, Set};
use crate::mig::{self, MigError};
use crate::yaml::{Limits, read_text};

pub(super) static AF009: Rule = rule! {
    "AF009" "impossible-mig-layout" Error;
    title: "Impossible MIG layout",
    why: "A GPU has seven compute slices and eight memory slices, an A30 four of each, and a profile can start only \
          at some of them. The MIG manager rejects an impossible layout: the node keeps its old layout, and the \
          pods stay pending.",
    advice: "`agentaflow generate mig-config --gpu h100 --slices 3g.40gb=2` generates a valid layout, and suggests \
             the nearest one for an impossible layout.",
    check: impossible_layout,
};

/// Most layouts checked per configuration; each is compared with all possible layouts.
const LAYOUTS_READ: usize = 256;

fn impossible_layout(set: &Set<'_>, findings: &mut Findings<'_>) {
    for object in set.objects.iter().filter(|object| object.is(&["ConfigMap"])) {
        let Some(Value::Object(data)) = object.at(&["data"]) else { continue };
        for (key, value) in data {
            for message in value.as_str().map(impossible_in).unwrap_or_default() {
                findings.add(object, &object.join(&["data", key]), message);
            }
        }
    }
}

/// Problems of the layouts in a mig-parted configuration.
fn impossible_in(config: &str) -> Vec<String> {
    if !config.contains("mig-configs") {
        return Vec::new();
    }
    let Ok(documents) = read_text(config, &Limits::default()) else { return Vec::new() };
    let layouts = documents.iter().filter_map(|document| document.value["mig-configs"].as_object());
    let devices = layouts.flatten().flat_map(|(name, all)| {
        all.as_array().into_iter().flatten().map(move |devices| (name, devices))
    });
    let problems = devices.take(LAYOUTS_READ).filter_map(|(name, devices)| {
        let slices = devices["mig-devices"].as_object().filter(|slices| !slices.is_empty())?;
        let asked = slices.iter().map(|(profile, count)| Some((profile.as_str(), small(count)?)));
        let problem = problem(&asked.collect::<Option<Vec<_>>>()?)?;
        Some(format!("`{name}`: {problem}"))
    });
    problems.collect()
}

fn small(count: &Value) -> Option<u32> {
    count.as_u64().and_then(|count| u32::try_from(count).ok())
}

/// Problem of a layout that no GPU supports; none if a GPU does, or if a profile belongs to a GPU with unknown
/// geometry.
fn problem(asked: &[(&str, u32)]) -> Option<String> {
    if asked.iter().any(|(profile, _)| mig::is_of_unknown_layout(profile)) {
        return None;
    }
    for (profile, _) in asked {
        if !GEOMETRIES.iter().any(|geometry| geometry.profile(profile).is_some()) {
            return Some(format!("no GPU has the profile `{profile}`"));
        }
    }
    let mut problems = Vec::new();
    for geometry in &GEOMETRIES {
        problems.push(mig::check(geometry, asked.iter().copied()).err()?);
    }
    // Prefer the nearest layout of a GPU that has all of the profiles.
    let nearest = problems.iter().find(|problem| matches!(problem, MigError::Layout { .. }));
    let apart = || "no GPU has all of these profiles".to_owned();
    Some(nearest.map_or_else(apart, MigError::to_string))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_compared_with_the_geometries() {
        let message = |slices: &str| {
            let text = format!(
                "version: v1\nmig-configs:\n  own:\n  - devices: all\n    mig-enabled: true\n    mig-devices:\n{slices}"
            );
            impossible_in(&text).join("; ")
        };
        for possible in
            ["      1g.5gb: 7\n", "      3g.20gb: 1\n      2g.10gb: 2\n", "      1g.6gb: 4\n"]
        {
            assert_eq!(message(possible), "", "{possible}");
        }
        // The geometry of B200, GB300 and RTX PRO 6000 is unknown.
        for other in
            ["3g.90gb: 9", "1g.35gb: 7", "1g.24gb+me.all: 1", "1g.24gb-me: 4", "7g.278gb: 1"]
        {
            assert_eq!(message(&format!("      {other}\n")), "", "{other}");
        }
        let cases = [
            (
                "      1g.5gb: 8\n",
                "`own`: an A100-40 cannot have the layout 8 × 1g.5gb; the nearest possible layout is 7 × 1g.5gb",
            ),
            ("      5g.5gb: 1\n", "`own`: no GPU has the profile `5g.5gb`"),
            ("      1g.5gb: 1\n      1g.6gb: 1\n", "`own`: no GPU has all of these profiles"),
        ];
        for (slices, words) in cases {
            let message = message(slices);
            assert!(message.starts_with(words), "{message}");
        }
        for other in [
            "",
            "mig-configs: [",
            "mig-configs: 3",
            "mig-configs:\n  a:\n  - mig-devices:\n      1g.5gb: many",
        ] {
            assert!(impossible_in(other).is_empty(), "{other}");
        }
    }
}
