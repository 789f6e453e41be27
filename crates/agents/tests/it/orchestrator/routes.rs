//! The API while the store goes away at each of its calls: what is answered with 202 is there, what is
//! answered with 503 can be repeated, and either way it is one session.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use lease::{
    EventCause, EventKind, EventQuery, Key,
    session::{self, State},
};
use leasehold_clock::System;
use leasehold_server::{Options, Server, SessionOptions};
use leasehold_testkit::wait::{until, until_some};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::orchestrator::{
    faulty::{Blow, Faulty, Plan},
    world::{SOON, World},
};

const TOKEN: &str = "the-secret-of-a-test";
const BLIP: Duration = Duration::from_millis(100);
/// More calls than any request makes.
const MOST_CALLS: usize = 12;

/// A server whose store can go away.
struct Api {
    world: World,
    store: Arc<Faulty>,
    url: String,
    http: reqwest::Client,
    _stop: oneshot::Sender<()>,
}

impl Api {
    async fn start(api_leases: bool) -> Self {
        let world = World::new();
        let store = Faulty::new(world.authority.clone(), None);
        let token = json!({"token": TOKEN, "scopes": ["v3:admin"]});
        let options = Options {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            tokens: vec![serde_json::from_value(token).unwrap()],
            sessions: SessionOptions {
                api_leases,
                heartbeat_interval_ms: 1,
                ..SessionOptions::default()
            },
            ..Options::default()
        };
        let server = Server::builder()
            .options(options)
            .authority(store.clone())
            .clock(Arc::new(System))
            .bind()
            .await
            .unwrap();
        let url = server.url();
        let (stop, stopped) = oneshot::channel::<()>();
        tokio::spawn(server.run(async {
            let _ = stopped.await;
        }));
        Self {
            world,
            store,
            url,
            http: reqwest::Client::new(),
            _stop: stop,
        }
    }

    async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let response = self
            .http
            .post(format!("{}{path}", self.url))
            .bearer_auth(TOKEN)
            .timeout(SOON)
            .json(body)
            .send()
            .await
            .unwrap();
        let status = response.status().as_u16();
        if status == 503 {
            assert!(response.headers().contains_key("retry-after"));
        }
        (status, response.json().await.unwrap())
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        let request = self.http.get(format!("{}{path}", self.url));
        let response = request.bearer_auth(TOKEN).timeout(SOON).send().await;
        let response = response.unwrap();
        (response.status().as_u16(), response.json().await.unwrap())
    }

    /// A request during which the store goes away, and the same request again once it is back.
    async fn twice(&self, plan: Plan, path: &str, body: &Value) -> [(u16, Value); 2] {
        self.store.plan(Some(plan));
        let first = self.post(path, body).await;
        self.store.plan(None);
        self.store.back().await;
        // Of phase 1: the service is free as soon as its return has got through.
        let second = until_some(SOON, "it is decided", async || {
            let second = self.post(path, body).await;
            // An outage may begin late, with a call of the server's own.
            (!matches!(second.0, 409 | 503)).then_some(second)
        });
        [first, second.await]
    }

    async fn starts(&self) -> usize {
        let query = EventQuery {
            limit: 1000,
            ..EventQuery::default()
        };
        let page = self.world.authority.events(query).await.unwrap();
        let starts = page.events.iter().filter(|event| {
            event.kind == EventKind::RecordPut
                && event.cause == Some(EventCause::Session(State::New))
        });
        starts.count()
    }

    fn key(answer: &Value) -> Key {
        session::key(answer["session_id"].as_str().unwrap().parse().unwrap())
    }
}

fn plans() -> impl Iterator<Item = Plan> {
    (0..MOST_CALLS).flat_map(|at| {
        [Blow::Before, Blow::After].map(|blow| Plan {
            at,
            blow,
            outage: BLIP,
        })
    })
}

async fn starting(api_leases: bool) {
    for plan in plans() {
        let api = Api::start(api_leases).await;
        let start = json!({"service_ref": "channel", "profile": "virtual"});
        let [(status, first), (again, second)] = api.twice(plan, "/api/v3/intents", &start).await;
        assert!(matches!(status, 202 | 503), "{plan:?}: {status} {first}");
        assert_eq!(again, 202, "{plan:?}: {second}");
        assert_eq!(api.starts().await, 1, "{plan:?}: one session, one event");
        if status == 202 {
            assert_eq!(first["session_id"], second["session_id"], "{plan:?}");
            assert_eq!(second["status"], "idempotent_replay", "{plan:?}");
        } else if plan.blow == Blow::Before {
            // "Nothing happened" was no lie.
            assert_eq!(second["status"], "accepted", "{plan:?}");
        }
        until(SOON, "no service is held", async || {
            api.world.leases("service").await.is_empty()
        })
        .await;
        assert_eq!(api.world.leases("session").await.len(), 1, "{plan:?}");
    }
}

#[tokio::test]
async fn a_start_is_one_session_wherever_the_store_goes_away() {
    starting(false).await;
}

#[tokio::test]
async fn a_start_of_phase_1_gives_the_service_back_wherever_the_store_goes_away() {
    starting(true).await;
}

#[tokio::test]
async fn a_heartbeat_extends_or_says_that_it_cannot() {
    for plan in plans() {
        let api = Api::start(false).await;
        let start = json!({"service_ref": "channel", "profile": "virtual"});
        let (_, accepted) = api.post("/api/v3/intents", &start).await;
        let key = Api::key(&accepted);
        let path = format!("/api/v3/sessions/{}/heartbeat", key.id());
        let [(status, first), (again, second)] = api.twice(plan, &path, &json!({})).await;
        assert!(matches!(status, 200 | 503), "{plan:?}: {status} {first}");
        assert_eq!(again, 200, "{plan:?}: {second}");
        let lease = api.world.authority.lease(key).await.unwrap().unwrap();
        // Answered with 200: really extended, to that very moment.
        let now = api.world.authority.now().await.unwrap();
        assert!(lease.renewed_at.is_some(), "{plan:?}");
        assert!(lease.expires_at.since(now) > 55_000, "{plan:?}");
        let (_, shown) = api
            .get(&format!("/api/v3/sessions/{}", lease.key.id()))
            .await;
        assert_eq!(
            second["lease_expires_at"], shown["lease_expires_at"],
            "{plan:?}"
        );
    }
}

#[tokio::test]
async fn a_stop_is_done_or_can_be_repeated() {
    for plan in plans() {
        let api = Api::start(false).await;
        let start = json!({"service_ref": "channel", "profile": "virtual"});
        let (_, accepted) = api.post("/api/v3/intents", &start).await;
        let stop = json!({"type": "stream.stop", "session_id": accepted["session_id"]});
        let [(status, first), (again, second)] = api.twice(plan, "/api/v3/intents", &stop).await;
        assert!(matches!(status, 202 | 503), "{plan:?}: {status} {first}");
        assert_eq!(
            (again, &second["state"]),
            (202, &json!("stopped")),
            "{plan:?}"
        );
        assert_eq!(
            api.world.leases("session").await,
            [] as [&str; 0],
            "{plan:?}"
        );
    }
}
