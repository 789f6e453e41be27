//! Bugs that are planted in the kernel, and the tests that notice each.

use lease::planted::{Bug, Room, VARIABLE};
use leasehold_testkit::planted;

#[test]
fn planted_bugs_are_noticed_in_the_kernel() {
    planted::check(VARIABLE, &Room::Kernel.table(noticed_by));
}

fn noticed_by(bug: Bug) -> &'static [&'static str] {
    match bug {
        Bug::FloorNotFolded | Bug::FloorIgnored => {
            &["engine_edges::l3_keys_that_are_forgotten_at_once_still_get_larger_tokens"]
        }
        Bug::LastTokenIgnored | Bug::CrashShortens => {
            &["engine_invariants::l1_to_l19_hold_after_every_command"]
        }
        Bug::RevisionGap => &[
            "engine_invariants::l1_to_l19_hold_after_every_command",
            "verifier::an_honest_history_is_sound_and_so_is_any_part_of_it",
        ],
        Bug::ExpiryMovesBack => &["engine_invariants::l1_to_l19_hold_after_every_command"],
        Bug::LimitCountsLapsed => &["engine_between_ticks::a_limit_does_not_count_what_lapsed"],
        Bug::BatchCountsAsOne => &["engine_between_ticks::a_limit_counts_every_key_of_a_batch"],
        Bug::WaiterSkipped => &[
            "engine_between_ticks::l6_whoever_waits_behind_one_that_is_refused_for_good_is_served",
        ],
        Bug::LastWaiterFirst => &[
            "engine_edges::l6_a_wait_that_ends_with_the_lapse_gets_the_key_before_those_who_came_later",
        ],
        Bug::RenewalLate => {
            &["engine_between_ticks::l7_a_renewal_in_the_moment_of_the_lapse_is_too_late"]
        }
        Bug::LapseLate => &[
            "engine_between_ticks::l12_a_tick_in_the_moment_of_the_lapse_expires_and_one_before_does_not",
        ],
        Bug::TransactionOvertakes => &[
            "engine_between_ticks::l6_neither_a_newcomer_nor_a_transaction_overtakes_a_waiter_before_the_tick",
        ],
        Bug::DeadHoldersWaitServed => {
            &["engine_edges::l15_the_waits_of_a_dead_holder_end_in_the_order_they_began"]
        }
        Bug::VerifierMute => &[
            "verifier::l1_an_end_that_is_missing_is_an_overlap",
            "verifier::l3_a_token_that_does_not_grow_is_named",
            "verifier::l19_disorder_is_named_where_it_shows",
            "verifier::l19_a_gap_is_named_where_everything_should_be_there",
        ],
        Bug::VerifierMissesGaps => {
            &["verifier::l19_a_gap_is_named_where_everything_should_be_there"]
        }
        Bug::VerifierMissesDisorder => &["verifier::l19_disorder_is_named_where_it_shows"],
        Bug::IntentOutlivesSession => {
            &["session::an_ended_session_gives_its_idempotency_key_back_in_the_same_step"]
        }
        Bug::EndedSessionGoesOn => &["session::terminal_states_absorb_everything"],
        other => panic!("nobody in the kernel is named for {other:?}"),
    }
}
