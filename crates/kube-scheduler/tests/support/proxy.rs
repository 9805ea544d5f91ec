//! A proxy between a program under test and the API server that can cut connections or drop responses.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use kube::config::Kubeconfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Forwards connections to the API server; TLS passes through.
pub(crate) struct Proxy {
    state: watch::Sender<State>,
    cuts: watch::Sender<u32>,
    target: Arc<Mutex<String>>,
    port: u16,
    kubeconfig: Kubeconfig,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Plugged,
    /// Cut and refused.
    Unplugged,
    /// Open without traffic, as after the failure of a switch.
    Silent,
    /// New requests arrive; their responses are dropped. Open watches continue.
    Unanswered,
}

impl Proxy {
    /// A proxy to the API server of a kubeconfig.
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
        let (state, cuts) = (watch::Sender::new(State::Plugged), watch::Sender::new(0));
        let target = target.trim_start_matches("https://").trim_end_matches('/').to_owned();
        let target = Arc::new(Mutex::new(target));
        let cable =
            Cable { state: state.subscribe(), cuts: cuts.subscribe(), target: Arc::clone(&target) };
        tokio::spawn(serve(listener, cable));
        Self { state, cuts, target, port, kubeconfig }
    }

    /// Writes a kubeconfig for the proxy.
    pub(crate) fn write_kubeconfig(&self, file: PathBuf) -> PathBuf {
        let text = serde_json::to_vec(&self.kubeconfig).expect("a kubeconfig");
        std::fs::write(&file, text).expect("a kubeconfig of its own");
        file
    }

    /// Cuts every connection, and refuses new ones.
    pub(crate) fn unplug(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
        self.state.send_replace(State::Unplugged);
    }

    /// Keeps connections open without traffic.
    pub(crate) fn silence(&self) {
        self.state.send_replace(State::Silent);
    }

    /// Drops responses to new requests. Open watches continue.
    pub(crate) fn lose_answers(&self) {
        self.state.send_replace(State::Unanswered);
    }

    pub(crate) fn plug(&self) {
        self.state.send_replace(State::Plugged);
    }

    /// Switches to another server on the loopback; open connections are cut.
    pub(crate) fn redirect(&self, port: u16) {
        *self.target.lock().expect("no holder panicked") = format!("127.0.0.1:{port}");
        self.cuts.send_modify(|cuts| *cuts += 1);
    }
}

#[derive(Clone)]
struct Cable {
    state: watch::Receiver<State>,
    /// Number of cuts of all connections.
    cuts: watch::Receiver<u32>,
    target: Arc<Mutex<String>>,
}

async fn serve(listener: TcpListener, cable: Cable) {
    while let Ok((near, _)) = listener.accept().await {
        let mut cable = cable.clone();
        cable.cuts.mark_unchanged();
        if *cable.state.borrow() == State::Unplugged {
            continue;
        }
        tokio::spawn(async move {
            let target = cable.target.lock().expect("no holder panicked").clone();
            if let Ok(far) = TcpStream::connect(&target).await {
                pass(near, far, cable).await;
            }
        });
    }
}

/// Forwards a connection until one side or the proxy ends it.
async fn pass(near: TcpStream, far: TcpStream, mut cable: Cable) {
    let (near_in, near_out) = split(near);
    let (far_in, far_out) = split(far);
    // True after a request whose response is to be dropped.
    let asked = watch::Sender::new(false);
    let state = cable.state;
    tokio::select! {
        () = forward_requests(near_in, far_out, state.clone(), &asked) => {}
        () = forward_responses(far_in, near_out, state, asked.subscribe()) => {}
        _ = cable.cuts.changed() => {}
    }
}

async fn forward_requests(
    mut from: ReadHalf<TcpStream>,
    mut to: WriteHalf<TcpStream>,
    mut state: watch::Receiver<State>,
    asked: &watch::Sender<bool>,
) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        if state.wait_for(|state| *state != State::Silent).await.is_err() {
            return;
        }
        if *state.borrow() == State::Unanswered {
            asked.send_replace(true);
        }
        if to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}

async fn forward_responses(
    mut from: ReadHalf<TcpStream>,
    mut to: WriteHalf<TcpStream>,
    mut state: watch::Receiver<State>,
    asked: watch::Receiver<bool>,
) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        if state.wait_for(|state| *state != State::Silent).await.is_err() {
            return;
        }
        // The server has executed the request; the connection closes without a response.
        if *asked.borrow() || to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}
