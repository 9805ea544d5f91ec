//! Checks GPU manifests: rejected fields, pods that never start, wasted GPUs.
//!
//! A rule is one entry of [`RULES`]: id, severity, reason, a bad and a good example, and the function that finds it.
//! The pages in `docs/lint` are generated from that table. Rules work on values; positions, suppression by comments
//! and fixes are common to all rules.

mod amount;
mod argo;
mod diff;
mod edit;
mod embedded;
mod emit;
mod fix;
mod layout;
mod machine;
mod object;
mod operation;
mod page;
mod report;
mod rules;
mod schema;
mod silence;

use serde::Serialize;
use serde_json::Value;

use crate::yaml::{self, Document, SourcePosition, path_text};

pub use diff::diff;
pub use embedded::unchecked_kinds;
pub use fix::{Fixed, fix};
pub use machine::{CommonMachines, Machine, Machines};
pub use operation::Operation;
pub use page::{index, page};
pub use report::{LintReport, Summary, UNREADABLE, Unreadable, json, sarif};
pub use rules::RULES;
pub use schema::first_violation;

use object::{Object, Path, Pod};

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Improvement.
    Info,
    /// Probably unintended.
    Warning,
    /// Rejected by the API server, never starts, or causes a failure.
    Error,
}

impl Severity {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

impl std::fmt::Display for Severity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

#[derive(Debug)]
pub struct Rule {
    /// `AF001`; never reused for another rule.
    pub id: &'static str,
    /// A short name for programs and lists: `gpu-request-differs`.
    pub name: &'static str,
    /// Default severity; a finding may differ.
    pub severity: Severity,
    /// One line.
    pub title: &'static str,
    pub why: &'static str,
    pub advice: &'static str,
    /// `--fix` can correct it.
    pub fixable: bool,
    /// Manifest that violates the rule.
    pub bad: &'static str,
    /// Corrected manifest.
    pub good: &'static str,
    check: fn(&Set<'_>, &mut Findings<'_>),
}

/// Rule by id or name; case is ignored.
pub fn rule(name: &str) -> Option<&'static Rule> {
    RULES
        .iter()
        .copied()
        .find(|rule| rule.id.eq_ignore_ascii_case(name) || rule.name.eq_ignore_ascii_case(name))
}

/// Documents of a file, a stream or a cluster.
#[derive(Clone, Debug)]
pub struct Input {
    /// Path, `-`, or name of a cluster.
    pub name: String,
    pub documents: Vec<Document>,
    /// Read from text: findings have positions.
    pub written: bool,
}

impl Input {
    pub fn text(name: impl Into<String>, documents: Vec<Document>) -> Self {
        Self { name: name.into(), documents, written: true }
    }

    /// Objects of a cluster, without text.
    pub fn live(name: impl Into<String>, objects: Vec<Value>) -> Self {
        let documents = objects.into_iter().map(Document::from_value).collect();
        Self { name: name.into(), documents, written: false }
    }
}

#[derive(Clone, Debug)]
pub struct Finding {
    pub rule: &'static Rule,
    pub severity: Severity,
    /// Index of the input.
    pub input: usize,
    /// Index of the document in its input.
    pub document: usize,
    /// None without text.
    pub position: Option<SourcePosition>,
    /// `Job/train`.
    pub object: String,
    /// Path from the root of the document: `spec.template.spec`.
    pub path: String,
    /// One line.
    pub message: String,
    /// Operations of the fix; empty if it needs a decision of the user.
    pub fix: Vec<Operation>,
}

/// Selection of rules and their context.
pub struct Options<'m> {
    /// Only these ids; all if empty.
    pub only: Vec<&'static str>,
    pub ignore: Vec<&'static str>,
    pub machines: &'m dyn Machines,
    /// Machine type of GPU nodes for manifests that do not select one.
    pub machine: Option<String>,
}

impl std::fmt::Debug for Options<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("only", &self.only)
            .field("ignore", &self.ignore)
            .finish_non_exhaustive()
    }
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self { only: Vec::new(), ignore: Vec::new(), machines: &CommonMachines, machine: None }
    }
}

/// Findings of all rules in source order. Inputs are checked together: a claim in one file may be mounted twice by
/// another file.
pub fn check(inputs: &[Input], options: &Options<'_>) -> Vec<Finding> {
    let objects = object::objects(inputs);
    let templates = argo::templates(&objects);
    let set = Set {
        objects,
        templates: &templates,
        machines: options.machines,
        machine: options.machine.as_deref(),
    };
    let mut all = Vec::new();
    for rule in RULES.iter().copied() {
        let asked = options.only.is_empty() || options.only.contains(&rule.id);
        if asked && !options.ignore.contains(&rule.id) {
            (rule.check)(&set, &mut Findings { rule, inputs, all: &mut all });
        }
    }
    all.retain(|finding| !silence::suppressed(inputs, finding));
    all.sort_by(|one, other| sort_key(one).cmp(&sort_key(other)));
    all
}

