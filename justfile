# The menu. `cargo xtask run` and `cargo xtask test` work without just.

# List what there is
default:
    @just --list --unsorted

# Build the program and show it at work on a small demo cluster
run:
    cargo xtask run

# Check everything; `just test --only clippy` checks one thing
test *ARGS:
    cargo xtask test {{ ARGS }}

# Measure the speed of the engine
bench *FILTER:
    cargo xtask bench {{ FILTER }}

# Format the code
fmt:
    cargo fmt --all

# Lint the code
lint:
    cargo xtask test --only fmt --only clippy

# Simulate a cluster; `just sim --help` lists the options
sim *ARGS:
    cargo run --release --quiet --package agentaflow -- simulate {{ ARGS }}
