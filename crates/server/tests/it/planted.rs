//! Bugs that are planted below these tests, and those of them that notice each.

use lease::planted::{Bug, Room, VARIABLE};
use leasehold_testkit::planted;

#[test]
fn planted_bugs_are_noticed_by_the_server() {
    planted::check(VARIABLE, &Room::Server.table(noticed_by));
}

fn noticed_by(bug: Bug) -> &'static [&'static str] {
    match bug {
        Bug::IdentityWithoutTenant => {
            &["streams::namesakes_of_two_tenants_hear_only_of_their_own_losses"]
        }
        Bug::TenantsSeeEachOther => &["sessions::tenants_neither_see_nor_share_sessions"],
        other => panic!("nobody here is named for {other:?}"),
    }
}
