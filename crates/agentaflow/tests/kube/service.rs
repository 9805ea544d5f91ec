//! A scheduler outside of the cluster, reachable as a service.

use std::net::{IpAddr, UdpSocket};

use serde_json::json;

use crate::support::{PodPlan, Scheduler, Share};

const NAME: &str = "agentaflow-scheduler-service";

/// Service of the scheduler. The API server proxies only to addresses outside of
/// the loopback network.
pub(crate) async fn serve_in_cluster(share: &Share, scheduler: &Scheduler) {
    let ports = [("http", 8080, scheduler.http), ("metrics", 9090, scheduler.metrics)];
    service(share, &ports).await;
}

/// Service with these ports: name, number, and port of a program on the loopback interface.
pub(crate) async fn service(share: &Share, ports: &[(&str, u16, u16)]) {
    let address = own_address();
    let (mut named, mut reached) = (Vec::new(), Vec::new());
    for (name, number, target) in ports {
        named.push(json!({"name": name, "port": number}));
        reached.push(json!({"name": name, "port": forward(address, *target).await}));
    }
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": NAME, "namespace": share.namespace},
        "spec": {"ports": named},
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
        "metadata": {"name": NAME, "namespace": share.namespace},
        "subsets": [{"addresses": [{"ip": address, "targetRef": pod}], "ports": reached}],
    });
    share.apply_object(service).await;
    share.apply_object(endpoints).await;
}

/// Forwards a port of this address to a port on the loopback interface.
async fn forward(address: IpAddr, target: u16) -> u16 {
    let listener = tokio::net::TcpListener::bind((address, 0)).await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        while let Ok((mut inside, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut outside = tokio::net::TcpStream::connect(("127.0.0.1", target)).await?;
                tokio::io::copy_bidirectional(&mut inside, &mut outside).await
            });
        }
    });
    port
}

/// Outbound address of this machine, found without sending packets.
fn own_address() -> IpAddr {
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
    socket.connect("192.0.2.254:9").expect("a way to others");
    socket.local_addr().expect("an address").ip()
}
