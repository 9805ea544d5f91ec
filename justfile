# The menu. `cargo xtask run` and `cargo xtask test` work without just.

# List what there is
default:
    @just --list --unsorted

# Build the program and start it: API, scheduler and one worker
run *ARGS:
    cargo xtask run {{ ARGS }}

# Check everything; `just test --only clippy` checks one thing
test *ARGS:
    cargo xtask test {{ ARGS }}

# Measure the speed of the engine
bench *FILTER:
    cargo xtask bench {{ FILTER }}

# Measure the server: jobs a second, latency, memory
bench-server:
    cargo xtask bench-server

# Start a PostgreSQL and a Docker engine for tests, until Ctrl-C
services:
    cargo xtask services

# A Kubernetes control plane here; `just kube up --nodes 10`, `just kube down`
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
