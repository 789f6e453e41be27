//! Who polls what, told alike by the command line, the server and an instance itself.

use leasehold_testkit::{Child, Dir, port, wait};
use redis::AsyncCommands;
use serde_json::{Value, json};

use crate::cli_support::{Ran, plain, run};
use crate::poll::{
    fleet::{Fleet, PATIENCE, Settings},
    metrics::get,
};

const TOKEN: &str = "a-token-for-reading-only";

/// Five targets: a foreign program holds one, one is paused, and two instances share the rest.
async fn stage(port: u16) -> Fleet {
    let mut fleet = Fleet::new(5).await;
    let mut redis = fleet.connect().await;
    let paused = r#"{"id":"session-4","isPaused":true}"#;
    let _: () = redis.set("poll:lease:session-3", "by-hand").await.unwrap();
    let _: () = redis.set("session:session-4", paused).await.unwrap();
    let settings = Settings {
        lease: ", capacity: 9, name: the first".to_owned(),
        more: format!("  metrics_listen: 127.0.0.1:{port}\n"),
        ..fleet.settings()
    };
    fleet.start_with(1, &settings).await;
    fleet.start(1).await;
    fleet.until_loads(&[1, 2]).await;
    fleet
}

/// A server on the same Redis, with a token that may only read.
async fn server(fleet: &Fleet, dir: &Dir) -> (Child, String) {
    let listen = format!("127.0.0.1:{}", port::free());
    let tokens = json!([{"token": TOKEN, "scopes": ["leases:read"]}]).to_string();
    let mut child = plain(&["serve", "--log", "warn", "--listen", &listen, "--store"])
        .arg(fleet.redis.url())
        .arg("--data-dir")
        .arg(dir.join("data"))
        .env("LEASEHOLD_TOKENS", tokens)
        .spawn();
    child.wait_for_line("listening on", PATIENCE).await;
    (child, format!("http://{listen}"))
}

/// Checks a view of [`stage`].
fn assert_view(view: &Value, fleet: &Fleet) {
    let nodes = view["nodes"].as_array().unwrap();
    let mut ids: Vec<&str> = fleet.instances.iter().map(|it| it.id.as_str()).collect();
    ids.sort_unstable();
    let shown: Vec<&str> = nodes.iter().map(|it| it["id"].as_str().unwrap()).collect();
    assert_eq!(shown, ids, "{view}");
    let mut owned = Vec::new();
    for node in nodes {
        let named = node["id"] == fleet.instances[0].id.as_str();
        assert_eq!(node["name"].as_str(), named.then_some("the first"));
        assert_eq!(node["weight"], 1);
        assert_eq!(node["capacity"].as_u64(), named.then_some(9));
        assert!(node["since"].is_string() || node["since"].is_number());
        for target in node["targets"].as_array().unwrap() {
            owned.push(target["id"].as_str().unwrap().to_owned());
            assert_eq!(target["owner"], node["id"]);
            assert_eq!(target["preferred"], node["id"], "settled: {target}");
            assert_eq!(target["state"], "owned");
            assert!(target["token"].as_u64().unwrap() > 1_700_000_000_000);
            assert!(!target["acquired_at"].is_null());
        }
    }
    owned.sort_unstable();
    assert_eq!(owned, ["session-1", "session-2", "session-5"]);
    let [foreign] = view["foreign"].as_array().unwrap().as_slice() else {
        panic!("one by hand: {view}");
    };
    assert_eq!(foreign["id"], "session-3");
    assert_eq!(foreign["owner"], "by-hand");
    assert!(foreign["token"].is_null(), "it has none: {foreign}");
    assert_eq!(unowned(view), [("session-4", "paused")]);
}

/// The targets that nobody owns, each with its state.
fn unowned(view: &Value) -> Vec<(&str, &str)> {
    let unowned = view["unowned"].as_array().unwrap().iter();
    unowned
        .map(|it| (it["id"].as_str().unwrap(), it["state"].as_str().unwrap()))
        .collect()
}

