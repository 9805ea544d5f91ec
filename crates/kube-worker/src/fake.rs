//! An API server for tests: it answers what it is told to, and remembers what it was asked.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use http::{Request, Response};
use kube::client::Body;
use serde_json::Value;

#[derive(Clone)]
pub(crate) struct Api {
    answer: Arc<dyn Fn(&str) -> Value + Send + Sync>,
    asked: Arc<Mutex<Vec<String>>>,
    date: Option<String>,
}

impl Api {
    /// Answers every path so.
    pub(crate) fn new(answer: impl Fn(&str) -> Value + Send + Sync + 'static) -> Self {
        Self { answer: Arc::new(answer), asked: Arc::default(), date: None }
    }

    /// Its answers bear this date.
    pub(crate) fn dated(mut self, date: &str) -> Self {
        self.date = Some(date.to_owned());
        self
    }

    /// The methods of what it was asked.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

impl tower::Service<Request<Body>> for Api {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        self.asked.lock().unwrap().push(request.method().to_string());
        let body = (self.answer)(request.uri().path()).to_string().into_bytes();
        let mut answer = Response::new(Body::from(body));
        if let Some(date) = &self.date {
            answer.headers_mut().insert("date", date.parse().unwrap());
        }
        ready(Ok(answer))
    }
}
