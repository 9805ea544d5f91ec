//! Networks of containers.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::time::Duration;

use bollard::query_parameters::{ListNetworksOptions, RemoveContainerOptions};

use agentaflow_agent::runtime::{Launch, Runtime};
use agentaflow_api::link::{Gang, TaskKey};

use crate::bench::{Bench, connect, name, output, settings, until};
use crate::skip::skip;

/// Task of a gang: `job` is a task of the same job, if any.
fn member(bench: &Bench, script: &str, of: Option<&Launch>, gang: Gang) -> Launch {
    let mut launch = bench.launch(script);
    if let Some(first) = of {
        launch.assignment.key = TaskKey { task: 1, ..first.assignment.key };
        launch.dir = bench.state.path().join(format!("tasks/{}", launch.assignment.key));
        fs::create_dir_all(&launch.dir).unwrap();
    }
    launch.assignment.gang = Some(gang);
    let port = gang.master_port.to_string();
    // An address that no host has.
    for (name, value) in [("MASTER_ADDR", "192.0.2.9"), ("MASTER_PORT", port.as_str())] {
        launch.env.push((name.to_owned(), value.to_owned()));
    }
    launch
}

async fn address(bench: &Bench, launch: &Launch) -> String {
    let found = bench.inspect(launch.assignment.key).await;
    let networks = found.network_settings.unwrap().networks.unwrap();
    networks.into_values().find_map(|network| network.ip_address).unwrap()
}

async fn gateway(bench: &Bench, launch: &Launch) -> String {
    let found = bench.inspect(launch.assignment.key).await;
    let networks = found.network_settings.unwrap().networks.unwrap();
    networks.into_values().find_map(|network| network.gateway).unwrap()
}

async fn networks(bench: &Bench, key: TaskKey) -> Vec<String> {
    let all = bench.client.list_networks(None::<ListNetworksOptions>).await.unwrap();
    let ours = format!("-{}-{}", key.job, key.epoch);
    all.into_iter()
        .filter_map(|network| network.name)
        .filter(|name| name.ends_with(&ours))
        .collect()
}

const CLIENT: &str = "for i in $(seq 1 50); do \
                      echo hello | nc -w 2 $MASTER_ADDR $MASTER_PORT && exit 0; sleep 0.1; done; exit 1";

#[tokio::test]
#[ignore = "needs a Docker engine; `cargo xtask test` starts one"]
async fn docker_tasks_of_a_gang_on_one_host_meet_over_tcp() {
    let bench = Bench::new().await;
    let gang = Gang { master_port: 29_511, master_here: true, spans_nodes: false };
    let master = member(&bench, "nc -l -p $MASTER_PORT", None, gang);
    let worker = member(&bench, CLIENT, Some(&master), gang);
    bench.start(&worker).await;
    bench.start(&master).await;
    assert_eq!(bench.docker.wait(worker.assignment.key).await.unwrap().code, Some(0));
    assert_eq!(bench.docker.wait(master.assignment.key).await.unwrap().code, Some(0));
    assert_eq!(output(&master), "hello\n");
    // The network goes with the last container of the job.
    let key = master.assignment.key;
    bench.docker.remove(key).await;
    assert_eq!(networks(&bench, key).await.len(), 1);
    bench.docker.remove(worker.assignment.key).await;
    assert_eq!(networks(&bench, key).await, [""; 0]);
}

