//! The suite that every authority passes: rules L1–L21, each as a named function over a [`Harness`].
//!
//! A store's test file is one line per test binary:
//!
//! ```ignore
//! leasehold_store::conformance_tests!(RealTime::new(my_store().await));
//! leasehold_store::oracle_test!(RealTime::new(my_store().await));
//! ```
//!
//! Each function gets an authority of its own and uses keys of a kind that no other function uses,
//! so that all may run concurrently, even against one shared service.

use std::{future::Future, pin::Pin};

mod flip;
pub mod granting;
pub mod handoff;
pub mod harness;
pub mod keeping;
pub mod listing;
pub mod losing;
pub mod mutants;
pub mod oracle;
pub mod outage;
pub mod pools;
pub mod records;
pub mod remembering;
pub mod restart;
pub mod stage;
pub mod waiting;
pub mod watching;

pub use flip::Flip;
pub use harness::{Harness, Pace, RealTime, Restart, Step, Virtual};
pub use stage::Stage;

/// One function of the suite. It stays on the thread that runs it.
pub type Case = for<'a> fn(&'a dyn Harness) -> Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Every function of the suite with its name, `group::rule`, but those that restart the authority.
pub const CASES: &[(&str, Case)] = crate::conformance_tests!(@list table ());

/// The functions that restart the authority: for harnesses that can.
pub const RESTARTS: &[(&str, Case)] = crate::conformance_tests!(@restarts table ());

