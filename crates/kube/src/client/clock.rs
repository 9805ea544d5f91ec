//! The API server's clock.

use agentaflow_api::Stamp;
use http::Request;
use kube::client::Body;

use super::{Cluster, Failure};

impl Cluster {
    /// The time by the API server's clock, as its answers are dated: in whole seconds. None if it does not say.
    pub async fn server_time(&self) -> Result<Option<Stamp>, Failure> {
        Ok(server_time(&self.client).await?)
    }
}

/// The same, for whoever has a client only.
pub async fn server_time(client: &kube::Client) -> Result<Option<Stamp>, kube::Error> {
    let request = Request::get("/version").body(Body::empty()).map_err(kube::Error::HttpError)?;
    let answer = client.send(request).await?;
    let date = answer.headers().get("date").and_then(|date| date.to_str().ok());
    Ok(date.and_then(read))
}

/// Reads the date of an HTTP answer. Its zone is always GMT.
fn read(date: &str) -> Option<Stamp> {
    let zoned = jiff::fmt::rfc2822::parse(date).ok()?;
    Some(Stamp(zoned.timestamp().as_millisecond()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_of_answers_are_read_and_nonsense_is_not() {
        assert_eq!(read("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Stamp(784_111_777_000)));
        assert_eq!(read("yesterday"), None);
    }
}
