//! Who gets what.

use leasehold_blackbox::target::now_ms;
use leasehold_testkit::wait;
use redis::AsyncCommands;

use crate::poll::fleet::{Fleet, PATIENCE};

#[tokio::test]
async fn one_instance_polls_everything() {
    let mut fleet = Fleet::new(6).await;
    fleet.start(1).await;
    fleet.until_loads(&[6]).await;
    fleet.until_all_polled(0).await;
    // The documented keys, as other programs read them.
    let mut redis = fleet.connect().await;
    let id = &fleet.instances[0].id;
    let owner: String = redis.get("poll:lease:session-1").await.unwrap();
    let present: String = redis.get(format!("poll:node:{id}")).await.unwrap();
    let fence: u64 = redis.get("poll:fence:session-1").await.unwrap();
    let left_ms: i64 = redis.pttl("poll:lease:session-1").await.unwrap();
    assert_eq!((owner.as_str(), present.as_str()), (id.as_str(), "1"));
    assert!((1..=1_500).contains(&left_ms), "{left_ms}");
    assert_eq!(fleet.newest_tokens()["session-1"], fence);
    let document: String = redis.get("session:session-1").await.unwrap();
    assert!(document.contains("\"save\":\"kept\""), "{document}");
    let (host, rest) = id.rsplit_once('-').unwrap();
    assert!(
        rest.len() == 8 && host.rsplit_once('-').unwrap().1.len() == 19,
        "{id}"
    );
    fleet.assert_faultless();
}

#[tokio::test]
async fn five_start_at_once_on_ten_targets_and_each_has_one_owner() {
    let mut fleet = Fleet::new(10).await;
    fleet.start(5).await;
    fleet.until_loads(&[2, 2, 2, 2, 2]).await;
    fleet.until_all_polled(now_ms()).await;
    fleet.assert_faultless();
}

#[tokio::test]
async fn three_instances_share_nine_targets_and_a_leaver_leaves_them_to_two() {
    let mut fleet = Fleet::new(9).await;
    fleet.start(3).await;
    fleet.until_loads(&[3, 3, 3]).await;
    fleet.until_all_polled(now_ms()).await;
    let mut gone = fleet.instances.remove(0);
    gone.child.sigterm();
    assert!(gone.child.wait(PATIENCE).await.success());
    fleet.until_loads(&[4, 5]).await;
    let mut redis = fleet.connect().await;
    let presence: bool = redis
        .exists(format!("poll:node:{}", gone.id))
        .await
        .unwrap();
    assert!(!presence, "a ghost");
    fleet.assert_faultless();
}

#[tokio::test]
async fn a_third_joins_two_with_ten_and_gets_its_share() {
    let mut fleet = Fleet::new(10).await;
    fleet.start(2).await;
    fleet.until_loads(&[5, 5]).await;
    let before = fleet.owners().await;
    fleet.start(1).await;
    fleet.until_loads(&[3, 3, 4]).await;
    let after = fleet.owners().await;
    let moved = before
        .iter()
        .filter(|(id, owner)| after[*id] != **owner)
        .count();
    // Three or four with most names of instances, and six with one set of names in a hundred.
    assert!((3..=6).contains(&moved), "{moved} of 10 moved");
    fleet.until_all_polled(now_ms()).await;
    fleet.assert_faultless();
}

#[tokio::test]
async fn a_foreign_program_that_holds_a_target_by_hand_is_respected() {
    let mut fleet = Fleet::new(3).await;
    let mut redis = fleet.connect().await;
    let _: () = redis.set("poll:lease:session-2", "by-hand").await.unwrap();
    fleet.start(2).await;
    wait::until(PATIENCE, "the others are owned", async || {
        let owners = fleet.owners().await;
        owners.len() == 3 && owners.values().filter(|owner| *owner != "by-hand").count() == 2
    })
    .await;
    // Several discoveries later it is still respected.
    let from = now_ms();
    wait::until(PATIENCE, "some rounds", async || now_ms() > from + 2_500).await;
    assert_eq!(fleet.owners().await["session-2"], "by-hand");
    assert!(
        fleet
            .target
            .hits()
            .iter()
            .all(|hit| hit.target != "session-2")
    );
    let _: () = redis.del("poll:lease:session-2").await.unwrap();
    fleet.until_all_polled(now_ms()).await;
    fleet.assert_faultless();
}

#[tokio::test]
async fn a_paused_target_is_let_go_at_once_and_comes_back() {
    let mut fleet = Fleet::new(3).await;
    fleet.start(1).await;
    fleet.until_loads(&[3]).await;
    let mut redis = fleet.connect().await;
    let paused = r#"{"id":"session-1","isPaused":true}"#;
    let _: () = redis.set("session:session-1", paused).await.unwrap();
    let _: () = redis.del("session:session-2").await.unwrap();
    fleet.until_loads(&[1]).await;
    let again = r#"{"id":"session-1","isPaused":false}"#;
    let _: () = redis.set("session:session-1", again).await.unwrap();
    fleet.until_loads(&[2]).await;
    fleet.assert_faultless();
}