/// The view without what changes from one moment to the next.
fn settled(mut view: Value) -> Value {
    fn forget(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                fields.remove("renewed_at");
                // A foreign lease has no time of its own.
                if fields.get("token") == Some(&Value::Null) {
                    fields.remove("acquired_at");
                    fields.remove("state");
                }
                fields.values_mut().for_each(forget);
            }
            Value::Array(items) => items.iter_mut().for_each(forget),
            _ => {}
        }
    }
    forget(&mut view);
    view.as_object_mut().unwrap().remove("instance");
    view
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_the_command_line_and_an_instance_tell_the_same() {
    let port = port::free();
    let mut fleet = stage(port).await;
    let dir = Dir::new("nodes");
    let (_server, url) = server(&fleet, &dir).await;

    let answer = reqwest::Client::new()
        .get(format!("{url}/api/v1/nodes"))
        .bearer_auth(TOKEN)
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 200);
    let from_server: Value = answer.json().await.unwrap();
    assert_view(&from_server, &fleet);
    assert!(from_server["instance"].is_null(), "a server does not poll");
    let open = reqwest::get(format!("{url}/api/v1/nodes")).await.unwrap();
    assert_eq!(open.status(), 401, "not without a token");

    let (status, text) = get(port, "/api/v1/nodes").await.unwrap();
    assert_eq!(status, 200, "{text}");
    let from_instance: Value = serde_json::from_str(&text).unwrap();
    assert_view(&from_instance, &fleet);
    assert_eq!(from_instance["instance"], fleet.instances[0].id.as_str());

    let redis = fleet.redis.url();
    let from_store = json_of(&run(&["nodes", "--store", &redis, "--json"], &[]).await);
    let credential = [("LEASEHOLD_API_TOKEN", TOKEN.to_owned())];
    let over_http = run(&["nodes", "--server", &url, "--json"], &credential).await;
    let over_http = json_of(&over_http);
    for view in [&from_store, &over_http] {
        assert_view(view, &fleet);
    }
    let first = settled(from_server);
    for other in [from_instance, from_store, over_http] {
        assert_eq!(settled(other), first);
    }

    // Nobody polls any more: everything that should be polled is shown as unowned.
    for instance in &mut fleet.instances {
        instance.child.sigterm();
        assert!(instance.child.wait(PATIENCE).await.success());
    }
    let left = json_of(&run(&["nodes", "--store", &redis, "--json"], &[]).await);
    assert_eq!(left["nodes"], json!([]));
    let expected = [
        ("session-1", "unowned"),
        ("session-2", "unowned"),
        ("session-4", "paused"),
        ("session-5", "unowned"),
    ];
    assert_eq!(unowned(&left), expected);
}

fn json_of(ran: &Ran) -> Value {
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    serde_json::from_str(&ran.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_table_shows_every_target_once_and_a_watch_shows_it_again() {
    let fleet = stage(port::free()).await;
    let redis = fleet.redis.url();
    let ran = run(&["nodes", "--store", &redis], &[]).await;
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert!(
        lines[0].contains("NODE") && lines[0].contains("PREFERRED"),
        "{}",
        ran.stdout
    );
    for id in &fleet.targets {
        let named = lines
            .iter()
            .filter(|line| line.contains(id.as_str()))
            .count();
        assert_eq!(named, 1, "{id}\n{}", ran.stdout);
    }
    let line_of = |word: &str| lines.iter().find(|line| line.contains(word)).copied();
    assert!(
        line_of("session-3")
            .unwrap()
            .contains("by-hand (no presence)")
    );
    assert!(line_of("session-4").unwrap().contains("paused"));
    assert!(line_of("(the first)").unwrap().contains("owned"));

    let mut watch = plain(&["nodes", "--watch", "--store", &redis]).spawn();
    watch.wait_for_line("session-5", PATIENCE).await;
    // A new target is shown as soon as it is there.
    let mut connection = fleet.connect().await;
    let _: () = connection
        .set("session:session-9", r#"{"id":"session-9"}"#)
        .await
        .unwrap();
    watch.wait_for_line("session-9", PATIENCE).await;
    // A store that goes away and comes back does not end it.
    fleet.redis.pause();
    watch.wait_for_line("error:", PATIENCE).await;
    fleet.redis.resume();
    let position = watch.position();
    watch
        .wait_for_line_from(position, "session-9", PATIENCE)
        .await;
    watch.signal(nix::sys::signal::Signal::SIGINT);
    assert!(watch.wait(PATIENCE).await.success());

    let mut watch = plain(&["nodes", "--watch", "--json", "--store", &redis]).spawn();
    wait::until(PATIENCE, "two views", async || {
        watch
            .lines()
            .iter()
            .filter(|line| line.contains("\"nodes\""))
            .count()
            >= 2
    })
    .await;
    watch.sigterm();
    watch.wait(PATIENCE).await;
}