/// Same as [`check`] for objects without text.
pub fn check_values(values: Vec<Value>, options: &Options<'_>) -> Vec<Finding> {
    check(&[Input::live("objects", values)], options)
}

/// True if the document contains a Kubernetes object.
pub fn is_kubernetes(document: &Document) -> bool {
    let is_text = |key: &str| document.value.get(key).is_some_and(Value::is_string);
    is_text("apiVersion") && is_text("kind")
}

fn sort_key(finding: &Finding) -> (usize, usize, Option<SourcePosition>, &str, &str) {
    (finding.input, finding.document, finding.position, &finding.path, finding.rule.id)
}

/// Objects that are checked together.
struct Set<'a> {
    objects: Vec<Object<'a>>,
    templates: &'a [argo::Template],
    machines: &'a dyn Machines,
    machine: Option<&'a str>,
}

impl<'a> Set<'a> {
    fn pods(&self) -> impl Iterator<Item = Pod<'a>> {
        let templates = self.templates.iter().filter_map(|one| one.pod(&self.objects));
        self.objects.iter().flat_map(Object::pods).chain(templates)
    }

    fn gpu_pods(&self) -> impl Iterator<Item = Pod<'a>> {
        self.pods().filter(Pod::wants_gpu)
    }
}

/// Collects the findings of a rule.
struct Findings<'a> {
    rule: &'static Rule,
    inputs: &'a [Input],
    all: &'a mut Vec<Finding>,
}

impl Findings<'_> {
    /// Something without a fix.
    fn add(&mut self, object: &Object<'_>, path: &[String], message: impl Into<String>) {
        self.add_with(object, path, message, Vec::new());
    }

    /// Adds a finding with a fix.
    fn add_with(
        &mut self,
        object: &Object<'_>,
        path: &[String],
        message: impl Into<String>,
        fix: Vec<Operation>,
    ) {
        self.add_as(self.rule.severity, object, path, message, fix);
    }

    /// Adds a finding with its own severity.
    fn add_as(
        &mut self,
        severity: Severity,
        object: &Object<'_>,
        path: &[String],
        message: impl Into<String>,
        fix: Vec<Operation>,
    ) {
        let input = &self.inputs[object.input];
        let document = &input.documents[object.document];
        if yaml::at(&document.value, path).is_some_and(is_placeholder) {
            return;
        }
        let position = input.written.then(|| document.position(path));
        let mut finding = self.finding(object, position, message.into());
        finding.severity = severity;
        finding.path = path_text(path);
        // A field of a workflow template replaces the workflow's: an added field could hide it.
        finding.fix = if argo::is_workflow(object) { Vec::new() } else { fix };
        self.all.push(finding);
    }

    /// Something of which only the position is known.
    fn add_at(&mut self, object: &Object<'_>, position: SourcePosition, message: String) {
        let finding = self.finding(object, Some(position), message);
        self.all.push(finding);
    }

    fn finding(
        &self,
        object: &Object<'_>,
        position: Option<SourcePosition>,
        message: String,
    ) -> Finding {
        Finding {
            rule: self.rule,
            severity: self.rule.severity,
            input: object.input,
            document: object.document,
            position,
            object: object.title(),
            path: String::new(),
            message,
            fix: Vec::new(),
        }
    }
}

/// True for a variable that another program replaces, such as `${GPU_COUNT}` (`envsubst`) or
/// `{{inputs.parameters.gpus}}` (Argo): its final value is unknown. A value with spaces is a script.
fn is_placeholder(value: &Value) -> bool {
    let opens = |text: &str| text.contains("${") || text.contains("{{");
    value.as_str().is_some_and(|text| opens(text) && !text.contains(char::is_whitespace))
}

const TEMPLATE: &str =
    "it is a Helm template; render it first: helm template NAME CHART | agentaflow lint -";

/// Message of a [`yaml::YamlError`], with advice for templates that were not rendered.
pub fn unreadable(text: &str, error: &yaml::YamlError) -> String {
    if text.contains("{{") && text.contains("}}") {
        return TEMPLATE.to_owned();
    }
    error.problem.to_string()
}

fn set(path: Path, value: impl Into<Value>) -> Operation {
    Operation::Set { path, value: value.into() }
}

fn append(path: Path, value: Value) -> Operation {
    Operation::Append { path, value }
}