/// Makes one test per function of the suite. The argument makes a fresh, empty authority behind a
/// [`Harness`]; it is evaluated once per test, inside an async function, and may `await`. With `restarts`
/// behind it, the functions that restart the authority (L14) are among them.
#[macro_export]
macro_rules! conformance_tests {
    (@list $how:ident ($($argument:tt)*)) => {
        $crate::conformance_tests! {
            @$how ($($argument)*)
            granting {
                l1_one_of_a_hundred_racers_is_granted
                l1_a_limit_holds_under_a_race
                l2_a_free_key_is_granted_as_asked
                l2_the_same_holder_is_granted_again
                l2_a_refusal_names_holder_token_and_time_left
                l2_a_refusal_changes_nothing
                l2_another_incarnation_is_refused
                l2_a_namesake_in_another_tenant_is_refused
                l2_a_lapsed_key_is_granted_anew
                l3_tokens_grow_over_every_end
                l3_tokens_follow_the_clock_and_stay_below_two_to_53
                l4_all_or_nothing
                l4_answers_in_the_order_of_the_keys
                l4_own_keys_are_kept_among_new_ones
                l4_crossing_batches_never_split
                force_takes_a_live_key
                limits_count_every_incarnation
                limits_count_one_tenant
                wrong_requests_have_no_effect
            }
            pools {
                l5_the_first_free_slot_in_order
                l5_a_full_pool_is_refused
                l5_one_holder_may_have_several_slots
                l5_racers_share_a_pool_without_doubles
                l5_a_repeated_request_has_one_slot
            }
            waiting {
                l6_a_release_wakes_exactly_the_first
                l6_an_expiry_wakes_the_first
                l6_a_revocation_wakes_the_first
                l6_a_wait_ends_with_a_refusal
                l6_a_wait_that_ends_with_the_lapse_is_answered_truly
                l6_a_dropped_waiter_is_never_granted
                l6_waiters_are_pending
                l6_newcomers_do_not_overtake
                l6_waiting_for_all_gets_all_at_once
                l6_waiting_for_any_gets_the_first_freed
                l6_a_departed_holder_waits_no_more
            }
            keeping {
                l7_a_lapsed_lease_is_never_revived
                l7_the_reason_is_told
                l7_strangers_cannot_renew
                l8_renewal_counts_from_now
                l8_expiry_never_moves_backwards
                l9_a_batch_is_answered_in_order
                l9_all_of_a_holder_in_the_order_of_keys
                l9_all_of_a_holder_with_one_answer
                l10_the_authority_never_expires_before_the_holder_stops
                l11_an_unanswered_renewal_loses_nothing
                renewals_carry_a_report_and_a_new_ttl
            }
            losing {
                l12_a_lapsed_lease_expires_by_itself
                l15_a_proven_death_releases_what_asked_for_it
                l15_a_successor_inherits_nothing
                l15_leaving_releases_everything
                l16_release_is_scoped_to_the_owner
                l16_release_is_idempotent
                l17_a_revoked_holder_is_told_why
                l17_revoking_what_is_gone_changes_nothing
                nothing_leaves_a_terminal_status
            }
            outage {
                l13_hold_withholds_the_key_for_the_grace
                l13_a_lease_in_jeopardy_is_renewed_with_its_token
                l13_hold_lapses_after_the_grace
                l13_hold_ends_early_by_release_and_revocation
                l13_continue_gives_the_key_away_at_expiry
            }
            handoff {
                l18_a_key_moves_in_one_step
                l18_every_step_may_be_repeated
                l18_an_unprepared_offer_runs_out
                l18_an_undrained_handoff_runs_out
                l18_an_unconfirmed_successor_loses_the_key
                l18_a_renewal_confirms
                l18_either_side_calls_it_off
                l18_only_the_named_successor_prepares
                l18_a_lost_lease_cannot_be_handed_over
                l18_a_commit_does_not_serve_waiters
                l18_a_commit_keeps_to_the_limit
                l18_deadlines_are_required
            }
            records {
                a_transaction_writes_and_reads_back
                a_conflict_changes_nothing
                a_refused_grant_changes_nothing
                a_grant_and_writes_happen_together
                a_release_inside_wakes_a_waiter
                releasing_what_is_gone_is_no_conflict
                removing_a_record_frees_its_name
                records_are_listed_by_prefix_in_pages
                racing_writers_lose_no_update
                wrong_transactions_have_no_effect
            }
            listing {
                lists_follow_every_filter
                lists_are_paged_in_the_order_of_keys
                a_lease_is_found_by_its_id_after_its_end
                verdicts_tell_whether_a_token_counts
            }
            remembering {
                l19_each_change_is_one_event_in_order
                l19_a_forced_take_is_stolen_then_acquired
                l19_a_refusal_leaves_no_event
                l20_a_watcher_sees_every_change_in_order
                l20_a_watcher_resumes_where_it_stopped
                l20_a_forgotten_revision_is_told_by_a_snapshot
                l20_renewals_are_live
                l21_the_history_names_the_owner_at_any_time
                l21_no_two_owners_overlap_under_load
                l21_every_event_is_sealed_as_it_was_written
                events_are_filtered_and_paged
            }
            watching {
                l20_a_watch_carries_only_what_is_wanted
                l20_one_holder_sees_only_its_own
                l20_a_filtered_watch_resumes_without_a_gap
                l20_a_filtered_snapshot_shows_only_what_is_wanted
                l20_a_filtered_watch_learns_how_far_it_got
                wrong_filters_are_refused
            }
        }
    };
    (@restarts $how:ident ($($argument:tt)*)) => {
        $crate::conformance_tests! {
            @$how ($($argument)*)
            restart {
                l14_a_stop_leaves_each_lease_its_time
                l14_a_crash_never_shortens_a_lease
                l14_restarts_keep_tokens_records_and_history
            }
        }
    };
    (@unrestarted $how:ident ($($argument:tt)*)) => {
        $crate::conformance_tests! {
            @$how ($($argument)*)
            restart {
                l14_what_no_restart_shows_is_not_promised
            }
        }
    };
    (@tests ($harness:expr) $($group:ident { $($rule:ident)* })*) => {
        $(
            mod $group {
                #[allow(unused_imports, reason = "the harness may need what its file imports")]
                use super::*;
                $(
                    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                    async fn $rule() {
                        let harness = $harness;
                        $crate::conformance::$group::$rule(&harness).await;
                    }
                )*
            }
        )*
    };
    (@table () $($group:ident { $($rule:ident)* })*) => {
        &[$($(
            (
                concat!(stringify!($group), "::", stringify!($rule)),
                |harness| Box::pin($crate::conformance::$group::$rule(harness)),
            ),
        )*)*]
    };
    ($harness:expr) => {
        $crate::conformance_tests! { @list tests ($harness) }
        $crate::conformance_tests! { @unrestarted tests ($harness) }
    };
    ($harness:expr, restarts) => {
        $crate::conformance_tests! { @list tests ($harness) }
        $crate::conformance_tests! { @restarts tests ($harness) }
    };
}
