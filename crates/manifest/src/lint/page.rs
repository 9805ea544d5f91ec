//! The pages that explain rules, written from the table of rules.

use std::fmt::Write as _;

use super::{RULES, Rule};

/// The page of a rule, in Markdown.
pub fn page(rule: &Rule) -> String {
    let mut text = format!("# {}: {}\n\n", rule.id, rule.title);
    let mended = if rule.fixable {
        "`agentaflow lint --fix` corrects it."
    } else {
        "It needs a manual correction."
    };
    let _ = writeln!(text, "`{}`, {}. {mended}\n", rule.name, article(rule));
    let _ = writeln!(text, "{}\n", rule.why);
    let _ = writeln!(text, "## Fix\n\n{}\n", rule.advice);
    let _ = writeln!(text, "## Example\n\n```yaml\n{}```\n", rule.bad);
    let _ = writeln!(text, "## Better\n\n```yaml\n{}```\n", rule.good);
    let _ = writeln!(
        text,
        "## Leave it as it is\n\nA comment on the line, or above it, silences the rule there; before the first line of a \
         document, in the whole document:\n\n```yaml\n# agentaflow-lint: ignore={}\n```",
        rule.id
    );
    text
}

/// The list of all rules, in Markdown.
pub fn index() -> String {
    let mut text = INTRODUCTION.to_owned();
    text.push_str("\n| rule | severity | `--fix` | what it finds |\n|---|---|---|---|\n");
    for rule in RULES.iter().copied() {
        let fixable = if rule.fixable { "yes" } else { "" };
        let _ = writeln!(
            text,
            "| [{0}]({0}.md) | {1} | {fixable} | {2} |",
            rule.id, rule.severity, rule.title
        );
    }
    text
}

fn article(rule: &Rule) -> String {
    match rule.severity.as_str() {
        "warning" => "a warning".to_owned(),
        "error" => "an error".to_owned(),
        _ => "for information".to_owned(),
    }
}

const INTRODUCTION: &str = "\
# Checking GPU manifests

```console
$ agentaflow lint train.yaml deploy/          # files and folders
$ helm template app ./chart | agentaflow lint -   # what Helm renders
$ agentaflow lint --cluster -n research       # what runs in a cluster
$ agentaflow lint --fix train.yaml            # mend what can be mended; comments and layout stay
$ agentaflow lint --diff train.yaml           # show what --fix would do
$ agentaflow lint --machine g4dn.xlarge runner.yaml   # does it fit the nodes that you have?
$ agentaflow lint -o sarif . > lint.sarif     # for code scanning
$ agentaflow lint --explain AF102             # the page of a rule
```

It ends with 1 if it finds an error, with `--strict` also for a warning. `--rule AF001` asks only for
that rule, `--ignore AF301` leaves one out, and a comment silences one in a file:

```yaml
image: trainer:latest # agentaflow-lint: ignore=AF301
```

At the end of a line, or on the line above, the comment is about what begins on that line and
everything in it; before the first line of a document it is about the whole document. Several ids
stand with commas between them.

An *error* is refused by the API server, never starts, or breaks something. A *warning* is probably
not what is wanted. *Information* could be better.
A file that cannot be read as YAML is an error with the id AF000, and so is one that you name, or a
pipe, without any Kubernetes object in it: what came before the pipe may have failed. Of a folder,
templates that are not rendered, patches that a `kustomization.yaml` names and what is no manifest are
left out, and one line names them; `-v` says why. A value that is to be filled in later, such as
`${GPU_COUNT}`, is not judged.

Pods are checked wherever they stand: what has a list of `containers` with images is one, in a
RayCluster, a PyTorchJob, a Job of Volcano or any other kind, and so is the predictor of an
InferenceService with its `model`. The templates of Argo's workflows are checked with what the workflow
says for all of them; those with a `containerSet` or a `podSpecPatch`, and kinds that write their
containers otherwise, are named as not checked.
";
