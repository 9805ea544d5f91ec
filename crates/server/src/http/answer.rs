//! Responses: errors, lists, CSV and HTML pages.

use axum::Json;
use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::api_error::ApiError;
use crate::store::StoreError;

/// Header with the total number of entries of a paged list.
pub(crate) const TOTAL: HeaderName = HeaderName::from_static("x-total-count");

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::BAD_REQUEST);
        let retry_after = self.details.retry_after_seconds;
        let mut response = (status, Json(self.into_body())).into_response();
        let headers = response.headers_mut();
        if let Some(seconds) = retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        tracing::error!(error = &error as &dyn std::error::Error, "Store failed");
        Self::unavailable("the database does not answer now; try again in a moment")
    }
}

/// Page of a list with the total number of entries.
#[derive(Debug)]
pub(crate) struct Listed<T> {
    pub(crate) rows: Vec<T>,
    pub(crate) total: u64,
}

impl<T> Listed<T> {
    /// Page of a list that is completely in memory.
    pub(crate) fn page(all: Vec<T>, (skip, limit): (u64, u64)) -> Self {
        let total = all.len() as u64;
        let skip = usize::try_from(skip).unwrap_or(usize::MAX);
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        Self { rows: all.into_iter().skip(skip).take(limit).collect(), total }
    }
}

impl<T: Serialize> IntoResponse for Listed<T> {
    fn into_response(self) -> Response {
        let total = HeaderValue::from(self.total);
        ([(TOTAL, total)], Json(self.rows)).into_response()
    }
}

/// Plain-text response from a stream or a buffer.
pub(crate) fn text(body: impl Into<Body>) -> Response {
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    ([(header::CONTENT_TYPE, kind)], body.into()).into_response()
}

/// HTML response. Its policy permits the inline style and no other resource.
pub(crate) fn page(html: String) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(PAGE_POLICY)),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    (headers, html).into_response()
}

pub(crate) fn csv(name: &str, rows: &[Vec<String>]) -> Response {
    let mut text = String::new();
    for row in rows {
        let cells: Vec<_> = row.iter().map(|cell| quoted(cell)).collect();
        text.push_str(&cells.join(","));
        text.push_str("\r\n");
    }
    let file = format!("attachment; filename=\"{name}.csv\"");
    let file = HeaderValue::from_str(&file).unwrap_or(HeaderValue::from_static("attachment"));
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/csv; charset=utf-8")),
        (header::CONTENT_DISPOSITION, file),
    ];
    (headers, text).into_response()
}

const PAGE_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; \
                           base-uri 'none'; frame-ancestors 'none'";

/// Escapes a CSV cell. A cell that a spreadsheet would read as a formula gets an apostrophe.
fn quoted(cell: &str) -> String {
    let number = cell.parse::<f64>().is_ok();
    let risky = !number && cell.starts_with(['=', '+', '-', '@', '\t', '\r']);
    let cell = if risky { format!("'{cell}") } else { cell.to_owned() };
    if cell.contains(['"', ',', '\n', '\r']) {
        format!("\"{}\"", cell.replace('"', "\"\""))
    } else {
        cell
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_quoted_when_it_must_be_and_never_a_formula() {
        let cases = [
            ("plain", "plain"),
            ("a,b", "\"a,b\""),
            ("say \"hi\"", "\"say \"\"hi\"\"\""),
            ("=1+1", "'=1+1"),
            ("-0.5", "-0.5"),
            ("@sum", "'@sum"),
        ];
        for (cell, expected) in cases {
            assert_eq!(quoted(cell), expected);
        }
    }

    #[test]
    fn a_page_of_a_list_knows_how_many_there_are() {
        let page = Listed::page(vec![1, 2, 3, 4, 5], (1, 2));
        assert_eq!((page.rows, page.total), (vec![2, 3], 5));
        assert_eq!(Listed::page(vec![1], (u64::MAX, u64::MAX)).rows, Vec::<i32>::new());
    }
}
