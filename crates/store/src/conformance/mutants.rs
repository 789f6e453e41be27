//! Planted bugs, and who notices them: a store's tests name one piece of a script each, and what it
//! becomes. Most runs plant a few; all of them with `LEASEHOLD_MUTANTS=all`, which is `make mutants`.

use std::{future::Future, panic::AssertUnwindSafe};

use leasehold_testkit::planted;

use super::{Flip, Harness, oracle};

/// How many are planted in an ordinary run.
const FEW: usize = 3;

/// A bug: its name, the text that becomes another one, and who must notice.
pub type Mutant = (&'static str, &'static str, &'static str, By);

/// Who must notice a bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// The random sequences.
    Oracle,
    /// [`super::granting::l3_a_forgotten_key_never_sees_a_smaller_token`].
    Floor,
}

impl By {
    fn name(self, store: &str) -> String {
        match self {
            Self::Oracle => format!("random sequences on {store}"),
            Self::Floor => format!("`l3_a_forgotten_key_never_sees_a_smaller_token_on_{store}`"),
        }
    }
}

/// Plants one bug after the other and panics with those that nobody noticed. `make` makes a fresh store
/// with this bug, on time that stands still; where the second argument is set, it forgets every idle key
/// when time passes.
pub async fn check<H: Harness>(
    store: &str,
    mutants: &[Mutant],
    make: impl AsyncFn(Flip, bool) -> H,
) {
    let count = if planted::all() { mutants.len() } else { FEW };
    let mut missed = Vec::new();
    for &(name, from, to, by) in mutants.iter().take(count) {
        let flip = Flip::new(from, to);
        let noticed = match by {
            By::Oracle => oracle::disagreement(async || make(flip.clone(), false).await).await,
            By::Floor => {
                let harness = make(flip.clone(), true).await;
                let case = super::granting::l3_a_forgotten_key_never_sees_a_smaller_token(&harness);
                panics(case).await.then(|| "a smaller token".to_owned())
            }
        };
        assert!(flip.was_planted(), "{name}: no text has {from:?} any more");
        match noticed {
            Some(how) => planted::row(name, &format!("{}: {}", by.name(store), brief(&how))),
            None => missed.push(name),
        }
    }
    assert!(missed.is_empty(), "nobody noticed {missed:#?}");
}

/// Whether a future panics.
async fn panics(case: impl Future<Output = ()>) -> bool {
    use futures_util::FutureExt as _;
    AssertUnwindSafe(case).catch_unwind().await.is_err()
}

/// Where they differ, without what they were asked.
fn brief(how: &str) -> String {
    let plain = how.replace(['|', '\n'], " ");
    plain.chars().take(80).collect()
}
