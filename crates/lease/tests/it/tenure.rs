//! The holder's own deadline (L10, L11, L13), whatever comes in whatever order.

#![expect(clippy::unwrap_used, reason = "a test without its stage has failed")]

use lease::{BootMillis, Grace, Margin, OnOutage, Standing, Tenure, Ttl};
use proptest::prelude::*;

const SENT: BootMillis = BootMillis::new(50_000);

fn policies() -> impl Strategy<Value = OnOutage> {
    let grace = || (1..100_000_u64).prop_map(|ms| Grace::from_millis(ms).unwrap());
    prop_oneof![
        Just(OnOutage::FailClosed),
        grace().prop_map(OnOutage::Hold),
        grace().prop_map(OnOutage::Continue),
    ]
}

proptest! {
    /// L10: owned until `sent + ttl - margin`, whatever time the answer took.
    #[test]
    fn l10_ownership_is_a_comparison(ttl_ms in 1..100_000_u64, policy in policies(), after in 0..300_000_u64) {
        let ttl = Ttl::from_millis(ttl_ms).unwrap();
        let margin = Margin::of(ttl);
        prop_assert!(margin.millis() <= ttl_ms / 2, "at least half of the ttl is left");
        let tenure = Tenure::granted(SENT, ttl, margin, policy);
        let trusted = ttl_ms - margin.millis();
        let expected = if after < trusted {
            Standing::Owned
        } else if after < trusted + policy.grace_millis() {
            Standing::Grace
        } else {
            Standing::Over
        };
        prop_assert_eq!(tenure.standing(SENT.plus(after)), expected);
        // With `hold` the authority withholds the key longer than the holder goes on.
        prop_assert!(
            tenure.stop_at() <= SENT.plus(ttl_ms + policy.grace_millis())
        );
    }

    /// L8, L11: answers in any order move the deadline forward only; silence moves nothing.
    #[test]
    fn l8_late_answers_never_move_the_deadline_back(sent in proptest::collection::vec(0..50_000_u64, 1..20)) {
        let ttl = Ttl::from_secs(30).unwrap();
        let mut tenure = Tenure::granted(SENT, ttl, Margin::of(ttl), OnOutage::FailClosed);
        let mut newest = 0;
        for at in sent {
            let before = tenure.deadline();
            tenure.renewed(SENT.plus(at), ttl, Margin::of(ttl));
            newest = newest.max(at);
            prop_assert!(tenure.deadline() >= before);
            prop_assert_eq!(tenure.deadline(), SENT.plus(newest + 28_000));
            prop_assert_eq!(tenure.renew_at(), SENT.plus(newest + 10_000), "from the last renewal");
        }
    }

    /// L8, L10: a renewal may change the ttl. The holder then goes by the new one, never trusts the
    /// lease longer than any authority promised, and never shorter than it was promised already.
    #[test]
    fn l8_a_renewal_that_changes_the_ttl_changes_the_pace_and_never_takes_time_back(
        renewals in proptest::collection::vec((0..50_000_u64, 1..100_000_u64), 1..20),
    ) {
        let ttl = Ttl::from_secs(30).unwrap();
        let mut tenure = Tenure::granted(SENT, ttl, Margin::of(ttl), OnOutage::FailClosed);
        // What the authority does at the very moment of sending: forward only.
        let mut expires_at = SENT.plus(ttl.millis());
        let (mut newest, mut pace_ms) = (0, ttl.millis() / 3);
        for (at, ttl_ms) in renewals {
            let ttl = Ttl::from_millis(ttl_ms).unwrap();
            let before = tenure.deadline();
            tenure.renewed(SENT.plus(at), ttl, Margin::of(ttl));
            expires_at = expires_at.max(SENT.plus(at + ttl_ms));
            prop_assert!(tenure.deadline() >= before);
            prop_assert!(tenure.deadline() <= expires_at);
            prop_assert!(tenure.deadline() >= SENT.plus(at + ttl_ms - Margin::of(ttl).millis()));
            if at >= newest {
                (newest, pace_ms) = (at, ttl_ms / 3);
            }
            prop_assert_eq!(tenure.renew_at(), SENT.plus(newest + pace_ms));
        }
    }

    /// L13: a definite answer ends it immediately, for good, whatever the policy.
    #[test]
    fn l13_a_definite_loss_is_final(policy in policies(), at in 0..100_000_u64) {
        let ttl = Ttl::from_secs(30).unwrap();
        let mut tenure = Tenure::granted(SENT, ttl, Margin::of(ttl), policy);
        tenure.end();
        tenure.renewed(SENT.plus(at), ttl, Margin::of(ttl));
        prop_assert_eq!(tenure.standing(SENT), Standing::Over);
        prop_assert_eq!(tenure.standing(SENT.plus(at)), Standing::Over);
    }

    /// A margin that was meant for a longer ttl makes the holder stop early, never late.
    #[test]
    fn l10_a_margin_longer_than_the_ttl_stops_at_once(ttl_ms in 1..1_000_u64) {
        let long = Ttl::from_secs(3_600).unwrap();
        let margin = Margin::new(1_000_000, long).unwrap();
        let ttl = Ttl::from_millis(ttl_ms).unwrap();
        let mut tenure = Tenure::granted(SENT, ttl, margin, OnOutage::FailClosed);
        prop_assert_eq!(tenure.standing(SENT), Standing::Over);
        tenure.renewed(SENT.plus(10), ttl, margin);
        prop_assert_eq!(tenure.standing(SENT.plus(10)), Standing::Over);
        prop_assert!(tenure.renew_at() <= SENT.plus(10 + ttl_ms));
    }
}

#[test]
fn a_margin_leaves_at_least_half_of_the_ttl() {
    let ttl = Ttl::from_secs(10).unwrap();
    assert!(Margin::new(5_000, ttl).is_ok());
    assert!(Margin::new(5_001, ttl).is_err());
}
