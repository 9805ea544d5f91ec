//! Tests of the state with a fake API server, action by action.

mod fake_server;
mod gangs;
mod harness;
mod objects;
mod pods;
mod property;
mod queues;
mod running;
mod scenario;
mod startup;
mod storage;
mod volumes;
mod what_if;
mod workloads;
