use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use tonic::body::Body;
use tonic::codegen::http;
use tonic::server::{NamedService, UnaryService};
use tonic::{Request, Response, Status};

use super::*;

/// Kubelet with scripted responses, over a real socket.
#[derive(Clone, Default)]
pub(crate) struct FakeKubelet {
    pub(crate) list: Arc<Mutex<ListResponse>>,
    allocatable: Arc<Mutex<Option<AllocatableResponse>>>,
    broken: Arc<AtomicBool>,
}

impl NamedService for FakeKubelet {
    const NAME: &'static str = "v1.PodResourcesLister";
}

impl tower::Service<http::Request<Body>> for FakeKubelet {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            let answer = match request.uri().path() {
                LIST if !this.broken.load(Ordering::Relaxed) => {
                    let list = this.list.lock().unwrap().clone();
                    let codec: ProstCodec<ListResponse, Empty> = ProstCodec::default();
                    tonic::server::Grpc::new(codec).unary(StubResponse(Ok(list)), request).await
                }
                ALLOCATABLE => {
                    let output = this.allocatable.lock().unwrap().clone();
                    let output = output.ok_or_else(|| Status::unimplemented("an old kubelet"));
                    let codec: ProstCodec<AllocatableResponse, Empty> = ProstCodec::default();
                    tonic::server::Grpc::new(codec).unary(StubResponse(output), request).await
                }
                _ => Status::internal("device manager is not ready").into_http(),
            };
            Ok(answer)
        })
    }
}

struct StubResponse<T>(Result<T, Status>);

impl<T: Clone + Send + 'static> UnaryService<Empty> for StubResponse<T> {
    type Response = T;
    type Future = BoxFuture<'static, Result<Response<T>, Status>>;

    fn call(&mut self, _: Request<Empty>) -> Self::Future {
        let answer = self.0.clone().map(Response::new);
        Box::pin(async move { answer })
    }
}

pub(crate) fn serve(kubelet: FakeKubelet, socket: &Path) -> tokio::task::JoinHandle<()> {
    let listener = tokio::net::UnixListener::bind(socket).unwrap();
    let incoming = futures_util::stream::unfold(listener, |listener| async move {
        let stream = listener.accept().await.map(|(stream, _)| stream);
        Some((stream, listener))
    });
    tokio::spawn(async move {
        let server = tonic::transport::Server::builder().add_service(kubelet);
        server.serve_with_incoming(incoming.boxed()).await.unwrap();
    })
}

pub(crate) fn devices(resource: &str, ids: &[&str]) -> ContainerDevices {
    ContainerDevices {
        resource: resource.into(),
        ids: ids.iter().map(|id| (*id).to_owned()).collect(),
    }
}

pub(crate) fn pod(name: &str, containers: Vec<Vec<ContainerDevices>>) -> PodResources {
    let container = |devices| ContainerResources { name: "main".into(), devices };
    let containers = containers.into_iter().map(container).collect();
    PodResources { name: name.into(), namespace: "ml".into(), containers }
}

fn allocation(name: &str, ids: &[&str]) -> Allocation {
    let ids = ids.iter().map(|id| (*id).to_owned()).collect();
    Allocation { pod: PodName { namespace: "ml".into(), name: name.into() }, ids }
}

#[tokio::test]
async fn the_kubelet_tells_which_pod_has_which_gpu() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("kubelet.sock");
    let fake = FakeKubelet::default();
    fake.list.lock().unwrap().pods = vec![
        pod(
            "train",
            vec![
                vec![devices("nvidia.com/gpu", &["GPU-a"])],
                vec![devices("nvidia.com/gpu", &["GPU-b"])],
            ],
        ),
        pod("web", vec![vec![devices("example.com/nic", &["eth7"])], vec![]]),
        pod(
            "slice",
            vec![vec![
                devices("nvidia.com/mig-1g.5gb", &["MIG-1"]),
                devices("example.com/nic", &["eth8"]),
            ]],
        ),
    ];
    *fake.allocatable.lock().unwrap() = Some(AllocatableResponse {
        devices: vec![
            devices("nvidia.com/gpu", &["GPU-a", "GPU-b"]),
            devices("example.com/nic", &["eth7"]),
        ],
    });
    let server = serve(fake, &socket);
    let output = Kubelet::new(&socket).query_devices().await.unwrap();
    assert_eq!(
        output.allocations,
        [allocation("train", &["GPU-a", "GPU-b"]), allocation("slice", &["MIG-1"])]
    );
    assert_eq!(output.allocatable, ["GPU-a", "GPU-b"]);
    server.abort();
}

#[tokio::test]
async fn a_kubelet_that_fails_or_is_restarted_is_asked_again() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("kubelet.sock");
    let mut kubelet = Kubelet::new(&socket);
    assert!(matches!(kubelet.query_devices().await, Err(KubeletError::Absent(_))));

    let fake = FakeKubelet::default();
    fake.list.lock().unwrap().pods =
        vec![pod("a", vec![vec![devices("nvidia.com/gpu", &["GPU-a"])]])];
    let server = serve(fake.clone(), &socket);
    assert_eq!(kubelet.query_devices().await.unwrap().allocations, [allocation("a", &["GPU-a"])]);
    fake.broken.store(true, Ordering::Relaxed);
    let refused = kubelet.query_devices().await.unwrap_err().to_string();
    assert!(refused.contains("not ready"), "{refused}");
    fake.broken.store(false, Ordering::Relaxed);
    assert!(kubelet.query_devices().await.is_ok());

    server.abort();
    assert!(server.await.unwrap_err().is_cancelled());
    std::fs::remove_file(&socket).unwrap();
    let server = serve(fake, &socket);
    // The first call may use the closed connection.
    let mut output = kubelet.query_devices().await;
    if output.is_err() {
        output = kubelet.query_devices().await;
    }
    assert_eq!(output.unwrap().allocations.len(), 1);
    server.abort();
}
