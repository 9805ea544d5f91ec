//! Long lists, page by page.

use kube::Api;
use kube::api::ListParams;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

use super::Failure;

/// Objects per page.
const PAGE: u32 = 500;

/// More than any list that people could look at; ends a server that never does.
const MOST_PAGES: usize = 2_000;

/// All objects that match.
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
