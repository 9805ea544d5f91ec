//! The world against an API server that is played, act by act.

mod beginning;
mod foresee;
mod gangs;
mod life;
mod objects;
mod play;
mod property;
mod queues;
mod running;
mod server;
mod stage;
mod storage;
mod volumes;
mod workloads;
