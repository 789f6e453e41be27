//! What a database administrator sees of what servers write.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::sync::Arc;

use lease::{Acquire, Acquired, Authority, EventQuery, Holder, Key, LeaseRef, Ttl};
use leasehold_store::postgres::Postgres;
use leasehold_testkit::{Database, Postgres as Shared};
use serde_json::json;

use crate::support::{self, ADMIN, Running};

async fn on(database: &Database) -> (Arc<Postgres>, Running) {
    let options = database.url().parse().unwrap();
    let store = Arc::new(Postgres::open(options).await.unwrap());
    let server = support::start_on(support::options(), support::clock(), store.clone()).await;
    (store, server)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn views_show_what_servers_write() {
    let database = Shared::shared().await;
    let (_store, server) = on(&database).await;
    server.runner("t", "s", "run-1", 7).await;
    server.camera("t", "s", "cam-1").await;
    server.camera("t", "s", "cam-2").await;
    let (status, lease) = server.lease_camera("cam-1", "run-1").await;
    assert!(status.is_success(), "{lease}");
    let change = json!({"enabled": false});
    let path = "/api/v1/tenants/t/sites/s/cameras/cam-2/";
    let (status, changed) = server.call(ADMIN, "PUT", path, change).await;
    assert_eq!(status, 200, "{changed}");

    let runner = database
        .psql("SELECT runner_id, tenant_id, site_id, capacity, status, present, cameras, registered_at IS NOT NULL, host IS NOT NULL FROM runner_overview")
        .await;
    assert_eq!(runner, "run-1|t|s|7|active|t|1|t|t");
    let columns = database
        .psql("SELECT runner_id, tenant_id, site_id, capacity FROM runners")
        .await;
    assert_eq!(columns, "run-1|t|s|7");
    let cameras = database
        .psql("SELECT camera_uuid, tenant_id, site_id, enabled, runner_id, token IS NOT NULL FROM camera_overview ORDER BY 1")
        .await;
    assert_eq!(cameras, "cam-1|t|s|t|run-1|t\ncam-2|t|s|f||f");
    let live = database
        .psql("SELECT key, holder FROM live_leases WHERE kind = 'camera'")
        .await;
    assert_eq!(live, "camera:cam-1|run-1");
    // No address of a camera, and so no login, is in a view.
    let shown = database.psql("SELECT * FROM camera_overview").await;
    assert!(!shown.contains("rtsp://"), "{shown}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_and_views_say_what_they_are() {
    let database = Shared::shared().await;
    let (_store, _server) = on(&database).await;
    let silent = database
        .psql("SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'v') AND obj_description(oid, 'pg_class') IS NULL AND relname NOT LIKE 'leasehold_%' ORDER BY 1")
        .await;
    assert_eq!(silent, "", "without a comment");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_restore_nothing_comes_twice() {
    let database = Shared::shared().await;
    let store = Postgres::open(database.url().parse().unwrap())
        .await
        .unwrap();
    let ask = |id: &str| {
        let holder = Holder::new("ann", "1").unwrap();
        let key = Key::new("job", id).unwrap();
        Acquire::one(key, holder, Ttl::from_secs(60).unwrap())
    };
    let granted = async |id: &str| match store.acquire(ask(id)).await.unwrap() {
        Acquired::Granted { mut leases, .. } => leases.remove(0),
        refused @ Acquired::Refused(_) => panic!("{refused:?}"),
    };
    let kept = granted("kept").await;
    let mut newest = kept.token;
    for _ in 0..20 {
        let lease = granted("busy").await;
        newest = newest.max(lease.token);
        store.release(LeaseRef::from(&lease)).await.unwrap();
    }
    let page = async |after| {
        let query = EventQuery {
            after,
            limit: 1_000,
            ..EventQuery::default()
        };
        store.events(query).await.unwrap()
    };
    let before = page(lease::Revision::ZERO).await;
    let said = database.psql("SELECT * FROM leasehold_restored()").await;
    let (revision, floor) = said.split_once('|').unwrap();
    assert!(
        revision.parse::<u64>().unwrap() > before.newest.get(),
        "{said}"
    );
    assert!(floor.parse::<u64>().unwrap() > newest.get(), "{said}");
    let lease = granted("busy").await;
    assert!(lease.token > newest);
    let live = store.lease(kept.key.clone()).await.unwrap().unwrap();
    assert_eq!(live.token, kept.token);
    let after = page(lease::Revision::ZERO).await;
    assert!(after.oldest > before.newest, "{after:?}");
    assert!(
        after
            .events
            .iter()
            .all(|event| event.revision > before.newest)
    );
    let scope = lease::history::Scope::default();
    let audit = lease::history::audit(&store, &scope, |_| {}).await.unwrap();
    assert_eq!(audit.breaks, []);
}
