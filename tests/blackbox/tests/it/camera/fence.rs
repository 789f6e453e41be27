//! A camera is worked on and published about only inside its own deadline.

use std::time::Duration;

use leasehold_testkit::{Dir, wait};

use crate::{
    camera::world::{Entry, FAR_MS, Shard, Start, below, camera, moving},
    cli_support::{SOON, boot_ms},
};

#[tokio::test]
async fn past_its_deadline_a_camera_is_silent_and_the_others_go_on() {
    let dir = Dir::new("video");
    let url = moving(&dir).await;
    let mut entries = [
        Entry::new(camera("held", &url), 21),
        Entry::new(camera("lapsing", &url), 22),
    ];
    let shard = Shard::start(Start::reference(), &entries).await;
    shard.working("2/2").await;
    shard.event("lapsing", "motion").await;
    // No renewal comes any more.
    entries[1].deadline_boot_ms = boot_ms() + 1_500;
    let deadline = unix_ms() + 1_500;
    shard.fence(&entries);
    wait::until(SOON, "its ffmpeg has ended", async || {
        boot_ms() > entries[1].deadline_boot_ms && below(shard.child.pid(), "ffmpeg").len() == 1
    })
    .await;
    let (before, others) = (shard.count("lapsing"), shard.count("held"));
    wait::until(SOON, "the other camera goes on", async || {
        shard.count("held") >= others + 5
    })
    .await;
    assert_eq!(shard.count("lapsing"), before);
    let last = shard.published();
    let last = last.iter().rfind(|it| it.camera() == "lapsing").unwrap();
    let at: leasehold_api::Time = last.message["at"].as_str().unwrap().parse().unwrap();
    assert!(at.0.get() <= deadline, "{} after {deadline}", at.0);
    assert!(shard.get("/ready").await.1.contains("1/2"));

    // A later deadline lets it go on, under the same token.
    entries[1].deadline_boot_ms = boot_ms() + FAR_MS;
    shard.fence(&entries);
    wait::until(SOON, "it goes on", async || shard.count("lapsing") > before).await;
    shard.working("2/2").await;
}

#[tokio::test]
async fn a_camera_that_is_not_to_be_published_yet_is_prepared() {
    let dir = Dir::new("video");
    let url = moving(&dir).await;
    let mut entries = [Entry::new(camera("next", &url), 31)];
    entries[0].publish = false;
    let mut shard = Shard::start(Start::reference(), &entries).await;
    shard.working("1/1").await;
    wait::until(SOON, "some motion", async || {
        shard.figure("leasehold_worker_motion_total", "next").await >= 3
    })
    .await;
    assert_eq!(shard.count("next"), 0);
    entries[0].publish = true;
    assert_eq!(shard.cameras(&entries).await, 202);
    let first = shard.event("next", "started").await;
    assert!(first["frames"].as_u64().unwrap() > 0, "{first}");
    shard.event("next", "alive").await;
    let online = shard.published();
    let online = online.iter().filter(|it| it.is("next", "online")).count();
    assert_eq!(online, 0, "it went on with the stream that it had");
}

fn unix_ms() -> u64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_REALTIME).unwrap();
    u64::try_from(Duration::from(now).as_millis()).unwrap()
}
