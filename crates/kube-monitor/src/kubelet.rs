//! Client of the kubelet's pod-resources socket (gRPC): the devices of each pod.
//!
//! The message types have only the fields in use; other fields are skipped.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::net::UnixStream;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use super::observation::{Allocation, PodName};

/// Default path of the socket.
pub const SOCKET: &str = "/var/lib/kubelet/pod-resources/kubelet.sock";

const LIST: &str = "/v1.PodResourcesLister/List";
const ALLOCATABLE: &str = "/v1.PodResourcesLister/GetAllocatableResources";

/// Prefix of NVIDIA's resources: GPUs, shared GPUs, MIG slices.
const NVIDIA: &str = "nvidia.com/";

/// Message limit of the kubelet's own clients.
const LARGEST_ANSWER: usize = 16 << 20;

/// Request timeout; a kubelet responds from memory.
const PATIENCE: Duration = Duration::from_secs(5);

/// The kubelet could not be queried.
#[derive(Debug, Error)]
pub enum KubeletError {
    /// Old kubelet, or the socket is not mounted.
    #[error("no pod-resources socket at `{}`", .0.display())]
    Absent(PathBuf),
    #[error("cannot reach the kubelet at `{}`", path.display())]
    Unreachable { path: PathBuf, source: tonic::transport::Error },
    #[error("the kubelet cannot list devices: {0}")]
    Refused(#[from] Box<tonic::Status>),
}

/// Kubelet of this node. Connects on first use, and again after a failure.
#[derive(Debug)]
pub struct Kubelet {
    socket: PathBuf,
    channel: Option<Channel>,
}

/// Devices reported by the kubelet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KubeletDevices {
    pub allocations: Vec<Allocation>,
    /// Device ids, in use or not; empty for kubelets that do not report them.
    pub allocatable: Vec<String>,
}

impl Kubelet {
    pub fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned(), channel: None }
    }

    /// Queries all NVIDIA devices.
    pub async fn query_devices(&mut self) -> Result<KubeletDevices, KubeletError> {
        let message = self.query_once().await;
        if message.is_err() {
            self.channel = None;
        }
        message
    }

    async fn query_once(&mut self) -> Result<KubeletDevices, KubeletError> {
        let channel = self.channel().await?;
        let listed: ListResponse = call(channel.clone(), LIST).await?;
        // Older kubelets lack this call; the allocations are sufficient.
        let can: AllocatableResponse = call(channel, ALLOCATABLE).await.unwrap_or_default();
        Ok(KubeletDevices {
            allocations: listed.pods.into_iter().filter_map(allocation).collect(),
            allocatable: nvidia(can.devices).collect(),
        })
    }

    async fn channel(&mut self) -> Result<Channel, KubeletError> {
        if let Some(channel) = &self.channel {
            return Ok(channel.clone());
        }
        if !self.socket.exists() {
            return Err(KubeletError::Absent(self.socket.clone()));
        }
        let path = self.socket.clone();
        let connect = tower::service_fn(move |_| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        });
        let channel = Endpoint::from_static("http://localhost")
            .timeout(PATIENCE)
            .connect_timeout(PATIENCE)
            .connect_with_connector(connect)
            .await
            .map_err(|source| KubeletError::Unreachable { path: self.socket.clone(), source })?;
        Ok(self.channel.insert(channel).clone())
    }
}

async fn call<T: prost::Message + Default + 'static>(
    channel: Channel,
    path: &'static str,
) -> Result<T, KubeletError> {
    let mut client = Grpc::new(channel).max_decoding_message_size(LARGEST_ANSWER);
    let refused = |status| KubeletError::Refused(Box::new(status));
    client.ready().await.map_err(|error| refused(tonic::Status::unavailable(error.to_string())))?;
    let codec: ProstCodec<Empty, T> = ProstCodec::default();
    let answer =
        client.unary(tonic::Request::new(Empty {}), PathAndQuery::from_static(path), codec).await;
    answer.map(tonic::Response::into_inner).map_err(refused)
}

fn allocation(pod: PodResources) -> Option<Allocation> {
    let ids: Vec<String> =
        pod.containers.into_iter().flat_map(|container| nvidia(container.devices)).collect();
    let pod = PodName { namespace: pod.namespace, name: pod.name };
    (!ids.is_empty()).then_some(Allocation { pod, ids })
}

fn nvidia(devices: Vec<ContainerDevices>) -> impl Iterator<Item = String> {
    let ours = devices.into_iter().filter(|devices| devices.resource.starts_with(NVIDIA));
    ours.flat_map(|devices| devices.ids)
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Empty {}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ListResponse {
    #[prost(message, repeated, tag = "1")]
    pub(super) pods: Vec<PodResources>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct PodResources {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) namespace: String,
    #[prost(message, repeated, tag = "3")]
    pub(super) containers: Vec<ContainerResources>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ContainerResources {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(message, repeated, tag = "2")]
    pub(super) devices: Vec<ContainerDevices>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ContainerDevices {
    #[prost(string, tag = "1")]
    pub(super) resource: String,
    #[prost(string, repeated, tag = "2")]
    pub(super) ids: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct AllocatableResponse {
    #[prost(message, repeated, tag = "1")]
    pub(super) devices: Vec<ContainerDevices>,
}

#[cfg(test)]
#[path = "kubelet_tests.rs"]
pub(super) mod tests;
