//! HTTPS ports of the scheduler, and the users of their requests.
//!
//! [`Port`] serves a router with the certificate that all replicas share. Users come from the API server as a front proxy
//! ([`FrontProxy`]); the API server decides about their [`Rights`].

mod certificate;
mod front_proxy;
mod name;
mod port;
mod rights;

pub use certificate::{Certificate, CertificateSource, SECRET};
pub use front_proxy::FrontProxy;
pub use port::{Port, ServeError, Trust};
pub use rights::{Access, Rights, User};
