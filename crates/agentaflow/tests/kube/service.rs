//! A scheduler that runs beside the cluster, reached as if it ran in it.

use std::net::{IpAddr, UdpSocket};

use serde_json::json;

use crate::support::{PodPlan, Scheduler, Share};

/// The service of the scheduler, as if it ran in the cluster: the API server only speaks to addresses that are not
/// the machine's own loopback.
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
    // It only passes on to addresses of pods.
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

/// The address by which this machine speaks to others. Nothing is sent to find it out.
fn own_address() -> IpAddr {
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
    socket.connect("192.0.2.254:9").expect("a way to others");
    socket.local_addr().expect("an address").ip()
}
