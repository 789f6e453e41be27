//! Many sessions at once: each is kept or expires by its own heartbeats, and the server says so in time.
//! How much that costs is measured elsewhere; this is about being right.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use leasehold_testkit::{Postgres, wait};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::sessions::api::Api;

const SESSIONS: usize = 400;
const LIMIT: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn heavy_of_many_sessions_exactly_the_silent_ones_expire() {
    let settings = [
        ("LEASEHOLD_SESSIONS_LEASE_TTL", "10s"),
        ("LEASEHOLD_SESSIONS_HEARTBEAT_INTERVAL", "1s"),
        ("LEASEHOLD_SESSIONS_WORKER", "false"),
    ];
    let api = Arc::new(Api::start(None, &settings).await);
    let over = CancellationToken::new();
    let (mut silent, mut clients) = (BTreeSet::new(), JoinSet::new());
    for number in 0..SESSIONS {
        let channel = format!("channel-{number}");
        let id = api.start_session(&channel, "virtual").await;
        if number % 3 == 0 {
            silent.insert(id);
            continue;
        }
        let (api, over) = (api.clone(), over.clone());
        clients.spawn(async move {
            let mut beats = tokio::time::interval(Duration::from_secs(1));
            while over.run_until_cancelled(beats.tick()).await.is_some() {
                let (status, answer) = api.beat(&id).await;
                assert_eq!(status, 200, "{answer}");
            }
        });
    }
    let stopped = async || {
        let path = "/api/v3/sessions?state=stopped&limit=1000";
        let (_, list) = api.call("GET", path, None).await;
        let list = list["sessions"].as_array().unwrap().clone();
        let ids = list.iter().map(|session| session["session_id"].as_str());
        ids.map(|id| id.unwrap().to_owned())
            .collect::<BTreeSet<_>>()
    };
    wait::until(LIMIT, "the silent ones are stopped", async || {
        stopped().await.len() >= silent.len()
    })
    .await;
    over.cancel();
    clients.join_all().await;
    assert_eq!(stopped().await, silent, "one that beats was stopped");
    let (_, metrics) = api.call("GET", "/metrics", None).await;
    let line = format!(
        r#"xg2g_sessions_lease_expired_total{{previous_state="new"}} {}"#,
        silent.len()
    );
    assert!(metrics.as_str().unwrap().contains(&line), "{metrics}");
}

/// As many starts as there are slots, all at the same time: each has one, however slowly the store answers.
#[tokio::test(flavor = "multi_thread")]
async fn heavy_simultaneous_starts_on_postgres_find_every_slot() {
    const SLOTS: usize = 200;
    let database = Postgres::shared().await;
    let slots: Vec<String> = (0..SLOTS).map(|slot| slot.to_string()).collect();
    let settings = [
        ("XG2G_V3_TUNER_SLOTS", slots.join(",")),
        ("LEASEHOLD_SESSIONS_LEASE_TTL", "10m".to_owned()),
    ];
    let settings = settings
        .each_ref()
        .map(|(name, value)| (*name, value.as_str()));
    let api = Api::start(Some(&database.url()), &settings).await;
    let starts = (0..SLOTS).map(|number| {
        let (api, channel) = (&api, format!("channel-{number}"));
        async move { api.start_session(&channel, "virtual").await }
    });
    let ids = futures_util::future::join_all(starts).await;
    let mut taken = BTreeSet::new();
    for id in &ids {
        let running = api.reaches(id, "running", 4 * LIMIT).await;
        taken.insert(running["tuner_slot"].as_str().unwrap().to_owned());
    }
    assert_eq!(taken.len(), SLOTS);
}
