//! Bugs that are planted below these tests, and those of them that notice each.

use lease::planted::{Bug, Room, VARIABLE};
use leasehold_testkit::planted;

#[test]
fn planted_bugs_are_noticed_by_the_stores() {
    let mut table = Room::Store.table(noticed_by);
    // Those that need a service cost seconds each.
    let needs_service = |test: &&str| test.starts_with("postgres") || test.starts_with("redis");
    table.retain(|(_, _, tests)| planted::all() || !tests.iter().any(needs_service));
    planted::check(VARIABLE, &table);
}

fn noticed_by(bug: Bug) -> &'static [&'static str] {
    match bug {
        Bug::HandoffLosesLabels | Bug::HandoffLosesPolicy => {
            &["conformance_memory::handoff::l18_a_key_moves_in_one_step"]
        }
        Bug::Namesake => {
            &["conformance_memory::granting::l2_a_namesake_in_another_tenant_is_refused"]
        }
        Bug::DeathTakesAll => {
            &["conformance_memory::losing::l15_a_proven_death_releases_what_asked_for_it"]
        }
        Bug::AbandonedWaitServed => {
            &["conformance_memory::waiting::l6_a_dropped_waiter_is_never_granted"]
        }
        Bug::HoldIgnored => &[
            "conformance_memory::outage::l13_hold_withholds_the_key_for_the_grace",
            "conformance_memory::outage::l13_a_lease_in_jeopardy_is_renewed_with_its_token",
        ],
        Bug::PoolGivesOwnSlot => {
            &["conformance_memory::pools::l5_one_holder_may_have_several_slots"]
        }
        Bug::StrangerOwns => &[
            "conformance_memory::losing::l16_release_is_scoped_to_the_owner",
            "conformance_memory::keeping::l7_strangers_cannot_renew",
        ],
        Bug::SealsUnread => &["history_seals::tampering_with_the_file_of_the_embedded_store_shows"],
        Bug::WatchIgnoresTenant => {
            &["conformance_memory::watching::l20_a_watch_carries_only_what_is_wanted"]
        }
        Bug::CrossedGrantKept => {
            &["conformance_memory::l6_a_grant_that_nobody_took_goes_back_in_memory"]
        }
        Bug::DeadReplicaServedByPostgres => {
            &["postgres_replicas::l6_a_waiter_whose_replica_died_is_passed_over"]
        }
        Bug::DeadReplicaServedByRedis => &[
            "redis_replicas::l6_a_waiter_on_another_replica_is_woken_and_a_dead_replica_is_passed_over",
        ],
        Bug::PresenceWithoutExpiry => &["redis_keys::presence_and_other_kinds_have_their_keys"],
        other => panic!("nobody here is named for {other:?}"),
    }
}
