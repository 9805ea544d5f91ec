//! Users of tokens, by `TokenReview`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use agentaflow_kube_serve::User;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use kube::api::PostParams;
use kube::{Api, Client};
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;

/// Age at which a token is reviewed again: a revoked token works for at most this time.
const FRESH: Duration = Duration::from_secs(20);
/// Users kept.
const KEPT: usize = 1024;
/// Concurrent reviews, which unauthenticated clients can cause.
const CONCURRENT: usize = 8;

type Digest = [u8; 32];

/// Reviews tokens, and keeps the results for a short time.
#[derive(Clone, Debug)]
pub(crate) struct Sessions {
    reviews: Api<TokenReview>,
    known: Arc<Mutex<HashMap<Digest, (Instant, User)>>>,
    places: Arc<Semaphore>,
}

impl Sessions {
    pub(crate) fn new(client: &Client) -> Self {
        Self {
            reviews: Api::all(client.clone()),
            known: Arc::default(),
            places: Arc::new(Semaphore::new(CONCURRENT)),
        }
    }

    /// User of a token; none if the API server does not accept it.
    pub(crate) async fn user(&self, token: &str) -> Result<Option<User>, kube::Error> {
        let digest = Sha256::digest(token.as_bytes()).into();
        if let Some(user) = self.known(&digest) {
            return Ok(Some(user));
        }
        let _place = self.places.acquire().await;
        let spec = TokenReviewSpec { token: Some(token.to_owned()), audiences: None };
        let review = TokenReview { spec, ..TokenReview::default() };
        let answer = self.reviews.create(&PostParams::default(), &review).await?;
        let status = answer.status.filter(|status| status.authenticated == Some(true));
        let user = status.and_then(|status| status.user).and_then(user);
        if let Some(user) = &user {
            self.remember(digest, user.clone());
        }
        Ok(user)
    }

    pub(crate) fn forget(&self, token: &str) {
        let digest: Digest = Sha256::digest(token.as_bytes()).into();
        self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(&digest);
    }

    fn known(&self, digest: &Digest) -> Option<User> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known.get(digest).filter(|(until, _)| *until > Instant::now());
        found.map(|(_, user)| user.clone())
    }

    fn remember(&self, digest: Digest, user: User) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if known.len() >= KEPT {
            known.retain(|_, (until, _)| *until > now);
        }
        if known.len() >= KEPT {
            known.clear();
        }
        known.insert(digest, (now + FRESH, user));
    }
}

/// None for a user without a name.
fn user(info: UserInfo) -> Option<User> {
    Some(User {
        name: info.username.filter(|name| !name.is_empty())?,
        uid: info.uid,
        groups: info.groups.unwrap_or_default(),
        extra: info.extra.unwrap_or_default(),
    })
}
