//! Random sequences of commands, played on a store and on the kernel's engine as its oracle: both
//! must answer the same.
//!
//! Where time stands still until it is moved, everything is compared to the millisecond. Where time
//! runs by itself, leases are either so long that they never lapse during a run, or so short that
//! the run waits for their end before it goes on, so that time never decides an answer.

mod ledger;
mod moves;
mod run;

use leasehold_testkit::length;
use proptest::{
    strategy::{Strategy as _, ValueTree},
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};

use super::Harness;
use moves::Move;
use run::Run;

/// How many sequences are played, whatever the length of the tests: `LEASEHOLD_ORACLE_CASES`.
const CASES: &str = "LEASEHOLD_ORACLE_CASES";
/// Where the sequences start: `LEASEHOLD_ORACLE_SEED`. A failure prints the one to repeat it with.
const SEED: &str = "LEASEHOLD_ORACLE_SEED";
/// How many times more sequences a soak plays.
const SOAK: u64 = 20;

/// How many sequences are played, and how many moves one has at most, where time stands still.
const EXACT: (u64, usize) = (96, 60);
/// The same where time runs by itself.
const REAL: (u64, usize) = (4, 20);

/// The sequence of a seed.
fn sequence(seed: u64, longest: usize) -> impl ValueTree<Value = Vec<Move>> {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    moves::moves(longest)
        .new_tree(&mut runner)
        .expect("moves can always be made")
}

/// Plays the sequences that [`check`] plays, and says why the first one on which store and engine
/// disagree does.
pub async fn disagreement<H: Harness>(make: impl AsyncFn() -> H) -> Option<String> {
    let (cases, longest) = EXACT;
    for seed in 1..=cases {
        let moves = sequence(seed, longest).current();
        if let Err(reason) = play(&make().await, &moves).await {
            return Some(format!("sequence {seed} {reason}"));
        }
    }
    None
}

/// Plays random sequences on stores that `make` makes anew for each, and panics with the shortest
/// sequence found on which store and engine disagree.
pub async fn check<H: Harness>(make: impl AsyncFn() -> H) {
    let exact = make().await.pace().exact;
    let ((cases, longest), shrinks) = if exact { (EXACT, 400) } else { (REAL, 10) };
    let cases = length::pick_or(CASES, cases, SOAK * cases);
    let first = length::seed(SEED);
    for seed in first..first + cases {
        let mut tree = sequence(seed, longest);
        let Err(mut reason) = play(&make().await, &tree.current()).await else {
            continue;
        };
        // Said first: to shorten it may take longer than somebody waits.
        eprintln!("repeat with {SEED}={seed} {CASES}=1: {reason}");
        // Shorten it while it still fails.
        let mut shortest = tree.current();
        let mut further = tree.simplify();
        for _ in 0..shrinks {
            if !further {
                break;
            }
            let candidate = tree.current();
            further = match play(&make().await, &candidate).await {
                Err(shorter) => {
                    (reason, shortest) = (shorter, candidate);
                    tree.simplify()
                }
                Ok(()) => tree.complicate(),
            };
        }
        panic!(
            "the store and the engine disagree: {reason}\n\
             repeat with {SEED}={seed} {CASES}=1\nafter these moves: {shortest:#?}"
        );
    }
}

async fn play(harness: &dyn Harness, moves: &[Move]) -> Result<(), String> {
    let mut run = Run::new(harness).await;
    for (place, step) in moves.iter().enumerate() {
        run.play(step)
            .await
            .map_err(|reason| format!("at move {place}, {step:?}: {reason}"))?;
    }
    run.finish().await
}

/// Makes one test that plays random sequences on the store and on the engine. The argument makes a
/// fresh, empty authority behind a [`Harness`]; it may `await`.
#[macro_export]
macro_rules! oracle_test {
    ($harness:expr) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn the_store_agrees_with_the_engine_on_random_sequences() {
            $crate::conformance::oracle::check(async || $harness).await;
        }
    };
}
