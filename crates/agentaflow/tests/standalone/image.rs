//! An image with a static shell, built without a registry.

use std::process::Command;

pub(crate) const IMAGE: &str = "agentaflow-test-busybox";

/// Builds the image from the static busybox of the machine, unless it exists.
pub(crate) fn make_image(socket: &str) {
    let script = format!(
        r#"set -e
        api() {{ curl -sS --fail-with-body --unix-socket "$SOCKET" "$@"; }}
        if api http://docker/images/{IMAGE}:latest/json > /dev/null 2>&1; then exit 0; fi
        busybox=$(command -v busybox) || {{ echo "busybox is missing; install busybox-static" >&2; exit 1; }}
        root=$(mktemp -d); trap 'rm -rf "$root"' EXIT
        mkdir -p "$root/bin" "$root/tmp"; chmod 1777 "$root/tmp"; cp "$busybox" "$root/bin/busybox"
        for name in sh sleep cat echo id true mkdir env tail; do ln -s busybox "$root/bin/$name"; done
        tar -C "$root" -cf - . | api -X POST -H 'Content-Type: application/x-tar' --data-binary @- \
            'http://docker/images/create?fromSrc=-&repo={IMAGE}&tag=latest' > /dev/null"#
    );
    let output = Command::new("sh").args(["-c", &script]).env("SOCKET", socket).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
