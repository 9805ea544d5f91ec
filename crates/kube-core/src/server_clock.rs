//! The API server's clock.

use http::Request;
use jiff::Timestamp;
use kube::client::Body;

/// Time of the API server in whole seconds, from the `Date` header of a response; `None` without that header.
pub async fn server_time(client: &kube::Client) -> Result<Option<Timestamp>, kube::Error> {
    let request = Request::get("/version").body(Body::empty()).map_err(kube::Error::HttpError)?;
    let response = client.send(request).await?;
    let date = response.headers().get("date").and_then(|date| date.to_str().ok());
    Ok(date.and_then(parse))
}

fn parse(date: &str) -> Option<Timestamp> {
    Some(jiff::fmt::rfc2822::parse(date).ok()?.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_dates_are_parsed_and_other_text_is_not() {
        assert_eq!(
            parse("Sun, 06 Nov 1994 08:49:37 GMT"),
            Timestamp::from_second(784_111_777).ok()
        );
        assert_eq!(parse("yesterday"), None);
    }
}