#[tokio::test]
#[ignore = "needs a Docker engine; `cargo xtask test` starts one"]
async fn docker_the_master_of_a_gang_on_several_hosts_is_reachable_through_its_host() {
    let bench = Bench::new().await;
    let gang = Gang { master_port: 29_512, master_here: true, spans_nodes: true };
    let master = member(&bench, "echo welcome | nc -l -p $MASTER_PORT", None, gang);
    bench.start(&master).await;
    // This test plays the task on another host.
    let host = own_address();
    let mut text = String::new();
    for _ in 0..50 {
        if let Ok(mut stream) = TcpStream::connect((host, gang.master_port)) {
            stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            let _ = stream.write_all(b"hello\n");
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let _ = stream.read_to_string(&mut text);
        }
        if !text.is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(text, "welcome\n");
    assert_eq!(bench.docker.wait(master.assignment.key).await.unwrap().code, Some(0));
    assert_eq!(output(&master), "hello\n");
}

#[tokio::test]
#[ignore = "needs a Docker engine; `cargo xtask test` starts one"]
async fn docker_a_job_cannot_reach_a_container_of_another_job() {
    let bench = Bench::new().await;
    let gang = Gang { master_port: 29_513, master_here: true, spans_nodes: false };
    let first = member(&bench, "nc -l -p 7000; sleep 60", None, gang);
    bench.start(&first).await;
    let address = address(&bench, &first).await;
    let script = format!("echo intruder | nc -w 2 {address} 7000 && echo reached; exit 0");
    let stranger = bench.launch(&script);
    bench.run(&stranger).await;
    let rules = || {
        let rules = Command::new("iptables").args(["-w", "-S"]).output().unwrap().stdout;
        let routes = Command::new("ip").arg("route").output().unwrap().stdout;
        format!("{}{}", String::from_utf8_lossy(&rules), String::from_utf8_lossy(&routes))
    };
    let seen = output(&stranger);
    assert!(!seen.contains("reached"), "{seen} from {address}; {}", rules());
    let mate = format!(
        "for i in $(seq 1 50); do echo mate | nc -w 2 {address} 7000 && exit 0; sleep 0.1; done; exit 1"
    );
    let mate = member(&bench, &mate, Some(&first), gang);
    assert_eq!(bench.run(&mate).await.code, Some(0), "{address}; {}", rules());
    until(|| output(&first) == "mate\n").await;
}

#[tokio::test]
#[ignore = "needs a Docker engine; `cargo xtask test` starts one"]
async fn docker_containers_reach_services_of_the_host_only_if_allowed() {
    let iptables = Command::new("iptables").arg("-w").args(["-S", "INPUT"]).output();
    if !rustix::process::geteuid().is_root() || !iptables.is_ok_and(|done| done.status.success()) {
        skip!("needs root and iptables");
    }
    for allowed in [false, true] {
        let bench = Bench::with(|settings| settings.allow_host_access = allowed).await;
        let listener = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            while let Ok((mut stream, _)) = listener.accept() {
                let _ = stream.write_all(b"service of the host\n");
            }
        });
        let script = format!(
            "read gateway < /agentaflow/out/gateway; nc -w 2 $gateway {port} < /dev/null; \
             nc -w 2 {} {port} < /dev/null; exit 0",
            own_address()
        );
        let waiting = format!("until [ -s /agentaflow/out/gateway ]; do sleep 0.1; done; {script}");
        let launch = bench.launch(&waiting);
        bench.start(&launch).await;
        fs::write(launch.dir.join("out/gateway"), format!("{}\n", gateway(&bench, &launch).await))
            .unwrap();
        bench.docker.wait(launch.assignment.key).await.unwrap();
        let seen = output(&launch).matches("service of the host").count();
        assert_eq!(seen, if allowed { 2 } else { 0 }, "{}", output(&launch));
    }
    for address in ["169.254.0.0/16", "100.100.100.200/32", "168.63.129.16/32"] {
        let rule = ["-w", "-C", "DOCKER-USER", "-i", "aafc+", "-d", address, "-j", "REJECT"];
        assert!(Command::new("iptables").args(rule).status().unwrap().success(), "{address}");
    }
}

/// Interface with the metadata address of clouds; removed when dropped.
struct MetadataInterface;

impl MetadataInterface {
    const NAME: &str = "aaftest0";
    const ADDRESS: &str = "169.254.169.254";

    fn new() -> Option<Self> {
        let ip = |args: &[&str]| {
            Command::new("ip").args(args).output().is_ok_and(|done| done.status.success())
        };
        if !ip(&["link", "add", Self::NAME, "type", "bridge"]) {
            return None;
        }
        let interface = Self;
        let address = format!("{}/32", Self::ADDRESS);
        let up = ip(&["addr", "add", &address, "dev", Self::NAME])
            && ip(&["link", "set", Self::NAME, "up"]);
        up.then_some(interface)
    }
}

impl Drop for MetadataInterface {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["link", "delete", Self::NAME]).output();
    }
}

#[tokio::test]
#[ignore = "needs a Docker engine; `cargo xtask test` starts one"]
async fn docker_containers_reach_the_metadata_of_a_cloud_only_if_allowed() {
    let Some(_interface) = MetadataInterface::new() else {
        skip!("needs root and an interface with the metadata address");
    };
    let listener = TcpListener::bind((MetadataInterface::ADDRESS, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = stream.write_all(b"credentials of the host\n");
        }
    });
    for allowed in [true, false] {
        let bench = Bench::with(|settings| settings.allow_host_access = allowed).await;
        let script = format!("nc -w 2 {} {port} < /dev/null; exit 0", MetadataInterface::ADDRESS);
        let launch = bench.launch(&script);
        bench.run(&launch).await;
        assert_eq!(output(&launch).contains("credentials"), allowed, "{}", output(&launch));
    }
}

#[tokio::test]
#[ignore = "needs a Docker engine; `cargo xtask test` starts one"]
async fn docker_a_network_that_a_killed_agent_left_is_removed_by_the_next() {
    let bench = Bench::new().await;
    let launch = bench.launch("true");
    let key = launch.assignment.key;
    bench.run(&launch).await;
    assert_eq!(networks(&bench, key).await.len(), 1);
    let options = RemoveContainerOptions { force: true, ..RemoveContainerOptions::default() };
    bench.client.remove_container(&name(key), Some(options)).await.unwrap();
    connect(settings(bench.state.path())).await;
    assert_eq!(networks(&bench, key).await, [""; 0]);
}

/// Address of this host in its network.
fn own_address() -> std::net::IpAddr {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    match socket.connect("192.0.2.1:9").and_then(|()| socket.local_addr()) {
        Ok(address) => address.ip(),
        Err(_) => Ipv4Addr::LOCALHOST.into(),
    }
}
