//! The suite can fail: stores with one deliberate fault each, and the named functions that catch it.

mod store;

use std::{panic::AssertUnwindSafe, sync::Arc};

use leasehold_clock::{Manual, UnixMillis};
use leasehold_store::{
    conformance::{CASES, Harness, Virtual, oracle},
    embedded::{Embedded, Options},
};
use store::{Broken, Fault};

fn broken(fault: Option<Fault>) -> Virtual {
    let clock = Manual::new(UnixMillis::new(1_700_000_000_000));
    let store = Embedded::memory(Options::default(), Arc::new(clock.clone()))
        .expect("a store in memory starts");
    Virtual::new(Arc::new(Broken::new(Arc::new(store), fault)), clock)
}

/// Whether the function of that name passes on a store with this fault.
fn passes(fault: Option<Fault>, name: &str) -> bool {
    let (_, case) = CASES
        .iter()
        .find(|(known, _)| *known == name)
        .unwrap_or_else(|| panic!("no function is called {name}"));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let run = || {
        runtime.block_on(async {
            let harness = broken(fault);
            case(&harness as &dyn Harness).await;
        });
    };
    std::panic::catch_unwind(AssertUnwindSafe(run)).is_ok()
}

/// The same wrapper without a fault passes, so it is the fault that fails.
fn caught(fault: Fault, by: &[&str]) {
    for name in by {
        assert!(passes(None, name), "{name} fails without a fault");
        assert!(!passes(Some(fault), name), "{name} misses {fault:?}");
    }
}

macro_rules! each_fault_is_caught {
    ($($test:ident: $fault:ident by $($name:literal),+;)*) => {
        $(
            #[test]
            fn $test() {
                caught(Fault::$fault, &[$($name),+]);
            }
        )*
    };
}

each_fault_is_caught! {
    a_revived_lease_is_caught: RevivesLapsed by
        "keeping::l7_a_lapsed_lease_is_never_revived", "keeping::l7_the_reason_is_told";
    a_token_that_starts_again_is_caught: TokenStartsAgain by
        "granting::l3_tokens_grow_over_every_end";
    a_second_owner_is_caught: GrantsTwice by
        "granting::l1_one_of_a_hundred_racers_is_granted", "granting::l2_a_refusal_changes_nothing";
    a_release_by_a_stranger_is_caught: AnyoneReleases by
        "losing::l16_release_is_scoped_to_the_owner", "losing::l16_release_is_idempotent";
    a_herd_of_waiters_is_caught: WakesAll by "waiting::l6_a_release_wakes_exactly_the_first";
    a_ghost_waiter_is_caught: ServesTheGone by "waiting::l6_a_dropped_waiter_is_never_granted";
    a_jumped_queue_is_caught: LastComeFirstServed by
        "waiting::l6_a_release_wakes_exactly_the_first";
    an_ignored_hold_is_caught: IgnoresHold by
        "outage::l13_hold_withholds_the_key_for_the_grace",
        "outage::l13_a_lease_in_jeopardy_is_renewed_with_its_token";
    a_silent_gap_is_caught: DropsNotices by "remembering::l20_a_watcher_sees_every_change_in_order";
    a_partial_grant_is_caught: GrantsPartly by "granting::l4_all_or_nothing";
    a_new_token_on_refresh_is_caught: RefreshesAnew by
        "granting::l2_the_same_holder_is_granted_again";
    an_expiry_that_moves_back_is_caught: MovesExpiryBack by
        "keeping::l8_expiry_never_moves_backwards";
    a_lost_reason_is_caught: LosesReasons by "losing::l17_a_revoked_holder_is_told_why";
    one_name_for_two_processes_is_caught: IgnoresIncarnations by
        "granting::l2_another_incarnation_is_refused";
    one_name_for_two_tenants_is_caught: IgnoresTenants by
        "granting::l2_a_namesake_in_another_tenant_is_refused";
    a_changed_history_is_caught: ChangesHistory by
        "remembering::l21_every_event_is_sealed_as_it_was_written";
    answers_out_of_order_are_caught: SortsAnswers by "keeping::l9_a_batch_is_answered_in_order";
    a_half_done_transaction_is_caught: WritesDespiteConflict by
        "records::a_conflict_changes_nothing";
    a_pool_out_of_order_is_caught: ReversesPools by "pools::l5_the_first_free_slot_in_order";
    an_ignored_limit_is_caught: IgnoresLimits by
        "granting::limits_count_every_incarnation", "granting::l1_a_limit_holds_under_a_race";
    a_handoff_without_a_successor_ready_is_caught: SkipsPrepare by
        "handoff::l18_only_the_named_successor_prepares";
    a_flattering_verdict_is_caught: PassesEnded by "listing::verdicts_tell_whether_a_token_counts";
    a_history_out_of_order_is_caught: ReversesHistory by
        "remembering::l19_each_change_is_one_event_in_order";
    a_death_that_takes_too_much_is_caught: DeathTakesAll by
        "losing::l15_a_proven_death_releases_what_asked_for_it";
    a_renewal_by_a_stranger_is_caught: AnyoneRenews by "keeping::l7_strangers_cannot_renew";
    an_ignored_filter_is_caught: IgnoresFilters by
        "watching::l20_a_watch_carries_only_what_is_wanted",
        "watching::l20_one_holder_sees_only_its_own",
        "watching::l20_a_filtered_watch_resumes_without_a_gap",
        "watching::l20_a_filtered_snapshot_shows_only_what_is_wanted",
        "watching::wrong_filters_are_refused";
    a_watch_without_progress_is_caught: HidesProgress by
        "watching::l20_a_filtered_watch_learns_how_far_it_got";
    a_list_of_foreign_kinds_is_caught: ListsForeignKinds by "listing::lists_follow_every_filter";
}

/// The random sequences find these by themselves.
#[test]
fn the_oracle_finds_faults_by_itself() {
    for fault in [
        Fault::GrantsTwice,
        Fault::AnyoneReleases,
        Fault::IgnoresHold,
        Fault::GrantsPartly,
        Fault::RefreshesAnew,
        Fault::IgnoresLimits,
        Fault::SkipsPrepare,
        Fault::WritesDespiteConflict,
        Fault::DeathTakesAll,
        Fault::LosesReasons,
    ] {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        let run = || runtime.block_on(oracle::check(async || broken(Some(fault))));
        let found = std::panic::catch_unwind(AssertUnwindSafe(run)).is_err();
        assert!(found, "the oracle misses {fault:?}");
    }
}
