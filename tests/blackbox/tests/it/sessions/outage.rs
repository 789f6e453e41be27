//! A real store that freezes and dies at random moments, under sessions with real children: no child is
//! left alone, no channel is streamed twice, and everything works again afterwards.

use std::{sync::Arc, time::Duration};

use leasehold_testkit::{Postgres, Redis, length, wait};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::cli_support::SOON;
use crate::sessions::api::{Api, with_children};

const CHANNELS: usize = 3;
/// Leases that nobody could give back end with their ttl of 30 s.
const TTL: Duration = Duration::from_secs(45);

/// A store that can be hurt.
enum Store {
    Redis(Box<Redis>),
    Postgres(Box<Postgres>),
}

impl Store {
    fn url(&self) -> String {
        match self {
            Self::Redis(redis) => redis.url(),
            Self::Postgres(postgres) => postgres.url(),
        }
    }

    async fn freeze(&mut self, time: Duration) {
        match self {
            Self::Redis(redis) => redis.pause(),
            Self::Postgres(postgres) => postgres.pause(),
        }
        tokio::time::sleep(time).await;
        match self {
            Self::Redis(redis) => redis.resume(),
            Self::Postgres(postgres) => postgres.resume(),
        }
    }

    async fn kill(&mut self, time: Duration) {
        match self {
            Self::Redis(redis) => redis.kill9(),
            Self::Postgres(postgres) => postgres.kill9(),
        }
        tokio::time::sleep(time).await;
        match self {
            Self::Redis(redis) => redis.restart().await,
            Self::Postgres(postgres) => postgres.restart().await,
        }
    }
}

/// What became of a client's sessions.
#[derive(Default, Debug)]
struct Tally {
    accepted: usize,
    /// Were there at every heartbeat, whatever the store did, and stopped when they were asked to.
    kept: usize,
    /// Were over before they were asked to stop.
    lost: usize,
}

/// A client that does not give up: it starts, keeps and stops sessions of one channel. The answer to a
/// store that is away is 503, and no other.
async fn client(api: Arc<Api>, channel: String, end: CancellationToken) -> Tally {
    let mut tally = Tally::default();
    while !end.is_cancelled() {
        let start = json!({"service_ref": channel, "profile": "child"});
        let (status, answer) = api.call("POST", "/api/v3/intents", Some(start)).await;
        assert!(matches!(status, 202 | 503), "{status} {answer}");
        let Some(id) = answer["session_id"].as_str() else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        tally.accepted += 1;
        let mut lost = false;
        for _ in 0..6 {
            let (status, answer) = api.beat(id).await;
            assert!(matches!(status, 200 | 404 | 410 | 503), "{status} {answer}");
            lost |= matches!(status, 404 | 410);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let stop = json!({"type": "stream.stop", "session_id": id});
        let (status, answer) = api.call("POST", "/api/v3/intents", Some(stop)).await;
        assert!(matches!(status, 202 | 404 | 503), "{status} {answer}");
        tally.lost += usize::from(lost);
        tally.kept += usize::from(!lost && status == 202);
    }
    tally
}

async fn sessions_survive(mut store: Store) {
    let settings = [
        ("LEASEHOLD_SESSIONS_LEASE_TTL", "4s"),
        ("LEASEHOLD_SESSIONS_HEARTBEAT_INTERVAL", "200ms"),
        ("LEASEHOLD_SESSIONS_EXPIRY_CHECK_INTERVAL", "1s"),
    ];
    let file = with_children();
    let api = Arc::new(Api::start_with(Some(&store.url()), &settings, Some(&file)).await);
    let end = CancellationToken::new();
    let mut clients = JoinSet::new();
    for number in 0..CHANNELS {
        clients.spawn(client(
            api.clone(),
            format!("channel-{number}"),
            end.clone(),
        ));
    }
    let looking = {
        let (api, end) = (api.clone(), end.clone());
        tokio::spawn(async move {
            let mut seen = 0;
            while !end.is_cancelled() {
                let streams = api.streams();
                assert!(
                    streams.values().all(|&count| count <= 1),
                    "twice: {streams:?}"
                );
                seen += streams.len();
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            seen
        })
    };
    // Moments that no step of a session can be safe from, and the same in every run.
    for round in 0..length::pick(5_u64, 40) {
        tokio::time::sleep(Duration::from_millis(300 + round * 457 % 900)).await;
        let time = Duration::from_millis(200 + round * 631 % 1_800);
        if round % 3 == 2 {
            store.kill(time).await;
        } else {
            store.freeze(time).await;
        }
    }
    end.cancel();
    // The store is away for less than a session's lease lasts: most sessions outlive that.
    for tally in clients.join_all().await {
        assert!(tally.kept > 0, "none was kept: {tally:?}");
        assert!(
            tally.lost * 2 <= tally.accepted,
            "too many were lost: {tally:?}"
        );
    }
    assert!(looking.await.unwrap() > 0, "no stream was ever seen");

    api.is_clean(TTL).await;
    let path = "/api/v3/sessions?limit=1000";
    let (status, list) = api.call("GET", path, None).await;
    assert_eq!(status, 200, "{list}");
    for session in list["sessions"].as_array().unwrap() {
        let state = session["state"].as_str().unwrap();
        assert!(matches!(state, "stopped" | "failed" | "ended"), "{session}");
    }
    let again = wait::until_some(SOON, "a session can be started", async || {
        let start = json!({"service_ref": "channel-0", "profile": "child"});
        let (status, answer) = api.call("POST", "/api/v3/intents", Some(start)).await;
        (status == 202).then(|| answer["session_id"].clone())
    })
    .await;
    let Value::String(again) = again else {
        panic!("a session has an id")
    };
    api.reaches(&again, "running", SOON).await;
    api.stop(&again).await;
    api.is_clean(SOON).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn heavy_sessions_survive_a_redis_that_freezes_and_dies() {
    let redis = Redis::options().persistent().start().await;
    sessions_survive(Store::Redis(Box::new(redis))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn heavy_sessions_survive_a_postgres_that_freezes_and_dies() {
    let postgres = Postgres::options().fsync(true).start().await;
    sessions_survive(Store::Postgres(Box::new(postgres))).await;
}

/// A Redis that answers nothing for longer than every limit, and then goes on as if nothing had been: so does
/// the server, and its worker.
#[tokio::test(flavor = "multi_thread")]
async fn heavy_a_redis_that_froze_for_long_serves_sessions_again() {
    let mut redis = Store::Redis(Box::new(Redis::start().await));
    let api = Api::start(Some(&redis.url()), &[]).await;
    let before = api.start_session("before", "virtual").await;
    api.reaches(&before, "running", SOON).await;
    for round in 0..length::pick(1, 5) {
        redis.freeze(Duration::from_secs(22)).await;
        let start = json!({"service_ref": format!("after-{round}"), "profile": "virtual"});
        let id = wait::until_some(TTL, "a session can be started", async || {
            let (status, answer) = api
                .call("POST", "/api/v3/intents", Some(start.clone()))
                .await;
            (status == 202).then(|| answer["session_id"].as_str().unwrap().to_owned())
        })
        .await;
        api.reaches(&id, "running", TTL).await;
    }
}
