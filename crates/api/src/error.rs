//! How the API says no.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The body of every answer that is not a success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// What was wrong and what to do, in words.
    pub detail: String,
    /// One word for programs, such as `not_found`.
    pub code: String,
    /// The field that was wrong, where there is one: `gpu_count`, `volumes[0].target`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
}
