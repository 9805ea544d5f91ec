//! Command lines of the components of a control plane.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::certificates::{FRONT_PROXY, FRONT_PROXY_AUTHORITY, files};
use super::options::Options;
use crate::repo;

/// Cluster IPs of services; no traffic goes there.
const SERVICE_ADDRESSES: &str = "10.96.0.0/16";

/// Address announced by the API server, from the block reserved for documentation (RFC 5737).
const ADVERTISED: &str = "192.0.2.1";

/// Enables the pod groups of Kubernetes, an alpha API.
const NATIVE_GROUPS: &str = "GenericWorkload=true";

/// Paths, ports and options that the command lines depend on.
pub(super) struct Layout<'a> {
    pub(super) programs: &'a Path,
    pub(super) dir: &'a Path,
    pub(super) ports: Ports,
    pub(super) options: &'a Options,
}

/// Ports on the loopback interface.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ports {
    pub(super) etcd: u16,
    pub(super) etcd_peers: u16,
    pub(super) server: u16,
    pub(super) controllers: u16,
    pub(super) scheduler: u16,
    pub(super) kwok: u16,
}

impl Layout<'_> {
    pub(super) fn certificates(&self) -> PathBuf {
        self.dir.join("certificates")
    }

    pub(super) fn kubeconfig(&self, client: &str) -> PathBuf {
        self.dir.join(format!("{client}.kubeconfig"))
    }

    pub(super) fn etcd(&self) -> Command {
        let clients = format!("http://127.0.0.1:{}", self.ports.etcd);
        let peers = format!("http://127.0.0.1:{}", self.ports.etcd_peers);
        let mut command = self.program("etcd");
        option(&mut command, "data-dir", self.dir.join("etcd").display());
        option(&mut command, "listen-client-urls", &clients);
        option(&mut command, "advertise-client-urls", &clients);
        option(&mut command, "listen-peer-urls", &peers);
        option(&mut command, "initial-advertise-peer-urls", &peers);
        option(&mut command, "initial-cluster", format!("default={peers}"));
        option(&mut command, "quota-backend-bytes", 8_u64 << 30);
        option(&mut command, "log-level", "warn");
        // The data need not survive a crash of the machine.
        command.arg("--unsafe-no-fsync");
        command
    }

    pub(super) fn server(&self) -> Command {
        let accounts = self.certificates().join("service-accounts.key");
        let mut command = self.program("kube-apiserver");
        option(&mut command, "etcd-servers", format!("http://127.0.0.1:{}", self.ports.etcd));
        self.serve(&mut command, self.ports.server);
        option(&mut command, "advertise-address", ADVERTISED);
        option(&mut command, "endpoint-reconciler-type", "none");
        option(&mut command, "client-ca-file", files(&self.certificates(), "ca").0.display());
        option(&mut command, "authorization-mode", "Node,RBAC");
        option(&mut command, "enable-admission-plugins", "NodeRestriction,PodNodeSelector");
        option(&mut command, "allow-privileged", true);
        option(&mut command, "feature-gates", NATIVE_GROUPS);
        option(&mut command, "runtime-config", "scheduling.k8s.io/v1alpha2=true");
        let (certificate, key) = files(&self.certificates(), "kubelet-client");
        option(&mut command, "kubelet-client-certificate", certificate.display());
        option(&mut command, "kubelet-client-key", key.display());
        option(
            &mut command,
            "kubelet-certificate-authority",
            files(&self.certificates(), "ca").0.display(),
        );
        option(&mut command, "kubelet-preferred-address-types", "InternalIP");
        option(&mut command, "service-cluster-ip-range", SERVICE_ADDRESSES);
        self.front_proxy(&mut command);
        option(&mut command, "service-account-issuer", "https://kubernetes.default.svc");
        option(&mut command, "service-account-key-file", accounts.display());
        option(&mut command, "service-account-signing-key-file", accounts.display());
        command
    }

    /// Adds the options of aggregated API servers, which are outside of the cluster network.
    fn front_proxy(&self, command: &mut Command) {
        let folder = self.certificates();
        let (certificate, key) = files(&folder, FRONT_PROXY);
        let authority = files(&folder, FRONT_PROXY_AUTHORITY).0;
        option(command, "proxy-client-cert-file", certificate.display());
        option(command, "proxy-client-key-file", key.display());
        option(command, "requestheader-client-ca-file", authority.display());
        option(command, "requestheader-allowed-names", FRONT_PROXY);
        option(command, "requestheader-username-headers", "X-Remote-User");
        option(command, "requestheader-group-headers", "X-Remote-Group");
        option(command, "requestheader-extra-headers-prefix", "X-Remote-Extra-");
        option(command, "enable-aggregator-routing", true);
    }

    pub(super) fn controllers(&self) -> Command {
        let (authority, authority_key) = files(&self.certificates(), "ca");
        let accounts = self.certificates().join("service-accounts.key");
        let mut command = self.program("kube-controller-manager");
        self.control(&mut command, "controller-manager", self.ports.controllers);
        option(&mut command, "root-ca-file", authority.display());
        option(&mut command, "cluster-signing-cert-file", authority.display());
        option(&mut command, "cluster-signing-key-file", authority_key.display());
        option(&mut command, "service-account-private-key-file", accounts.display());
        option(&mut command, "use-service-account-credentials", true);
        option(&mut command, "feature-gates", NATIVE_GROUPS);
        option(&mut command, "horizontal-pod-autoscaler-sync-period", "2s");
        option(&mut command, "node-monitor-period", "1s");
        option(&mut command, "node-monitor-grace-period", format!("{}s", self.options.grace()));
        command
    }

    pub(super) fn scheduler(&self) -> Command {
        let mut command = self.program("kube-scheduler");
        self.control(&mut command, "scheduler", self.ports.scheduler);
        command
    }

    pub(super) fn kwok(&self) -> Command {
        let mut command = self.program("kwok");
        option(&mut command, "kubeconfig", self.kubeconfig("kwok").display());
        option(&mut command, "manage-all-nodes", false);
        option(&mut command, "manage-nodes-with-annotation-selector", "kwok.x-k8s.io/node=fake");
        // The API server removes such a node from KWOK's watch, so its heartbeats stop at once.
        option(&mut command, "manage-nodes-with-label-selector", "kwok.agentaflow.io/dark!=true");
        // KWOK renews a lease after a quarter of its duration.
        option(&mut command, "node-lease-duration-seconds", self.options.grace());
        option(&mut command, "node-ip", "127.0.0.1");
        option(&mut command, "server-address", format!("127.0.0.1:{}", self.ports.kwok));
        for stage in STAGES {
            let file = repo::root().join("tests/kube/stages").join(stage);
            option(&mut command, "config", file.display());
        }
        // Keeps KWOK from reading settings in the home folder.
        command.env("KWOK_WORKDIR", self.dir.join("kwok"));
        command
    }

    fn program(&self, name: &str) -> Command {
        Command::new(self.programs.join(name))
    }

    /// Adds the options of an HTTPS port.
    fn serve(&self, command: &mut Command, port: u16) {
        let (certificate, key) = files(&self.certificates(), "server");
        option(command, "bind-address", "127.0.0.1");
        option(command, "secure-port", port);
        option(command, "tls-cert-file", certificate.display());
        option(command, "tls-private-key-file", key.display());
    }

    /// Adds the common options of controllers and scheduler.
    fn control(&self, command: &mut Command, client: &str, port: u16) {
        let kubeconfig = self.kubeconfig(client);
        self.serve(command, port);
        for name in ["kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"] {
            option(command, name, kubeconfig.display());
        }
        option(command, "leader-elect", false);
        option(command, "kube-api-qps", self.options.qps);
        option(command, "kube-api-burst", self.options.qps.saturating_mul(2));
    }
}

/// Lifecycles of nodes and pods, in `tests/kube/stages`.
const STAGES: [&str; 6] = [
    "node-ready.yaml",
    "pod-run.yaml",
    "pod-complete.yaml",
    "pod-fail.yaml",
    "pod-stop.yaml",
    "pod-delete.yaml",
];

fn option(command: &mut Command, name: &str, value: impl std::fmt::Display) {
    command.arg(format!("--{name}={value}"));
}
