# Menu of the development commands. All of them work without just: `cargo xtask help`.

# List the commands
default:
    @just --list --unsorted

# Build the program and start it: API, scheduler and one worker
run *ARGS:
    cargo xtask run {{ ARGS }}

# Check the current change: format, clippy, unit tests of changed crates
check *ARGS:
    cargo xtask check {{ ARGS }}

# Run every check of CI; `just test --only clippy` runs one phase, `--full` the release tier
test *ARGS:
    cargo xtask test {{ ARGS }}

# Benchmark the engine
bench *FILTER:
    cargo xtask bench {{ FILTER }}

# Benchmark the server: jobs per second, latency, memory
bench-server:
    cargo xtask bench-server

# Start PostgreSQL, Docker and Kubernetes for tests until Ctrl-C
services:
    cargo xtask services

# Run a Kubernetes control plane: `just kube up --nodes 10`, `just kube down`
kube *ARGS:
    cargo xtask kube {{ ARGS }}

# Format the code
fmt:
    cargo fmt --all

# Lint the code
lint:
    cargo xtask test --only fmt --only clippy

# Simulate a cluster; `just sim --help` lists the options
sim *ARGS:
    cargo run --release --quiet --package agentaflow -- simulate {{ ARGS }}
