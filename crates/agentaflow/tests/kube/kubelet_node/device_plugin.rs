//! A fake device plugin for a real kubelet on a machine without GPUs.
//!
//! It implements the `v1beta1` protocol: it registers, lists devices, and sets the environment of a container
//! as the NVIDIA plugin does. The messages have only the required fields.

use std::collections::HashMap;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use hyper_util::rt::TokioIo;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::body::Body;
use tonic::codegen::http;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::server::{Grpc, NamedService, ServerStreamingService, UnaryService};
use tonic::transport::Endpoint;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

const RESOURCE: &str = "nvidia.com/gpu";

/// A plugin that serves until it is dropped.
pub(super) struct DevicePlugin {
    played: Played,
    socket: PathBuf,
    server: JoinHandle<()>,
}

#[derive(Clone)]
struct Played {
    devices: watch::Sender<Vec<String>>,
    /// Number of allocations to reject, as with a failing driver.
    refusals: Arc<Mutex<u32>>,
}

impl DevicePlugin {
    /// Registers with the kubelet of this socket directory.
    pub(super) async fn register(folder: &Path, name: &str, devices: &[String]) -> Self {
        let socket = folder.join(format!("{name}.sock"));
        let played =
            Played { devices: watch::Sender::new(devices.to_vec()), refusals: Arc::default() };
        let server = serve(played.clone(), &socket);
        let wish = RegisterRequest {
            version: "v1beta1".to_owned(),
            endpoint: format!("{name}.sock"),
            resource_name: RESOURCE.to_owned(),
            options: Some(Options::default()),
        };
        register(&folder.join("kubelet.sock"), wish).await;
        Self { played, socket, server }
    }

    /// Rejects the next allocation.
    pub(super) fn refuse_next(&self) {
        *self.played.refusals.lock().unwrap() += 1;
    }

    /// Remaining allocations to reject.
    pub(super) fn refusals(&self) -> u32 {
        *self.played.refusals.lock().unwrap()
    }
}

impl Drop for DevicePlugin {
    fn drop(&mut self) {
        self.server.abort();
        let _ = std::fs::remove_file(&self.socket);
    }
}

async fn register(kubelet: &Path, wish: RegisterRequest) {
    let path = kubelet.to_owned();
    let connect = tower::service_fn(move |_| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    let channel = Endpoint::from_static("http://localhost").connect_with_connector(connect).await;
    let mut client = tonic::client::Grpc::new(channel.expect("the kubelet's socket"));
    client.ready().await.expect("the kubelet is ready");
    let codec: ProstCodec<RegisterRequest, Empty> = ProstCodec::default();
    let path = PathAndQuery::from_static("/v1beta1.Registration/Register");
    client.unary(Request::new(wish), path, codec).await.expect("the kubelet takes the plugin");
}

fn serve(played: Played, socket: &Path) -> JoinHandle<()> {
    let listener = UnixListener::bind(socket).expect("a socket for the plugin");
    let incoming = futures_util::stream::unfold(listener, |listener| async move {
        let stream = listener.accept().await.map(|(stream, _)| stream);
        Some((stream, listener))
    });
    tokio::spawn(async move {
        let server = tonic::transport::Server::builder().add_service(played);
        server.serve_with_incoming(incoming.boxed()).await.expect("the plugin serves");
    })
}

impl NamedService for Played {
    const NAME: &'static str = "v1beta1.DevicePlugin";
}

impl tower::Service<http::Request<Body>> for Played {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let played = self.clone();
        Box::pin(async move {
            let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
            Ok(match method.as_str() {
                "GetDevicePluginOptions" => {
                    let codec: ProstCodec<Options, Empty> = ProstCodec::default();
                    Grpc::new(codec).unary(Ask, request).await
                }
                "ListAndWatch" => {
                    let codec: ProstCodec<ListAndWatchResponse, Empty> = ProstCodec::default();
                    Grpc::new(codec).server_streaming(List(played), request).await
                }
                "GetPreferredAllocation" => {
                    let codec: ProstCodec<PreferredResponse, PreferredRequest> =
                        ProstCodec::default();
                    Grpc::new(codec).unary(Prefer, request).await
                }
                "Allocate" => {
                    let codec: ProstCodec<AllocateResponse, AllocateRequest> =
                        ProstCodec::default();
                    Grpc::new(codec).unary(Allocate(played), request).await
                }
                _ => Status::unimplemented("not played").into_http(),
            })
        })
    }
}

/// The plugin has preferred allocations.
struct Ask;

