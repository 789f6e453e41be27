//! What a holder does over its stream: many operations in flight, answered as they complete, under the
//! same rules as plain calls.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::{HashMap, HashSet};

use futures_util::SinkExt as _;
use lease::{Acquire, Acquired, Holder, Ttl};
use leasehold_api::stream::{Batch, Down, Encoding, Frame, Payload, Up, read_down};
use leasehold_testkit::wait;
use serde_json::{Value, json};
use tokio_tungstenite::{
    connect_async,
    tungstenite::{self, Message, client::IntoClientRequest as _},
};

use crate::{
    streams::{Socket, connect, connect_as, hear, is_live},
    support::{LONG, READER, Running, TENANT_A, TENANT_B, WRITER, start},
};

async fn say(socket: &mut Socket, frames: Value) {
    socket
        .send(Message::text(frames.to_string()))
        .await
        .unwrap();
}

/// Hears frames until each of these operations is answered, however many came in one message.
async fn answers(socket: &mut Socket, ids: impl IntoIterator<Item = u64>) -> HashMap<u64, Value> {
    let mut open: HashSet<u64> = ids.into_iter().collect();
    let mut found = HashMap::new();
    while !open.is_empty() {
        for frame in frames(hear(socket).await) {
            let id = frame["id"].as_u64().unwrap_or(0);
            if open.remove(&id) {
                found.insert(id, frame);
            }
        }
    }
    found
}

async fn answer(socket: &mut Socket, id: u64) -> Value {
    answers(socket, [id]).await.remove(&id).unwrap()
}

/// The next changes of a watch.
async fn events(socket: &mut Socket, id: u64, count: usize) -> Vec<Value> {
    let mut events = Vec::new();
    while events.len() < count {
        let own = frames(hear(socket).await).into_iter();
        let own = own.filter(|it| it["id"] == id && it["body"]["event"].is_object());
        events.extend(own.map(|mut it| it["body"]["event"].take()));
    }
    events
}

fn frames(message: Value) -> Vec<Value> {
    match message {
        Value::Array(frames) => frames,
        frame => vec![frame],
    }
}

fn acquire(id: u64, key: &str, wait_ms: u64) -> Value {
    json!({"type": "acquire", "id": id, "body": {
        "want": {"all": [key]}, "ttl": 30_000, "wait_ms": wait_ms,
    }})
}

fn release(id: u64, lease: &lease::Lease, token: lease::Token) -> Value {
    json!({"type": "release", "id": id, "body": {"key": lease.key, "token": token}})
}

async fn held_by_another(server: &Running, key: &str) -> lease::Lease {
    let holder = Holder::new("another", "i9").unwrap();
    let ttl = Ttl::from_millis(30_000).unwrap();
    let request = Acquire::one(key.parse().unwrap(), holder, ttl);
    match server.authority.acquire(request).await.unwrap() {
        Acquired::Granted { mut leases, .. } => leases.pop().unwrap(),
        Acquired::Refused(refusal) => panic!("{refusal:?}"),
    }
}

async fn waiters(server: &Running, count: usize) {
    let line = format!("leasehold_waiters {count}");
    wait::until(LONG, "the waits are counted", async || {
        let (_, metrics) = server.call("", "GET", "/metrics", Value::Null).await;
        metrics.as_str().unwrap().lines().any(|it| it == line)
    })
    .await;
}

#[tokio::test]
async fn l6_answers_come_in_the_order_of_completion() {
    let server = start().await;
    let lease = held_by_another(&server, "job:x").await;
    let mut socket = connect(&server, "h", false).await;
    say(
        &mut socket,
        json!([
            acquire(1, "job:x", 60_000),
            acquire(2, "job:y", 0),
            acquire(3, "job:x", 0)
        ]),
    )
    .await;
    let done = answers(&mut socket, [2, 3]).await;
    assert_eq!(done[&2]["body"]["granted"]["leases"][0]["key"], "job:y");
    assert_eq!(
        done[&2]["body"]["granted"]["leases"][0]["holder"]["name"],
        "h"
    );
    assert_eq!(
        done[&3]["body"]["refused"]["cause"]["holder"]["name"],
        "another"
    );
    server.authority.release((&lease).into()).await.unwrap();
    let granted = answer(&mut socket, 1).await;
    let lease = &granted["body"]["granted"]["leases"][0];
    assert_eq!(lease["key"], "job:x");
    say(
        &mut socket,
        json!({"type": "release", "id": 4, "body": {"key": "job:x", "token": lease["token"]}}),
    )
    .await;
    assert_eq!(answer(&mut socket, 4).await["body"], true);
    assert!(!is_live(&server, "x").await);
}

