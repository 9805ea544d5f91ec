//! Paginated lists.

use kube::Api;
use kube::api::ListParams;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

use super::Failure;

/// Objects per page.
const PAGE: u32 = 500;

/// Page limit, far above any real list: stops at a server that never ends its list.
const MOST_PAGES: usize = 2_000;

/// All matching objects.
pub(super) async fn all<K>(api: &Api<K>, wanted: ListParams) -> Result<Vec<K>, Failure>
where
    K: Clone + DeserializeOwned + Debug,
{
    let mut found = Vec::new();
    let mut wanted = wanted.limit(PAGE);
    for _ in 0..MOST_PAGES {
        let page = api.list(&wanted).await?;
        found.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => wanted = wanted.continue_token(&token),
            None => break,
        }
    }
    Ok(found)
}