impl UnaryService<Empty> for Ask {
    type Response = Options;
    type Future = BoxFuture<'static, Result<Response<Options>, Status>>;

    fn call(&mut self, _: Request<Empty>) -> Self::Future {
        Box::pin(async { Ok(Response::new(Options { prefers: true, ..Options::default() })) })
    }
}

struct List(Played);

impl ServerStreamingService<Empty> for List {
    type Response = ListAndWatchResponse;
    type ResponseStream = BoxStream<'static, Result<ListAndWatchResponse, Status>>;
    type Future = BoxFuture<'static, Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, _: Request<Empty>) -> Self::Future {
        let mut devices = self.0.devices.subscribe();
        devices.mark_changed();
        let news = futures_util::stream::unfold(devices, |mut devices| async move {
            devices.changed().await.ok()?;
            let healthy = |id: &String| Device { id: id.clone(), health: "Healthy".to_owned() };
            let list = devices.borrow_and_update().iter().map(healthy).collect();
            Some((Ok(ListAndWatchResponse { devices: list }), devices))
        });
        Box::pin(async move { Ok(Response::new(news.boxed())) })
    }
}

/// Prefers the last devices; the scheduler plans the first, so the test can distinguish both.
struct Prefer;

impl UnaryService<PreferredRequest> for Prefer {
    type Response = PreferredResponse;
    type Future = BoxFuture<'static, Result<Response<PreferredResponse>, Status>>;

    fn call(&mut self, request: Request<PreferredRequest>) -> Self::Future {
        let prefer = |mut wish: PreferredContainerRequest| {
            wish.available.sort();
            let wanted = usize::try_from(wish.size).unwrap_or(0);
            let devices = wish.available.into_iter().rev().take(wanted).collect();
            ContainerDevices { devices }
        };
        let containers = request.into_inner().containers.into_iter().map(prefer).collect();
        Box::pin(async move { Ok(Response::new(PreferredResponse { containers })) })
    }
}

struct Allocate(Played);

impl UnaryService<AllocateRequest> for Allocate {
    type Response = AllocateResponse;
    type Future = BoxFuture<'static, Result<Response<AllocateResponse>, Status>>;

    fn call(&mut self, request: Request<AllocateRequest>) -> Self::Future {
        let mut refusals = self.0.refusals.lock().unwrap();
        let refused = *refusals > 0;
        *refusals = refusals.saturating_sub(1);
        let give = |wish: ContainerDevices| {
            let visible = ("NVIDIA_VISIBLE_DEVICES".to_owned(), wish.devices.join(","));
            ContainerAllocateResponse { envs: HashMap::from([visible]) }
        };
        let containers = request.into_inner().containers.into_iter().map(give).collect();
        Box::pin(async move {
            if refused {
                return Err(Status::internal("the driver does not answer"));
            }
            Ok(Response::new(AllocateResponse { containers }))
        })
    }
}

#[derive(Clone, PartialEq, prost::Message)]
struct Empty {}

#[derive(Clone, PartialEq, prost::Message)]
struct RegisterRequest {
    #[prost(string, tag = "1")]
    version: String,
    #[prost(string, tag = "2")]
    endpoint: String,
    #[prost(string, tag = "3")]
    resource_name: String,
    #[prost(message, optional, tag = "4")]
    options: Option<Options>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Options {
    #[prost(bool, tag = "1")]
    prepares: bool,
    #[prost(bool, tag = "2")]
    prefers: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ListAndWatchResponse {
    #[prost(message, repeated, tag = "1")]
    devices: Vec<Device>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Device {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(string, tag = "2")]
    health: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PreferredRequest {
    #[prost(message, repeated, tag = "1")]
    containers: Vec<PreferredContainerRequest>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PreferredContainerRequest {
    #[prost(string, repeated, tag = "1")]
    available: Vec<String>,
    #[prost(int32, tag = "3")]
    size: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PreferredResponse {
    #[prost(message, repeated, tag = "1")]
    containers: Vec<ContainerDevices>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct AllocateRequest {
    #[prost(message, repeated, tag = "1")]
    containers: Vec<ContainerDevices>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ContainerDevices {
    #[prost(string, repeated, tag = "1")]
    devices: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct AllocateResponse {
    #[prost(message, repeated, tag = "1")]
    containers: Vec<ContainerAllocateResponse>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ContainerAllocateResponse {
    #[prost(map = "string, string", tag = "1")]
    envs: HashMap<String, String>,
}
