//! Binding of the port, with the name of the process that has it otherwise.

use std::fs;
use std::io::ErrorKind;
use std::net::SocketAddr;

use tokio::net::TcpListener;

use super::StartError;

pub(super) async fn bind(listen: SocketAddr) -> Result<TcpListener, StartError> {
    TcpListener::bind(listen).await.map_err(|source| match source.kind() {
        ErrorKind::AddrInUse => {
            StartError::PortInUse(in_use(listen, owner(listen.port()).as_deref()))
        }
        _ => StartError::Listen { listen, source },
    })
}

fn in_use(listen: SocketAddr, owner: Option<&str>) -> String {
    let port = listen.port();
    let by = owner.map_or_else(String::new, |owner| format!(" by {owner}"));
    let free = SocketAddr::new(listen.ip(), port.checked_add(1).unwrap_or(8000));
    format!(
        "port {port} of {} is in use{by}; stop that, or choose another port with `--listen {free}`",
        listen.ip()
    )
}

/// Process that listens on this port, if this user may see it.
fn owner(port: u16) -> Option<String> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"];
    let tables = tables.iter().filter_map(|path| fs::read_to_string(path).ok());
    let sockets: Vec<String> = tables.flat_map(|table| listening(&table, port)).collect();
    let processes = fs::read_dir("/proc").ok()?.flatten();
    for process in processes {
        let name = process.file_name();
        let Some(id) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let Ok(files) = fs::read_dir(process.path().join("fd")) else { continue };
        let mut links = files.flatten().filter_map(|file| fs::read_link(file.path()).ok());
        if links.any(|link| link.to_str().is_some_and(|link| sockets.iter().any(|own| own == link)))
        {
            let program = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            return Some(format!("`{}` (process {id})", program.trim()));
        }
    }
    None
}

/// Inodes of the sockets that listen on this port, from a table of the kernel.
fn listening(table: &str, port: u16) -> Vec<String> {
    const LISTEN: &str = "0A";
    let rows = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.filter_map(|row| {
        let [_, local, _, state, ..] = row.as_slice() else { return None };
        let own = local.rsplit_once(':')?.1;
        let fits = u16::from_str_radix(own, 16).ok()? == port && *state == LISTEN;
        fits.then(|| format!("socket:[{}]", row.get(9).copied().unwrap_or_default()))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_error_for_a_busy_port_names_its_process() {
        let first = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let taken = first.local_addr().unwrap();
        let words = bind(taken).await.unwrap_err().to_string();
        assert!(words.contains(&format!("port {}", taken.port())), "{words}");
        assert!(words.contains(&format!("(process {})", std::process::id())), "{words}");
        assert!(words.contains("--listen 127.0.0.1:"), "{words}");
    }

    #[test]
    fn the_kernels_table_is_read_for_listeners_only() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            0: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1\n\
            1: 0100007F:1F40 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 4712 1\n\
            garbage\n";
        assert_eq!(listening(table, 8000), ["socket:[4711]"]);
        assert!(listening(table, 8001).is_empty());
    }
}
