//! Rights of a user, decided by the API server.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};

/// Age at which a decision is asked for again.
const FRESH: Duration = Duration::from_secs(10);
/// Decisions kept.
const KEPT: usize = 4096;

/// Authenticated user of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct User {
    pub name: String,
    pub uid: Option<String>,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

/// Access to a resource. An empty namespace selects all namespaces, an empty name all objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Access {
    pub verb: &'static str,
    pub group: &'static str,
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
}

/// Asks the API server for decisions by `SubjectAccessReview`, and keeps them for a short time.
#[derive(Clone, Debug)]
pub struct Rights {
    reviews: Api<SubjectAccessReview>,
    decisions: Arc<Mutex<HashMap<(User, Access), Decision>>>,
}

#[derive(Clone, Copy, Debug)]
struct Decision {
    allowed: bool,
    until: Instant,
}

impl Rights {
    pub fn new(client: Client) -> Self {
        Self { reviews: Api::all(client), decisions: Arc::default() }
    }

    /// Returns true if the API server allows the access.
    pub async fn allow(&self, user: &User, access: &Access) -> Result<bool, kube::Error> {
        let key = (user.clone(), access.clone());
        if let Some(allowed) = self.known(&key) {
            return Ok(allowed);
        }
        let answer = self.reviews.create(&PostParams::default(), &review(user, access)).await?;
        let allowed = answer.status.is_some_and(|status| status.allowed);
        self.remember(key, allowed);
        Ok(allowed)
    }

    fn known(&self, key: &(User, Access)) -> Option<bool> {
        let decisions = self.decisions.lock().unwrap_or_else(PoisonError::into_inner);
        decisions.get(key).filter(|found| found.until > Instant::now()).map(|found| found.allowed)
    }

    fn remember(&self, key: (User, Access), allowed: bool) {
        let mut decisions = self.decisions.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if decisions.len() >= KEPT {
            decisions.retain(|_, decision| decision.until > now);
        }
        if decisions.len() >= KEPT {
            decisions.clear();
        }
        decisions.insert(key, Decision { allowed, until: now + FRESH });
    }
}

fn review(user: &User, access: &Access) -> SubjectAccessReview {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let attributes = ResourceAttributes {
        verb: text(access.verb),
        group: text(access.group),
        resource: text(&access.resource),
        subresource: text(&access.subresource),
        namespace: text(&access.namespace),
        name: text(&access.name),
        ..ResourceAttributes::default()
    };
    SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(user.name.clone()),
            uid: user.uid.clone(),
            groups: Some(user.groups.clone()),
            extra: Some(user.extra.clone()),
            resource_attributes: Some(attributes),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    }
}
