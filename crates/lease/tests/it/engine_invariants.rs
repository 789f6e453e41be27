//! Whatever is asked of the engine, in whatever order: the rules hold after every single command.

#![expect(clippy::unwrap_used, reason = "a test without its stage has failed")]

mod moves;
mod world;

use lease::engine::Options;
use leasehold_testkit::length;
use proptest::prelude::*;

use moves::{moves, options};
use world::World;

proptest! {
    #![proptest_config(ProptestConfig {
        cases: length::pick(400, 20_000),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// L1, L3, L6, L7, L8, L12, L14, L19 by invariants that are checked after each move: see
    /// `World::check`.
    #[test]
    fn l1_to_l19_hold_after_every_command(options in options(), moves in moves(80)) {
        let mut world = World::new(options);
        for step in &moves {
            world.play(step);
            world.check();
        }
        world.verify();
    }

    /// The same commands give the same answers and events: nothing in the engine is left to chance.
    #[test]
    fn the_same_commands_give_the_same_answers(options in options(), moves in moves(60)) {
        let play = || {
            let mut world = World::new(options.clone());
            for step in &moves {
                world.play(step);
            }
            world.transcript
        };
        prop_assert_eq!(play(), play());
    }

    /// L14: an engine built from what a store keeps is the same engine. Leases that lapse in the same
    /// moment may expire in another order, so each key's story is compared by itself.
    #[test]
    fn l14_a_restored_engine_goes_on_as_if_nothing_happened(
        before in moves(40),
        after in moves(40),
    ) {
        let mut one = World::new(Options::default());
        let mut other = World::new(Options::default());
        for step in before.iter().filter(|step| !step.waits()) {
            one.play(step);
            other.play(step);
        }
        other.restore();
        prop_assert_eq!(one.stored(), other.stored());
        for step in after.iter().filter(|step| !step.waits()) {
            one.play(step);
            other.play(step);
            one.check();
            other.check();
        }
        prop_assert_eq!(one.stories(), other.stories());
    }
}
