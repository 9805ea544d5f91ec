//! Explanations of jobs that the scheduler admits whole: `job/NAME`, `jobset/NAME` and other kinds.

use agentaflow_api::explain::Explanation;
use agentaflow_kube_core::unit;

use super::named::is_name;
use super::scheduler::Port;
use super::{Cluster, Failure, explain};

/// Namespace and name of a job; none if the text names another object.
pub(super) fn parse<'a>(text: &'a str, namespace: &'a str) -> Option<(&'a str, &'a str)> {
    let parts: Vec<&str> = text.trim().split('/').collect();
    let (space, kind, name) = match parts.as_slice() {
        [kind, name] => (namespace, *kind, *name),
        [space, kind, name] => (*space, *kind, *name),
        _ => return None,
    };
    let known = unit::KINDS.iter().any(|known| kind == known.word() || kind == known.plural);
    (known && is_name(space) && is_name(name)).then_some((space, name))
}

impl Cluster {
    pub(super) async fn explain_unit(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Explanation, Failure> {
        let path = format!("/explain/{namespace}/{name}");
        let text = self.ask_scheduler("GET", Port::Http, &path, None).await;
        let text = text.map_err(|error| match error {
            Failure::NotFound(_) => Failure::NotFound(format!(
                "the scheduler does not know a job `{name}` in namespace `{namespace}`: its pod \
                 template must name the scheduler"
            )),
            other => other,
        })?;
        explain::answer(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn a_job_is_named_with_its_kind() {
        let check = |text: &str, expected| assert_eq!(parse(text, "ml"), expected, "{text}");
        check("job/train", Some(("ml", "train")));
        check("jobs/train", Some(("ml", "train")));
        check("lab/jobset/train", Some(("lab", "train")));
        check("train", None);
        check("pod/train", None);
        check("lab/train", None);
        check("job/../x", None);
    }
}
