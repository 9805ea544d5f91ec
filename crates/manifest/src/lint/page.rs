//! Documentation pages of the rules.

use std::fmt::Write as _;

use super::{RULES, Rule};

/// Markdown page of a rule.
pub fn page(rule: &Rule) -> String {
    let mut text = format!("# {}: {}\n\n", rule.id, rule.title);
    let correction = if rule.fixable {
        "`agentaflow lint --fix` corrects it."
    } else {
        "It needs a manual correction."
    };
    let _ = writeln!(text, "`{}`, {}. {correction}\n", rule.name, article(rule));
    let _ = writeln!(text, "{}\n", rule.why);
    let _ = writeln!(text, "## Fix\n\n{}\n", rule.advice);
    let _ = writeln!(text, "## Example\n\n```yaml\n{}```\n", rule.bad);
    let _ = writeln!(text, "## Better\n\n```yaml\n{}```\n", rule.good);
    let _ = writeln!(
        text,
        "## Suppress\n\nAdd a comment on the line or above it; before the first line of a document it applies to the whole \
         document:\n\n```yaml\n# agentaflow-lint: ignore={}\n```",
        rule.id
    );
    text
}

/// Markdown list of all rules.
pub fn index() -> String {
    let mut text = INTRODUCTION.to_owned();
    text.push_str("\n| rule | severity | `--fix` | finding |\n|---|---|---|---|\n");
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
$ helm template app ./chart | agentaflow lint -   # output of Helm
$ agentaflow lint --cluster -n research       # objects of a cluster
$ agentaflow lint --fix train.yaml            # apply fixes; keeps comments and layout
$ agentaflow lint --diff train.yaml           # show the fixes as a diff
$ agentaflow lint --machine g4dn.xlarge runner.yaml   # check the fit on your nodes
$ agentaflow lint -o sarif . > lint.sarif     # for code scanning
$ agentaflow lint --explain AF102             # show the page of a rule
```

The exit code is 1 if an error is found, with `--strict` also for a warning. `--rule AF001` selects a
rule, `--ignore AF301` disables one, and a comment suppresses one in a file:

```yaml
image: trainer:latest # agentaflow-lint: ignore=AF301
```

At the end of a line, or on the line above, the comment applies to the node that starts on that line;
before the first line of a document it applies to the whole document. Separate several ids with commas.

An *error* is rejected by the API server, never starts, or breaks other pods. A *warning* is probably
unintended. *Information* suggests an improvement.
A file that is not valid YAML is an error with the id AF000. A named file or a pipe without any
Kubernetes object is an error, too: the command before the pipe may have failed. Templates that are not
rendered, patches of a `kustomization.yaml` and other files are skipped in folders and listed in one line;
`-v` shows the reason. Variables such as `${GPU_COUNT}` are not checked.

Every map with a list of `containers` with images is checked as a pod: in a RayCluster, a PyTorchJob, a
Volcano Job or any other kind, and the predictor of an InferenceService with its `model`. Templates of
Argo workflows are checked with the defaults of their workflow. Templates with a `containerSet` or a
`podSpecPatch`, and kinds with another form of containers, are listed as not checked.
";
