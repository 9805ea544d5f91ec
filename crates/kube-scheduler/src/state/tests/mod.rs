//! Tests of the state with a fake API server, action by action.

mod alerts;
mod fake_server;
mod foreign;
mod gangs;
mod harness;
mod losses;
mod metrics;
mod objects;
mod operations;
mod pods;
mod priorities;
mod property;
mod queues;
mod quota;
mod running;
mod scenario;
mod startup;
mod storage;
mod units;
mod volumes;
mod what_if;
mod workloads;
