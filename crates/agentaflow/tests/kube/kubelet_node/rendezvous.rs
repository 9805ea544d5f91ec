//! Containers of a gang that meet over TCP, by the variables and the names of the gang.

use serde_json::json;

use super::real::{RealNode, lent, script};
use crate::PROGRAM;
use crate::plans::{WorkloadPlan, in_phase};
use crate::support::{Scheduler, Share, wait_for};

/// Rank 0 listens, rank 1 dials; each prints the greeting of the other.
const MEET: &str = "\
    if [ $RANK = 0 ]; then echo from rank 0 of $WORLD_SIZE | nc -l -p $MASTER_PORT; \
    else until echo from rank $RANK of $WORLD_SIZE | nc $MASTER_ADDR $MASTER_PORT > /tmp/met 2> /dev/null && \
    grep -q rank /tmp/met; do sleep 0.2; done; cat /tmp/met; fi";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes node"]
async fn the_pods_of_a_gang_meet_at_the_master_address() {
    let _lent = lent().await;
    let share = Share::new().await;
    let _node = RealNode::join(&share, 2).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    WorkloadPlan::new(&share, "meet", &script("", MEET)).spec("gangSize", 2).create(&share).await;
    let status = in_phase(&share, "meet", "Succeeded").await;
    assert_eq!(status["retries"].as_u64().unwrap_or(0), 0, "{status}");
    assert_eq!(share.log("meet-0").await.trim(), "from rank 1 of 2");
    assert_eq!(share.log("meet-1").await.trim(), "from rank 0 of 2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes node"]
async fn every_host_of_a_gang_resolves_in_its_containers() {
    let _lent = lent().await;
    let share = Share::new().await;
    let _node = RealNode::join(&share, 2).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    // The endpoints follow the start of the pods.
    let resolve = "\
        for host in $(echo $AGENTAFLOW_HOSTS | tr , ' '); do \
        until nslookup $host.$DOMAIN > /tmp/found; do sleep 0.2; done; echo $host; done; sleep 300";
    let mut pods = script("", resolve);
    let domain = format!("{}.svc.cluster.local", share.namespace);
    pods = pods.container("env", json!([{"name": "DOMAIN", "value": domain}]));
    WorkloadPlan::new(&share, "gang", &pods).spec("gangSize", 2).create(&share).await;
    for pod in ["gang-0", "gang-1"] {
        let expected = "gang-0.gang-gang\ngang-1.gang-gang";
        wait_for(&format!("{pod} resolves the hosts"), async || {
            let log = share.log(pod).await;
            if log.trim() == expected { Ok(()) } else { Err(log) }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a Kubernetes node"]
async fn the_containers_of_a_gang_read_the_host_file_of_mpi() {
    let _lent = lent().await;
    let share = Share::new().await;
    let _node = RealNode::join(&share, 2).await;
    let _scheduler = Scheduler::start(PROGRAM, &share, &[]).await;
    let read = script("", "cat $OMPI_MCA_orte_default_hostfile");
    WorkloadPlan::new(&share, "mpi", &read).spec("gangSize", 2).create(&share).await;
    in_phase(&share, "mpi", "Succeeded").await;
    for pod in ["mpi-0", "mpi-1"] {
        let expected = "mpi-0.mpi-gang slots=1\nmpi-1.mpi-gang slots=1";
        assert_eq!(share.log(pod).await.trim(), expected, "{pod}");
    }
}
