//! A cable between a program under test and the API server that can be pulled.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kube::config::Kubeconfig;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Passes connections on to the API server, while it is plugged in. TLS goes through it untouched.
pub(crate) struct Proxy {
    plugged: Arc<watch::Sender<bool>>,
    port: u16,
    kubeconfig: Kubeconfig,
}

impl Proxy {
    /// A proxy to the API server of a kubeconfig, plugged in.
    pub(crate) async fn start(kubeconfig: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let mut kubeconfig = Kubeconfig::read_from(kubeconfig).expect("the kubeconfig can be read");
        let mut target = String::new();
        for cluster in &mut kubeconfig.clusters {
            let server = cluster.cluster.as_mut().and_then(|cluster| cluster.server.as_mut());
            let server = server.expect("the address of a server");
            target = std::mem::replace(server, format!("https://127.0.0.1:{port}"));
        }
        let plugged = Arc::new(watch::Sender::new(true));
        let target = target.trim_start_matches("https://").trim_end_matches('/').to_owned();
        tokio::spawn(serve(listener, target, Arc::clone(&plugged)));
        Self { plugged, port, kubeconfig }
    }

    /// Writes the kubeconfig that goes through the proxy.
    pub(crate) fn write_kubeconfig(&self, file: PathBuf) -> PathBuf {
        let text = serde_json::to_vec(&self.kubeconfig).expect("a kubeconfig");
        std::fs::write(&file, text).expect("a kubeconfig of its own");
        file
    }

    /// Cuts every connection, and refuses new ones.
    pub(crate) fn unplug(&self) {
        self.plugged.send_replace(false);
    }

    pub(crate) fn plug(&self) {
        self.plugged.send_replace(true);
    }
}

async fn serve(listener: TcpListener, target: String, plugged: Arc<watch::Sender<bool>>) {
    while let Ok((mut near, _)) = listener.accept().await {
        let mut state = plugged.subscribe();
        if !*state.borrow() {
            continue;
        }
        let target = target.clone();
        tokio::spawn(async move {
            let Ok(mut far) = TcpStream::connect(&target).await else { return };
            tokio::select! {
                // Whichever side ends it: the other one sees the end.
                _ = copy_bidirectional(&mut near, &mut far) => {}
                _ = state.wait_for(|plugged| !plugged) => {}
            }
        });
    }
}
