//! A scheduler outside of the cluster, reachable as a service.

use std::net::{IpAddr, UdpSocket};

use serde_json::json;

use crate::support::{PodPlan, Scheduler, Share};

/// Service of the scheduler. The API server proxies only to addresses outside of
/// the loopback network.
pub(crate) async fn serve_in_cluster(share: &Share, scheduler: &Scheduler) {
    let address = own_address();
    let mut ports = Vec::new();
    for (name, port) in [("http", scheduler.http), ("metrics", scheduler.metrics)] {
        let listener = tokio::net::TcpListener::bind((address, 0)).await.expect("a port");
        ports
            .push(json!({"name": name, "port": listener.local_addr().expect("an address").port()}));
        tokio::spawn(async move {
            while let Ok((mut inside, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut outside = tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
                    tokio::io::copy_bidirectional(&mut inside, &mut outside).await
                });
            }
        });
    }
    let name = "agentaflow-scheduler-service";
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": share.namespace},
        "spec": {"ports": [{"name": "http", "port": 8080}, {"name": "metrics", "port": 9090}]},
    });
    // The API server proxies only to pod addresses.
    share.create_pod(&PodPlan::new("scheduler").scheduler("nobody")).await;
    let status =
        json!({"status": {"phase": "Running", "podIPs": [{"ip": address}], "podIP": address}});
    let path = format!("/api/v1/namespaces/{}/pods/scheduler/status", share.namespace);
    let answer = share.request("PATCH", &path, Some(&status)).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let pod = json!({"kind": "Pod", "namespace": share.namespace, "name": "scheduler"});
    let endpoints = json!({
        "apiVersion": "v1",
        "kind": "Endpoints",
        "metadata": {"name": name, "namespace": share.namespace},
        "subsets": [{"addresses": [{"ip": address, "targetRef": pod}], "ports": ports}],
    });
    share.apply_object(service).await;
    share.apply_object(endpoints).await;
}

/// Outbound address of this machine, found without sending packets.
fn own_address() -> IpAddr {
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
    socket.connect("192.0.2.254:9").expect("a way to others");
    socket.local_addr().expect("an address").ip()
}