#[tokio::test]
async fn l17_what_a_holder_gives_back_over_its_stream_is_no_loss() {
    let server = start().await;
    let mut socket = connect(&server, "h", false).await;
    let keys = ["job:given", "job:elsewhere", "job:revoked"];
    let requests = (1..).zip(keys).map(|(id, key)| acquire(id, key, 0));
    say(&mut socket, requests.collect()).await;
    let granted = answers(&mut socket, [1, 2, 3]).await;
    let leases: Vec<lease::Lease> = (1..=3)
        .map(|id| granted[&id]["body"]["granted"]["leases"][0].clone())
        .map(|lease| serde_json::from_value(lease).unwrap())
        .collect();
    let (given, revoked) = (&leases[0], &leases[2]);
    // The second time there is nothing to end, and of the third there is another token.
    let older = lease::Token::new(1).unwrap();
    let releases = json!([
        release(4, given, given.token),
        release(5, given, given.token),
        release(6, revoked, older)
    ]);
    say(&mut socket, releases).await;
    let done = answers(&mut socket, [4, 5, 6]).await;
    let ended = [4, 5, 6].map(|id| done[&id]["body"] == true);
    assert_eq!(ended, [true, false, false]);
    // The same holder over another way, and somebody else.
    let authority = &server.authority;
    authority.release((&leases[1]).into()).await.unwrap();
    let revoke = lease::Revoke {
        id: revoked.id,
        reason: "test".into(),
    };
    authority.revoke(revoke).await.unwrap();
    let mut lost = Vec::new();
    while lost.len() < 2 {
        let frames = frames(hear(&mut socket).await).into_iter();
        let losses = frames.filter(|frame| frame["type"] == "lost");
        lost.extend(losses.map(|frame| frame["body"]["key"].clone()));
    }
    assert_eq!(lost, ["job:elsewhere", "job:revoked"]);
}

#[tokio::test]
async fn l6_a_wait_knows_its_place_and_can_be_cancelled() {
    let server = start().await;
    let lease = held_by_another(&server, "job:x").await;
    let mut first = connect(&server, "first", false).await;
    say(&mut first, acquire(1, "job:x", 60_000)).await;
    waiters(&server, 1).await;
    let mut second = connect(&server, "second", false).await;
    say(&mut second, acquire(1, "job:x", 60_000)).await;
    waiters(&server, 2).await;
    for (socket, place) in [(&mut first, 1), (&mut second, 2)] {
        say(socket, json!({"type": "position", "id": 2, "body": 1})).await;
        let position = answer(socket, 2).await;
        assert_eq!(position["body"], json!({"place": place, "waiting": 2}));
    }
    say(&mut first, json!({"type": "cancel", "body": 1})).await;
    let cancelled = answer(&mut first, 1).await;
    // It may have been granted in the same moment: nobody can know without looking.
    assert_eq!(
        (&cancelled["type"], &cancelled["body"]["fault"]["kind"]),
        (&json!("failed"), &json!("unknown"))
    );
    say(&mut second, json!({"type": "position", "id": 3, "body": 1})).await;
    assert_eq!(answer(&mut second, 3).await["body"]["place"], 1);
    server.authority.release((&lease).into()).await.unwrap();
    assert_eq!(answer(&mut second, 1).await["type"], "acquired");
}

