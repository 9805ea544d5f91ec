//! Replays a workload trace through the engine in virtual time.
