//! Fake API server with fixed responses that records requests.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use http::{Request, Response};
use kube::client::Body;
use serde_json::Value;

#[derive(Clone)]
pub(crate) struct FakeApiServer {
    respond: Arc<dyn Fn(&str) -> Value + Send + Sync>,
    methods: Arc<Mutex<Vec<String>>>,
    date: Option<String>,
}

impl FakeApiServer {
    /// `respond` maps a path to a body.
    pub(crate) fn new(respond: impl Fn(&str) -> Value + Send + Sync + 'static) -> Self {
        Self { respond: Arc::new(respond), methods: Arc::default(), date: None }
    }

    /// Adds a `Date` header to every response.
    pub(crate) fn with_date(mut self, date: &str) -> Self {
        self.date = Some(date.to_owned());
        self
    }

    /// Methods of all requests.
    pub(crate) fn methods(&self) -> Vec<String> {
        self.methods.lock().unwrap().clone()
    }
}

impl tower::Service<Request<Body>> for FakeApiServer {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        self.methods.lock().unwrap().push(request.method().to_string());
        let body = (self.respond)(request.uri().path()).to_string().into_bytes();
        let mut response = Response::new(Body::from(body));
        if let Some(date) = &self.date {
            response.headers_mut().insert("date", date.parse().unwrap());
        }
        ready(Ok(response))
    }
}
