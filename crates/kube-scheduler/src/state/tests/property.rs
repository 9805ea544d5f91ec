//! Properties of random histories with delayed and reordered watch events: no pod is bound twice, no GPU is allocated
//! twice, the engine accepts every event, and in the end every pod starts that can.
//!
//! [`Harness`] checks the safety properties at every step. `PROPTEST_CASES` sets the number of cases, `PROPTEST_RNG_SEED`
//! the seed.

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};

use super::scenario::{Event, Scenario};

/// Index of pods among the kinds; storage kinds follow.
const POD: usize = 5;

/// Events with pods that wait for pre-provisioned volumes, reported early or late.
fn storing() -> impl Strategy<Value = Event> {
    let stored = (POD + 1..=POD + 2, 1..6_u8);
    prop_oneof![
        20 => confusion(),
        3 => stored.prop_map(|(kind, count)| Event::Tell { kind, count }),
        1 => (0..3_u8).prop_map(|node| Event::Volume { node }),
    ]
}

/// Events with lost responses, after which allocations may exceed capacity.
fn confusion() -> impl Strategy<Value = Event> {
    prop_oneof![30 => event(), 1 => Just(Event::Misunderstanding), 1 => Just(Event::LateCrash)]
}

fn event() -> impl Strategy<Value = Event> {
    let kind = || 0..=POD;
    prop_oneof![
        6 => (1..=2_u32, prop::option::weighted(0.3, 0..=10_u8), prop::bool::weighted(0.2))
            .prop_map(|(gpus, priority, owned)| Event::Pod { gpus, priority, owned }),
        6 => (0..3_u8).prop_map(|group| Event::Member { group }),
        2 => (1..=2_u32, any::<u8>()).prop_map(|(gpus, node)| Event::Theirs { gpus, node }),
        3 => (0..3_u8, 1..=3_u32).prop_map(|(group, least)| Event::Group { group, least }),
        1 => (0..3_u8).prop_map(|group| Event::NoGroup { group }),
        3 => (0..3_u8, 1..=2_u32, 0..=1_u32)
            .prop_map(|(name, gang, retries)| Event::Workload { name, gang, retries }),
        1 => (0..3_u8).prop_map(|name| Event::NoWorkload { name }),
        1 => (0..1_u8, 3..=4_u32).prop_map(|(name, gpus)| Event::Queue { name, gpus }),
        1 => (0..1_u8).prop_map(|name| Event::NoQueue { name }),
        2 => (0..3_u8).prop_map(|name| Event::Node { name }),
        1 => (0..3_u8).prop_map(|name| Event::NoNode { name }),
        3 => any::<u8>().prop_map(|pod| Event::Delete { pod }),
        4 => (any::<u8>(), any::<bool>()).prop_map(|(pod, well)| Event::End { pod, well }),
        2 => Just(Event::Kubelets),
        10 => (kind(), 1..6_u8).prop_map(|(kind, count)| Event::Tell { kind, count }),
        6 => (1..9_u8).prop_map(|count| Event::Tell { kind: POD, count }),
        2 => kind().prop_map(|kind| Event::Repeat { kind }),
        2 => kind().prop_map(|kind| Event::List { kind }),
        8 => Just(Event::Step),
        8 => (1..6_u8).prop_map(|count| Event::CarryOut { count }),
        2 => Just(Event::Refuse),
        2 => Just(Event::Deny),
        6 => (1..6_u8).prop_map(|count| Event::Answer { count }),
        3 => Just(Event::Settle),
        2 => (1..40_000_u64).prop_map(|milliseconds| Event::Pass { milliseconds }),
        1 => any::<bool>().prop_map(|pack| Event::Settings { pack }),
        2 => Just(Event::Crash),
    ]
}

fn cases(usual: u32) -> Config {
    let mut config = Config::default();
    if matches!(config.rng_seed, RngSeed::Random) {
        config.rng_seed = RngSeed::Fixed(42);
    }
    let cases = usual * config.cases / 256;
    Config { cases, max_shrink_iters: 20_000, failure_persistence: None, ..config }
}

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn no_gpu_is_allocated_twice_and_every_pod_starts_that_can(
        events in prop::collection::vec(event(), 1..120),
    ) {
        let mut scenario = Scenario::new();
        for event in events {
            scenario.harness(event);
        }
        scenario.end();
    }

    #[test]
    fn when_answers_are_lost_or_late_everything_starts_all_the_same(
        events in prop::collection::vec(confusion(), 1..120),
    ) {
        let mut scenario = Scenario::new();
        scenario.harness.confused = true;
        for event in events {
            scenario.harness(event);
        }
        scenario.end();
    }

    #[test]
    fn pods_that_wait_for_volumes_of_their_own_all_start_when_there_are_enough(
        events in prop::collection::vec(storing(), 1..120),
    ) {
        let mut scenario = Scenario::new();
        scenario.stores = true;
        scenario.harness.confused = true;
        for event in events {
            scenario.harness(event);
        }
        scenario.end();
    }
}
