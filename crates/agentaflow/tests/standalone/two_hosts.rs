//! A gang of containers on two hosts: two Docker engines in network namespaces that a cable joins, each with its agent.

use std::collections::BTreeSet;

use serde_json::json;

use crate::docker::RENDEZVOUS;
use crate::docker_host::DockerHost;
use crate::harness::Cluster;
use crate::image::IMAGE;
use crate::skip::skip;

/// Containers are in networks of the job, behind the firewall of their host; only the port of the master is published.
#[test]
#[ignore = "needs a Docker engine: AGENTAFLOW_TEST_DOCKER"]
fn docker_containers_of_a_gang_on_two_hosts_meet_at_the_published_port_of_the_master() {
    if let Some(missing) = DockerHost::missing() {
        skip!("{missing}");
    }
    let hosts = [("left", DockerHost::start()), ("right", DockerHost::start())];
    hosts[0].1.connect(&hosts[1].1);
    let mut cluster = Cluster::server_at("0.0.0.0", &["--insecure"]);
    for (name, host) in &hosts {
        cluster.set_agent_network(name, host.network());
        let server = format!("http://{}:{}", host.gateway(), cluster.port);
        let socket = host.socket();
        let options = ["--runtime", "docker", "--docker-socket", &socket, "--max-jobs", "1"];
        cluster.agent_at(name, &server, &options);
    }
    cluster.wait_for_nodes(2);
    let script = format!("echo $MASTER_ADDR; {RENDEZVOUS}");
    let job = json!({
        "docker_image": IMAGE, "command": ["/bin/sh", "-c", script], "replicas": 2,
    });
    let id = cluster.post("/gpu-workers/jobs/", &job).ok()["id"].as_i64().unwrap();
    let job = cluster.wait_for(id, "ended", |job| job["completed_at"].is_string());
    let log = |task: u32| cluster.get(&format!("/gpu-workers/jobs/{id}/logs?task={task}")).body;
    let (first, second) = (log(0), log(1));
    assert_eq!(job["status"], "completed", "{job:#}\n{first}\n{second}");
    assert!(second.contains("welcome to 2"), "{first}\n{second}");
    // Task 1 names the host of task 0, which another host reaches.
    let addresses: BTreeSet<String> =
        hosts.iter().map(|(_, host)| host.address().to_string()).collect();
    let master = second.lines().next().unwrap_or_default();
    assert!(addresses.contains(master), "{second}");
    drop(cluster);
}