#[tokio::test]
async fn a_thousand_are_in_flight_and_more_are_refused() {
    const MOST: u64 = 1_024;
    let server = start().await;
    let mut held = Vec::new();
    for number in 1..=MOST {
        held.push(held_by_another(&server, &format!("job:{number}")).await);
    }
    let mut socket = connect(&server, "h", false).await;
    for chunk in (1..=MOST).collect::<Vec<_>>().chunks(256) {
        let waits = chunk
            .iter()
            .map(|it| acquire(*it, &format!("job:{it}"), 60_000));
        say(&mut socket, waits.collect()).await;
    }
    waiters(&server, 1_024).await;
    // Over the bound: a definite no, and nothing happened.
    say(&mut socket, acquire(5_000, "job:free", 0)).await;
    let refused = answer(&mut socket, 5_000).await;
    assert_eq!(refused["body"]["code"], "OVERLOADED");
    assert!(!is_live(&server, "free").await);
    // An id that is in flight names another operation.
    say(&mut socket, acquire(1, "job:free", 0)).await;
    assert_eq!(
        answer(&mut socket, 1).await["body"]["code"],
        "CONFIG_INVALID"
    );
    // Whoever waits for a thousand keys can still keep what it has.
    say(&mut socket, json!({"type": "renew", "id": 5_001})).await;
    assert_eq!(answer(&mut socket, 5_001).await["type"], "renewed");
    for lease in &held {
        server.authority.release(lease.into()).await.unwrap();
    }
    let done = answers(&mut socket, 1..=MOST).await;
    assert!(
        done.values()
            .all(|it| it["body"]["granted"]["fresh"] == true)
    );
    // There is room again.
    say(&mut socket, acquire(5_002, "job:free", 0)).await;
    assert_eq!(answer(&mut socket, 5_002).await["type"], "acquired");
}

#[tokio::test]
async fn what_is_not_understood_is_refused_and_the_rest_is_done() {
    let server = start().await;
    let mut socket = connect(&server, "h", false).await;
    say(
        &mut socket,
        json!([
            {"type": "fly", "id": 1},
            {"type": "acquire", "id": 2, "body": {"want": {"all": ["nonsense"]}, "ttl": 1000}},
            acquire(3, "job:x", 0),
            {"type": "renew", "id": 4, "colour": "red"},
            {"type": "renew"},
        ]),
    )
    .await;
    let done = answers(&mut socket, [1, 2, 3, 4]).await;
    assert_eq!(done[&1]["body"]["code"], "NOT_SUPPORTED");
    assert_eq!(done[&2]["body"]["errors"][0]["field"], "want.all[0]");
    assert_eq!(done[&3]["type"], "acquired");
    assert_eq!(done[&4]["body"]["errors"][0]["field"], "colour");
    for wrong in [
        Message::text("{"),
        Message::text("7"),
        Message::binary(vec![1, 2]),
    ] {
        socket.send(wrong).await.unwrap();
        let failed = hear(&mut socket).await;
        assert_eq!(
            (&failed["type"], &failed["id"]),
            (&json!("failed"), &Value::Null)
        );
    }
    // Another holder has a stream of its own.
    let mut foreign = acquire(5, "job:y", 0);
    foreign["body"]["holder"] = json!({"name": "other", "incarnation": "i1"});
    say(&mut socket, foreign).await;
    let refused = answer(&mut socket, 5).await;
    assert_eq!(refused["body"]["errors"][0]["field"], "holder");
}

