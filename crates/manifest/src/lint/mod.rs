//! Checks GPU manifests: what the API server would refuse, what never starts, what wastes GPUs.
//!
//! A rule is one entry of [`RULES`]: its id, how bad it is, why, an example of it and of the better way, and the
//! function that finds it. The pages in `docs/lint` are written from that table and nothing else. Rules look at values;
//! where something stands in the text, whether a comment silences it and how a fix is carried out is common to all.

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

use crate::yaml::{self, Document, Place, path_text};

pub use diff::diff;
pub use embedded::not_looked_into;
pub use fix::{Fixed, fix};
pub use machine::{CommonMachines, Machine, Machines};
pub use operation::Operation;
pub use page::{index, page};
pub use report::{Seen, Summary, UNREADABLE, Unreadable, json, sarif};
pub use rules::RULES;
pub use schema::first_mistake;

use object::{Object, Path, Pod};

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Could be better.
    Info,
    /// Probably not what is wanted.
    Warning,
    /// Refused by the API server, never starts, or breaks something.
    Error,
}

impl Severity {
    /// The word for it.
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

/// Something that is checked.
#[derive(Debug)]
pub struct Rule {
    /// `AF001`; never given to another rule.
    pub id: &'static str,
    /// A short name for programs and lists: `gpu-request-differs`.
    pub name: &'static str,
    /// How bad it usually is.
    pub severity: Severity,
    /// What is wrong, in one line.
    pub title: &'static str,
    /// Why it matters.
    pub why: &'static str,
    /// What to do about it.
    pub advice: &'static str,
    /// Whether `--fix` can mend it.
    pub fixable: bool,
    /// A manifest that has it.
    pub bad: &'static str,
    /// The same without it.
    pub good: &'static str,
    check: fn(&Set<'_>, &mut Findings<'_>),
}

/// A rule by its id or its name, in any case.
pub fn rule(name: &str) -> Option<&'static Rule> {
    RULES
        .iter()
        .copied()
        .find(|rule| rule.id.eq_ignore_ascii_case(name) || rule.name.eq_ignore_ascii_case(name))
}

/// A file, a stream or a cluster, read.
#[derive(Clone, Debug)]
pub struct Input {
    /// What people call it: a path, `-`, or a cluster.
    pub name: String,
    /// What is in it.
    pub documents: Vec<Document>,
    /// Whether it was read from text, so that things have lines.
    pub written: bool,
}

impl Input {
    /// What was read from a text.
    pub fn text(name: impl Into<String>, documents: Vec<Document>) -> Self {
        Self { name: name.into(), documents, written: true }
    }

    /// Objects that nobody wrote down: those of a cluster.
    pub fn live(name: impl Into<String>, objects: Vec<Value>) -> Self {
        let documents = objects.into_iter().map(Document::from_value).collect();
        Self { name: name.into(), documents, written: false }
    }
}

/// Something that a rule found.
#[derive(Clone, Debug)]
pub struct Finding {
    /// What was checked.
    pub rule: &'static Rule,
    /// How bad it is here.
    pub severity: Severity,
    /// In which of the inputs.
    pub input: usize,
    /// In which of its documents.
    pub document: usize,
    /// Where, if it was read from text.
    pub place: Option<Place>,
    /// The object: `Job/train`.
    pub object: String,
    /// The path of the field from the document's begin: `spec.template.spec`.
    pub path: String,
    /// What is wrong, in one line.
    pub message: String,
    /// How to mend it; empty where it cannot be mended without asking.
    pub fix: Vec<Operation>,
}

/// Which rules are asked, and what they know.
pub struct Options<'m> {
    /// Only these ids; all if empty.
    pub only: Vec<&'static str>,
    /// Not these ids.
    pub ignore: Vec<&'static str>,
    /// Who knows machine types.
    pub machines: &'m dyn Machines,
    /// What GPU nodes are where a manifest does not choose a machine type.
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

/// Everything that the rules find in some inputs, in the order in which it is written there. The inputs are looked at
/// together: a claim in one file may be mounted twice by another.
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
    all.retain(|finding| !silence::silenced(inputs, finding));
    all.sort_by(|one, other| sort_key(one).cmp(&sort_key(other)));
    all
}

/// The same for objects that nobody wrote down.
pub fn check_values(values: Vec<Value>, options: &Options<'_>) -> Vec<Finding> {
    check(&[Input::live("objects", values)], options)
}

/// Whether anything in a document is a Kubernetes object.
pub fn is_kubernetes(document: &Document) -> bool {
    let is_text = |key: &str| document.value.get(key).is_some_and(Value::is_string);
    is_text("apiVersion") && is_text("kind")
}

fn sort_key(finding: &Finding) -> (usize, usize, Option<Place>, &str, &str) {
    (finding.input, finding.document, finding.place, &finding.path, finding.rule.id)
}

/// All objects that are checked together.
struct Set<'a> {
    objects: Vec<Object<'a>>,
    /// Those of workflows.
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

/// Where a rule puts what it found.
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

    /// Something that can be mended.
    fn add_with(
        &mut self,
        object: &Object<'_>,
        path: &[String],
        message: impl Into<String>,
        fix: Vec<Operation>,
    ) {
        self.add_as(self.rule.severity, object, path, message, fix);
    }

    /// Something that is not as bad as usual, or worse.
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
        if yaml::at(&document.value, path).is_some_and(is_filled_in_later) {
            return;
        }
        let place = input.written.then(|| document.place(path));
        let mut finding = self.finding(object, place, message.into());
        finding.severity = severity;
        finding.path = path_text(path);
        // What a template of a workflow says replaces what the workflow says: nothing can be added to it blindly.
        finding.fix = if argo::is_workflow(object) { Vec::new() } else { fix };
        self.all.push(finding);
    }

    /// Something of which only the place is known.
    fn add_at(&mut self, object: &Object<'_>, place: Place, message: String) {
        let finding = self.finding(object, Some(place), message);
        self.all.push(finding);
    }

    fn finding(&self, object: &Object<'_>, place: Option<Place>, message: String) -> Finding {
        Finding {
            rule: self.rule,
            severity: self.rule.severity,
            input: object.input,
            document: object.document,
            place,
            object: object.title(),
            path: String::new(),
            message,
            fix: Vec::new(),
        }
    }
}

/// Whether a value is a variable that another program fills in, such as `${GPU_COUNT}` for `envsubst` and
/// `{{inputs.parameters.gpus}}` for Argo. Of what it will be, nobody can say that it is wrong. What has spaces in it is
/// a script.
fn is_filled_in_later(value: &Value) -> bool {
    let opens = |text: &str| text.contains("${") || text.contains("{{");
    value.as_str().is_some_and(|text| opens(text) && !text.contains(char::is_whitespace))
}

/// What to do with a template.
const TEMPLATE: &str =
    "it is a template of Helm; render it first: helm template NAME CHART | agentaflow lint -";

/// The message of a [`yaml::YamlError`], with what to do about templates that were not rendered.
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
