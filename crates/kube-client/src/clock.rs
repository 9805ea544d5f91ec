use agentaflow_api::Stamp;

use super::{Cluster, Failure};

impl Cluster {
    /// Time of the API server in whole seconds; `None` if its responses carry no `Date` header.
    pub async fn server_time(&self) -> Result<Option<Stamp>, Failure> {
        let time = agentaflow_kube_core::server_time(&self.client).await?;
        Ok(time.map(|time| Stamp(time.as_millisecond())))
    }
}