async fn opened(server: &Running, subprotocols: &str) -> Result<(Socket, String), u16> {
    let url = format!(
        "ws://{}/api/v1/holders/h/stream?incarnation=i1",
        server.address
    );
    let mut request = url.into_client_request().unwrap();
    let headers = request.headers_mut();
    headers.insert("authorization", format!("Bearer {WRITER}").parse().unwrap());
    headers.insert("sec-websocket-protocol", subprotocols.parse().unwrap());
    match connect_async(request).await {
        Ok((socket, response)) => {
            let chosen = response.headers()["sec-websocket-protocol"]
                .to_str()
                .unwrap();
            Ok((socket, chosen.to_owned()))
        }
        Err(tungstenite::Error::Http(response)) => Err(response.status().as_u16()),
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn a_version_that_is_not_known_is_refused() {
    let server = start().await;
    assert_eq!(opened(&server, "leasehold.v9").await.unwrap_err(), 400);
    let (_, chosen) = opened(&server, "leasehold.v9, leasehold.v1.json")
        .await
        .unwrap();
    assert_eq!(chosen, "leasehold.v1.json");
    let (_, chosen) = opened(&server, "leasehold.v1, leasehold.v1.json")
        .await
        .unwrap();
    assert_eq!(chosen, "leasehold.v1");
}

#[tokio::test]
async fn the_compact_frames_do_the_same() {
    let server = start().await;
    let (mut socket, _) = opened(&server, "leasehold.v1").await.unwrap();
    let own = Holder::new("h", "i1").unwrap();
    let welcome = heard(&mut socket, &own).await;
    assert!(matches!(welcome[0].body, Down::Welcome(_)), "{welcome:?}");
    let ttl = Ttl::from_millis(30_000).unwrap();
    let mut batch = Batch::new(Encoding::Binary, own.clone());
    for id in 1..=3 {
        let key = format!("job:{id}").parse().unwrap();
        let request = Acquire::one(key, own.clone(), ttl);
        batch.up(id, &Up::Acquire(Box::new(request)));
    }
    let Some(Payload::Binary(mut bytes)) = batch.take() else {
        panic!("binary")
    };
    // A frame of a newer version, and one that is cut short: the others are read.
    bytes.extend([2, 63, 9]);
    bytes.extend([4, 1, 10, 0, 1]);
    socket.send(Message::binary(bytes)).await.unwrap();
    let mut found = HashMap::new();
    while found.len() < 5 {
        found.extend(
            heard(&mut socket, &own)
                .await
                .into_iter()
                .map(|it| (it.id, it.body)),
        );
    }
    for id in 1..=3 {
        let Some(Down::Acquired(Acquired::Granted {
            leases,
            fresh: true,
        })) = found.get(&id)
        else {
            panic!("{found:?}")
        };
        let live = server.authority.lease(leases[0].key.clone()).await.unwrap();
        assert_eq!(live.as_ref(), leases.first());
    }
    for (id, status) in [(9, 501), (10, 400)] {
        let Some(Down::Failed(problem)) = found.get(&id) else {
            panic!("{found:?}")
        };
        assert_eq!(problem.status, status);
    }
}

async fn heard(socket: &mut Socket, own: &Holder) -> Vec<Frame<Down>> {
    use futures_util::StreamExt as _;
    loop {
        let message = tokio::time::timeout(LONG, socket.next())
            .await
            .unwrap()
            .unwrap();
        if let Message::Binary(bytes) = message.unwrap() {
            let frames = read_down(Encoding::Binary, &bytes, own);
            return frames.into_iter().map(Result::unwrap).collect();
        }
    }
}

#[tokio::test]
async fn the_rules_are_those_of_plain_calls() {
    let server = start().await;
    let mut socket = connect(&server, "h", false).await;
    let mut forced = acquire(2, "job:x", 0);
    forced["body"]["force"] = json!("mine");
    say(
        &mut socket,
        json!([acquire(1, "leadership:outbox", 0), forced]),
    )
    .await;
    let done = answers(&mut socket, [1, 2]).await;
    for id in [1, 2] {
        assert_eq!(done[&id]["body"]["code"], "AUTHORIZATION_FAILED", "{id}");
    }
    say(
        &mut socket,
        json!({"type": "presence", "id": 3, "body": {"labels": {"weight": "5"}}}),
    )
    .await;
    assert_eq!(
        answer(&mut socket, 3).await["body"]["code"],
        "AUTHORIZATION_FAILED"
    );
    assert!(!is_live(&server, "x").await);

    // A tenant's holder gets leases of its tenant, and does not reach another's.
    let mut a = connect_as(&server, TENANT_A, "same", false).await;
    let mut b = connect_as(&server, TENANT_B, "same", false).await;
    say(&mut a, acquire(1, "job:a", 0)).await;
    let granted = answer(&mut a, 1).await;
    let lease = &granted["body"]["granted"]["leases"][0];
    assert_eq!(lease["labels"]["tenant"], "a");
    let reference = json!({"key": "job:a", "token": lease["token"]});
    say(
        &mut b,
        json!([
            acquire(1, "job:a", 0),
            {"type": "release", "id": 2, "body": reference},
            {"type": "renew", "id": 3, "body": {"these": [reference]}},
            {"type": "watch", "id": 4, "body": {"tenant": "a"}},
        ]),
    )
    .await;
    let done = answers(&mut b, [1, 2, 3, 4]).await;
    assert_eq!(
        done[&1]["body"]["refused"]["cause"]["holder"]["name"],
        "somebody"
    );
    assert_eq!(done[&2]["body"], false);
    assert_eq!(done[&3]["body"][0]["outcome"]["Err"]["reason"], "unknown");
    assert_eq!(done[&4]["body"]["code"], "AUTHORIZATION_FAILED");
    assert!(is_live(&server, "a").await);
    // Whoever may only read has no stream.
    let url = "/api/v1/holders/h/stream?incarnation=i1";
    let (status, _) = server.call(READER, "GET", url, Value::Null).await;
    assert_eq!(status, 403);
}

#[tokio::test]
async fn l15_l18_presence_handoff_and_departure() {
    let server = start().await;
    let mut from = connect(&server, "from", false).await;
    let mut to = connect(&server, "to", false).await;
    say(
        &mut from,
        json!([{"type": "presence", "id": 1, "body": {"ttl_seconds": 30}}, acquire(2, "job:x", 0), acquire(3, "job:y", 0)]),
    )
    .await;
    let done = answers(&mut from, [1, 2, 3]).await;
    assert_eq!(done[&1]["body"]["granted"]["leases"][0]["key"], "node:from");
    let lease = &done[&2]["body"]["granted"]["leases"][0];
    let holder = |name: &str| json!({"name": name, "incarnation": "i1"});
    let reference = json!({"key": "job:x", "token": lease["token"], "holder": holder("from")});
    let offer = json!({"step": "offer", "lease": reference, "successor": holder("to"),
        "prepare_ms": 5_000, "drain_ms": 5_000, "confirm_ms": 5_000});
    let prepare = json!({"step": "prepare", "key": "job:x", "successor": holder("to")});
    let commit = json!({"step": "commit", "lease": reference});
    // A step is taken by the one whose stream it comes on.
    say(&mut to, json!({"type": "handoff", "id": 1, "body": offer})).await;
    assert_eq!(
        answer(&mut to, 1).await["body"]["errors"][0]["field"],
        "holder"
    );
    say(
        &mut from,
        json!({"type": "handoff", "id": 4, "body": offer}),
    )
    .await;
    assert_eq!(answer(&mut from, 4).await["body"]["stage"], "offered");
    say(
        &mut to,
        json!({"type": "handoff", "id": 2, "body": prepare}),
    )
    .await;
    assert_eq!(answer(&mut to, 2).await["body"]["stage"], "prepared");
    say(
        &mut from,
        json!({"type": "handoff", "id": 5, "body": commit}),
    )
    .await;
    let moved = answer(&mut from, 5).await;
    assert_eq!(moved["body"]["holder"]["name"], "to");
    say(
        &mut from,
        json!({"type": "depart", "id": 6, "body": "left"}),
    )
    .await;
    let departed = answer(&mut from, 6).await;
    let keys: Vec<_> = departed["body"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["key"])
        .collect();
    assert_eq!(keys, ["job:y", "node:from"]);
    assert!(is_live(&server, "x").await && !is_live(&server, "y").await);
}

#[tokio::test]
async fn l20_a_watch_goes_on_from_the_last_revision_on_the_next_connection() {
    let server = start().await;
    let mut socket = connect(&server, "h", false).await;
    say(
        &mut socket,
        json!({"type": "watch", "id": 1, "body": {"kinds": ["job"]}}),
    )
    .await;
    assert_eq!(answer(&mut socket, 1).await["body"], "open");
    server.acquire("other", "0", "b").await;
    server.acquire("job", "1", "b").await;
    let event = events(&mut socket, 1, 1).await.remove(0);
    assert_eq!(
        (&event["key"], &event["kind"]),
        (&json!("job:1"), &json!("lease_acquired"))
    );
    // Cut, and two changes later there is another connection.
    drop(socket);
    server.acquire("job", "2", "b").await;
    server.acquire("job", "3", "b").await;
    let mut socket = connect(&server, "h", false).await;
    say(
        &mut socket,
        json!({"type": "watch", "id": 7, "body": {"kinds": ["job"], "from": event["revision"]}}),
    )
    .await;
    let missed = events(&mut socket, 7, 2).await;
    assert_eq!(
        (&missed[0]["key"], &missed[1]["key"]),
        (&json!("job:2"), &json!("job:3"))
    );
    // Cancelled, its id is free for another operation; the seventeenth watch is refused.
    say(&mut socket, json!({"type": "cancel", "body": 7})).await;
    for id in 7..24 {
        say(
            &mut socket,
            json!({"type": "watch", "id": id, "body": {"kinds": ["none"]}}),
        )
        .await;
    }
    let done = answers(&mut socket, 7..24).await;
    assert_eq!(done[&7]["body"], "open");
    assert_eq!(done[&23]["body"]["code"], "OVERLOADED");
}
