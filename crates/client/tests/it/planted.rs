//! Bugs that are planted below these tests, and those of them that notice each.

use lease::planted::{Bug, Room, VARIABLE};
use leasehold_testkit::planted;

#[test]
fn planted_bugs_are_noticed_by_the_client() {
    planted::check(VARIABLE, &Room::Client.table(noticed_by));
}

fn noticed_by(bug: Bug) -> &'static [&'static str] {
    match bug {
        Bug::DeadlineFromAnswer => &[
            "keeping::l10_a_late_answer_gives_no_more_than_its_request_asked_for",
            "property::a_guard_never_says_owned_past_the_authoritys_expiry",
        ],
        Bug::OwnershipIsAFlag => {
            &["keeping::l10_ownership_is_a_comparison_also_when_every_task_is_stuck"]
        }
        Bug::ErrorIsALoss => &["keeping::l11_an_error_is_not_a_loss"],
        other => panic!("nobody here is named for {other:?}"),
    }
}
