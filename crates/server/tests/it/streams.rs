//! What stays open: events with honest gaps, and the holder's stream.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use futures_util::{SinkExt as _, StreamExt as _};
use lease::{
    Answer, Authority, Capabilities, Command, EventKind, Notice, Outcome, Query, Revision,
    UnixMillis, View, Watch, Watching,
};
use leasehold_testkit::wait;
use serde_json::{Value, json};
use tokio::{
    net::TcpStream,
    sync::{Semaphore, broadcast},
};
use tokio_tungstenite::{
    MaybeTlsStream, WebSocketStream, connect_async,
    tungstenite::{Message, client::IntoClientRequest as _},
};

use crate::support::{
    ADMIN, LONG, READER, Running, TENANT_A, TENANT_B, WRITER, clock, guarded::Counted, memory,
    options, start, start_on, start_with,
};

/// Reads server-sent events one by one.
struct Events {
    response: reqwest::Response,
    text: String,
}

impl Events {
    async fn open(server: &Running, last: Option<u64>) -> Self {
        Self::filtered(server, last, "").await
    }

    async fn filtered(server: &Running, last: Option<u64>, filter: &str) -> Self {
        let mut request = server
            .http
            .get(format!("{}/api/v1/events/stream{filter}", server.url))
            .bearer_auth(READER);
        if let Some(last) = last {
            request = request.header("last-event-id", last.to_string());
        }
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let mut events = Self {
            response,
            text: String::new(),
        };
        assert_eq!(events.block().await.as_deref(), Some(": open"));
        events
    }

    async fn block(&mut self) -> Option<String> {
        loop {
            if let Some((block, rest)) = self.text.split_once("\n\n") {
                let (block, rest) = (block.to_owned(), rest.to_owned());
                self.text = rest;
                return Some(block);
            }
            let chunk = tokio::time::timeout(LONG, self.response.chunk())
                .await
                .unwrap()
                .unwrap()?;
            self.text.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }

    /// Name and data of the next event, without heartbeats.
    async fn next(&mut self) -> Option<(String, Value)> {
        tokio::time::timeout(LONG, self.named()).await.unwrap()
    }

    async fn named(&mut self) -> Option<(String, Value)> {
        loop {
            let block = self.block().await?;
            let field = |name: &str| {
                block
                    .lines()
                    .find_map(|line| line.strip_prefix(name))
                    .map(|it| it.trim().to_owned())
            };
            if let (Some(name), Some(data)) = (field("event:"), field("data:")) {
                return Some((name, serde_json::from_str(&data).unwrap()));
            }
        }
    }
}

pub type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

pub async fn connect(server: &Running, holder: &str, proxied: bool) -> Socket {
    connect_as(server, WRITER, holder, proxied).await
}

pub async fn connect_as(server: &Running, token: &str, holder: &str, proxied: bool) -> Socket {
    let url = format!(
        "ws://{}/api/v1/holders/{holder}/stream?incarnation=i1",
        server.address
    );
    let mut request = url.into_client_request().unwrap();
    let headers = request.headers_mut();
    headers.insert("authorization", format!("Bearer {token}").parse().unwrap());
    if proxied {
        headers.insert("x-forwarded-for", "10.0.0.9".parse().unwrap());
    }
    let (mut socket, _) = connect_async(request).await.unwrap();
    let welcome = hear(&mut socket).await;
    assert_eq!(
        (&welcome["type"], &welcome["body"]["proves_death"]),
        (&json!("welcome"), &json!(!proxied))
    );
    socket
}

pub async fn hear(socket: &mut Socket) -> Value {
    loop {
        let message = tokio::time::timeout(LONG, socket.next())
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        if let Message::Text(text) = message {
            return serde_json::from_str(&text).unwrap();
        }
    }
}

/// A lease of a holder with the incarnation of [`connect`], released when it dies.
pub async fn mortal(server: &Running, id: &str, holder: &str) -> Value {
    let body = json!({"kind": "job", "id": id, "holder": holder, "incarnation": "i1", "release_on_death": true});
    server
        .call(WRITER, "POST", "/api/v1/leases/acquire/", body)
        .await
        .1
}

pub async fn is_live(server: &Running, id: &str) -> bool {
    let (_, list) = server
        .call(
            READER,
            "GET",
            &format!("/api/v1/leases/?kind=job&id={id}"),
            Value::Null,
        )
        .await;
    !list["leases"].as_array().unwrap().is_empty()
}

#[tokio::test]
async fn l20_a_stream_resumes_where_it_ended() {
    let server = start().await;
    server.acquire("a", "1", "h").await;
    let mut events = Events::open(&server, None).await;
    server.acquire("a", "2", "h").await;
    let (name, second) = events.next().await.unwrap();
    assert_eq!(
        (name.as_str(), &second["id"]),
        ("lease_acquired", &json!("2"))
    );
    drop(events);
    server.acquire("a", "3", "h").await;
    server.acquire("a", "4", "h").await;
    let mut events = Events::open(&server, second["revision"].as_u64()).await;
    for id in ["3", "4"] {
        assert_eq!(events.next().await.unwrap().1["id"], id);
    }
    let (_, page) = server
        .call(READER, "GET", "/api/v1/events/?limit=3", Value::Null)
        .await;
    assert_eq!(
        (page["events"].as_array().unwrap().len(), &page["more"]),
        (3, &json!(true))
    );
    let rest = format!("/api/v1/events/?after={}", page["next_after"]);
    let (_, rest) = server.call(READER, "GET", &rest, Value::Null).await;
    assert_eq!(rest["events"].as_array().unwrap().len(), 1);
    let (status, _) = server
        .call(READER, "GET", "/api/v1/events/?type=nonsense", Value::Null)
        .await;
    assert_eq!(status, 400);
}

#[tokio::test]
async fn l20_a_gap_is_told_with_a_snapshot() {
    let server = start().await;
    server.acquire("a", "1", "h").await;
    // A revision from the future: a store that lost its data, and a reader that did not.
    let mut events = Events::open(&server, Some(1_000_000)).await;
    let (name, snapshot) = events.next().await.unwrap();
    assert_eq!(name, "snapshot");
    assert_eq!(snapshot["leases"][0]["id"], "1");
}

#[tokio::test]
async fn subscribers_that_want_the_same_share_one_watch_and_miss_nothing() {
    let clock = clock();
    let counted = Counted::new(memory(&clock));
    let server = start_on(options(), clock, counted.clone()).await;
    let watches = || counted.watches.load(Ordering::SeqCst);
    server.acquire("a", "before", "h").await;
    // The server's own: credentials, sites, and what holders are told.
    let own = 3;
    wait::until(LONG, "the server watches", async || watches() == own).await;
    let mut first = Events::open(&server, None).await;
    assert_eq!(
        watches(),
        own + 1,
        "what is opened for one is not opened twice"
    );
    let mut fleet = Vec::new();
    for _ in 0..10 {
        fleet.push(Events::open(&server, None).await);
    }
    let mut narrowed = Events::filtered(&server, None, "?kind=b").await;
    let changes = async {
        for number in 0..200 {
            server.acquire("a", &number.to_string(), "h").await;
        }
        server.acquire("b", "last", "h").await;
    };
    // Some come back in the middle of it, with what they have seen, and catch up.
    let returns = async {
        let (_, seen) = first.next().await.unwrap();
        let mut returned = Vec::new();
        for _ in 0..5 {
            let events = Events::open(&server, seen["revision"].as_u64()).await;
            returned.push(events);
        }
        returned
    };
    let ((), returned) = tokio::join!(changes, returns);
    // One has its first event already.
    let expected = |from: usize| (from..200).map(|number| number.to_string());
    let opened = fleet;
    let mut fleet = Vec::new();
    for (from, mut events) in opened
        .into_iter()
        .map(|events| (0, events))
        .chain([(1, first)])
        .chain(returned.into_iter().map(|events| (1, events)))
    {
        for id in expected(from).chain(["last".to_owned()]) {
            assert_eq!(events.next().await.unwrap().1["id"], id);
        }
        fleet.push(events);
    }
    assert_eq!(narrowed.next().await.unwrap().1["id"], "last");
    // All of them moved into the room, but for the one that wants something else; it shares its own with nobody.
    // One that was ahead of the room when it had caught up moves with a later change.
    let mut more = 0;
    while watches() > own + 1 + 2 {
        assert!(more < 100, "one watch for all");
        more += 1;
        server.acquire("a", &format!("more-{more}"), "h").await;
        for events in &mut fleet {
            events.next().await.unwrap();
        }
    }
    drop((fleet, narrowed));
    wait::until(LONG, "no watch for nobody", async || watches() <= own).await;
}

/// Holds back what the watches that are opened now have to say, until it may be said.
struct Silenced {
    inner: Arc<dyn Authority>,
    silences: AtomicBool,
    may_be_said: Arc<Semaphore>,
}

impl Authority for Silenced {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn decide(&self, command: Command) -> Answer<'_, Outcome> {
        self.inner.decide(command)
    }

    fn look(&self, query: Query) -> Answer<'_, View> {
        self.inner.look(query)
    }

    fn watch(&self, watching: Watching) -> Answer<'_, Watch> {
        Box::pin(async {
            let watch = self.inner.watch(watching).await?;
            if !self.silences.load(Ordering::SeqCst) {
                return Ok(watch);
            }
            let may_be_said = self.may_be_said.clone();
            let held = watch.then(move |notice| {
                let may_be_said = may_be_said.clone();
                async move {
                    may_be_said.acquire().await.unwrap().forget();
                    notice
                }
            });
            Ok(Box::pin(held) as Watch)
        })
    }
}

#[tokio::test]
async fn l20_what_a_watch_has_yet_to_say_is_not_lost_when_its_subscriber_joins_the_others() {
    let clock = clock();
    let silenced = Arc::new(Silenced {
        inner: memory(&clock),
        silences: AtomicBool::new(false),
        may_be_said: Arc::new(Semaphore::new(0)),
    });
    let mut options = options();
    options.limits.stream_heartbeat = leasehold_api::config::Period::from_millis(50);
    let server = start_on(options, clock, silenced.clone()).await;
    let mut first = Events::open(&server, None).await;
    silenced.silences.store(true, Ordering::SeqCst);
    let mut second = Events::open(&server, None).await;
    silenced.silences.store(false, Ordering::SeqCst);
    server.acquire("a", "1", "h").await;
    let told = ["lease_acquired", "lease_renewed", "lease_renewed"];
    for _ in 1..told.len() {
        let body = json!({"holder": "h", "incarnation": "0"});
        let renewed = server.call(WRITER, "POST", "/api/v1/leases/renew", body);
        assert_eq!(renewed.await.0, 200);
    }
    for name in told {
        assert_eq!(first.next().await.unwrap().0, name);
    }
    // Its own watch falls silent after the first change, at a revision up to which the others have everything:
    // renewals have none of their own.
    silenced.may_be_said.add_permits(1);
    assert_eq!(second.next().await.unwrap().0, told[0]);
    assert_eq!(second.block().await.as_deref(), Some(": alive"));
    silenced.may_be_said.add_permits(100);
    for name in &told[1..] {
        assert_eq!(second.next().await.unwrap().0, *name);
    }
}

/// Says on watches of one kind what it is told to say.
struct Prompted {
    inner: Arc<dyn Authority>,
    notices: broadcast::Sender<Notice>,
}

impl Authority for Prompted {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn decide(&self, command: Command) -> Answer<'_, Outcome> {
        self.inner.decide(command)
    }

    fn look(&self, query: Query) -> Answer<'_, View> {
        self.inner.look(query)
    }

    fn watch(&self, watching: Watching) -> Answer<'_, Watch> {
        if watching.kinds != ["told"] {
            return self.inner.watch(watching);
        }
        let notices = self.notices.subscribe();
        let said = futures_util::stream::unfold(notices, |mut notices| async {
            Some((Ok(notices.recv().await.ok()?), notices))
        });
        Box::pin(async { Ok(Box::pin(said) as Watch) })
    }
}

impl Prompted {
    fn event(&self, revision: u64) {
        let event = lease::Event {
            revision: Revision::new(revision),
            at: UnixMillis::new(1),
            kind: EventKind::RecordPut,
            key: "told:1".parse().unwrap(),
            lease: None,
            cause: None,
            detail: None,
        };
        self.notices.send(Notice::Event(event.into())).unwrap();
    }

    fn snapshot(&self, revision: u64) {
        let snapshot = lease::Snapshot {
            revision: Revision::new(revision),
            ..lease::Snapshot::default()
        };
        self.notices
            .send(Notice::Snapshot(snapshot.into()))
            .unwrap();
    }
}

/// The store has lost its last changes and goes on from before: subscribers see where it is, and what comes then.
#[tokio::test]
async fn l20_a_history_that_goes_back_is_told_to_all_who_share_a_watch() {
    let clock = clock();
    let prompted = Arc::new(Prompted {
        inner: memory(&clock),
        notices: broadcast::Sender::new(64),
    });
    let mut options = options();
    options.limits.stream_heartbeat = leasehold_api::config::Period::from_millis(50);
    let server = start_on(options, clock, prompted.clone()).await;
    let revision = |told: Option<(String, Value)>| told.unwrap().1["revision"].as_u64().unwrap();
    let mut first = Events::filtered(&server, None, "?kind=told").await;
    let mut second = Events::filtered(&server, None, "?kind=told").await;
    // With the second change the second one leaves its own watch.
    for told in [99, 100] {
        prompted.event(told);
        for subscriber in [&mut first, &mut second] {
            assert_eq!(revision(subscriber.next().await), told);
        }
    }
    prompted.snapshot(90);
    prompted.event(91);
    for subscriber in [&mut first, &mut second] {
        assert_eq!(revision(subscriber.next().await), 90);
        assert_eq!(revision(subscriber.next().await), 91);
    }
    // One that watches for itself, and has seen more than the others have now.
    let mut third = Events::filtered(&server, None, "?kind=told").await;
    prompted.event(95);
    assert_eq!(revision(third.next().await), 95);
    prompted.snapshot(80);
    for told in 81..84 {
        prompted.event(told);
    }
    assert_eq!(revision(first.next().await), 95);
    for told in 80..84 {
        for subscriber in [&mut first, &mut third] {
            assert_eq!(revision(subscriber.next().await), told);
        }
    }
}

#[tokio::test]
async fn l20_a_subscriber_that_was_too_slow_for_the_others_begins_again() {
    let server = start().await;
    let mut quick = Events::open(&server, None).await;
    // It does not read for a while.
    let mut slow = Events::open(&server, None).await;
    let keys: Vec<Value> = (0..256)
        .map(|number| json!({"kind": "busy", "id": number.to_string()}))
        .collect();
    let labels = json!({"one": "1".repeat(512), "two": "2".repeat(512)});
    let body = json!({"keys": keys, "holder": "h", "incarnation": "1", "ttl_seconds": 600, "labels": labels});
    let (status, _) = server
        .call(WRITER, "POST", "/api/v1/leases/acquire", body)
        .await;
    assert_eq!(status, 200);
    let reading = tokio::spawn(async move { while quick.block().await.is_some() {} });
    // 50 MB: far more than a connection and the room keep for it.
    for _ in 0..150 {
        let all = json!({"holder": "h", "incarnation": "1"});
        let (status, _) = server
            .call(WRITER, "POST", "/api/v1/leases/renew", all)
            .await;
        assert_eq!(status, 200);
    }
    reading.abort();
    let snapshot = loop {
        let (name, data) = slow.next().await.unwrap();
        if name == "snapshot" {
            break data;
        }
    };
    assert_eq!(snapshot["leases"].as_array().unwrap().len(), 256);
    server.acquire("a", "1", "other").await;
    // By its event; or by another snapshot, when it was too slow for the rest as well.
    loop {
        let (name, data) = slow.next().await.unwrap();
        let leases = data["leases"].as_array();
        if name == "lease_acquired" && data["id"] == "1"
            || leases.is_some_and(|leases| leases.len() == 257)
        {
            break;
        }
    }
}

#[tokio::test]
async fn streams_end_with_a_goodbye_when_the_server_stops() {
    let mut server = start().await;
    let mut events = Events::open(&server, None).await;
    let mut socket = connect(&server, "h", false).await;
    let lease = mortal(&server, "x", "h").await;
    assert_eq!(events.next().await.unwrap().0, "lease_acquired");
    let body = json!({"kind": "job", "id": "x", "holder": "other", "wait_seconds": 60});
    let waiting = {
        let (http, url) = (server.http.clone(), server.url.clone());
        let request = http
            .post(format!("{url}/api/v1/leases/acquire/"))
            .bearer_auth(WRITER)
            .json(&body);
        tokio::spawn(async move { request.send().await.unwrap().status().as_u16() })
    };
    wait::until(LONG, "the wait is counted", async || {
        let (_, metrics) = server.call("", "GET", "/metrics", Value::Null).await;
        metrics.as_str().unwrap().contains("leasehold_waiters 1")
    })
    .await;
    server.tell_to_stop();
    assert_eq!(waiting.await.unwrap(), 503);
    assert_eq!(events.next().await.unwrap().0, "goodbye");
    assert_eq!(hear(&mut socket).await["type"], "goodbye");
    server.stopped().await;
    // L15: the end of the server proves nothing about its holders.
    let live = server
        .authority
        .lease("job:x".parse().unwrap())
        .await
        .unwrap();
    assert_eq!(live.map(|it| it.token.get()), lease["token"].as_u64());
}

#[tokio::test]
async fn l17_a_holder_renews_and_learns_of_its_losses_on_its_stream() {
    let server = start().await;
    let mut socket = connect(&server, "h", false).await;
    let lease = mortal(&server, "x", "h").await;
    server.clock.advance(1000);
    socket
        .send(Message::text(r#"{"type":"renew","id":1}"#))
        .await
        .unwrap();
    let renewed = hear(&mut socket).await;
    assert_eq!(
        (&renewed["type"], &renewed["id"]),
        (&json!("renewed"), &json!(1))
    );
    assert_eq!(
        renewed["body"][0]["outcome"]["Ok"]["renewed_at"],
        1_800_000_001_000_u64
    );
    socket
        .send(Message::text(
            r#"{"type":"renew","id":2,"body":{"these":[{"key":"job:x"}]}}"#,
        ))
        .await
        .unwrap();
    let failed = hear(&mut socket).await;
    assert_eq!(
        (&failed["id"], &failed["body"]["status"]),
        (&json!(2), &json!(400))
    );
    let path = format!(
        "/api/v1/leases/{}/revoke/",
        lease["lease_id"].as_str().unwrap()
    );
    server
        .call(ADMIN, "POST", &path, json!({"reason": "maintenance"}))
        .await;
    let lost = hear(&mut socket).await;
    assert_eq!(
        (&lost["type"], &lost["body"]["token"]),
        (&json!("lost"), &lease["token"])
    );
    assert_eq!(
        lost["body"]["loss"],
        json!({"reason": "revoked", "why": "maintenance"})
    );
}

#[tokio::test]
async fn l15_a_connection_that_the_kernel_closed_proves_death() {
    let server = start().await;
    let socket = connect(&server, "h", false).await;
    mortal(&server, "x", "h").await;
    server.acquire("job", "immortal", "h").await;
    // What the kernel does when a process is killed: the socket is closed, nothing is said.
    drop(socket);
    wait::until(LONG, "the dead holder's lease is released", async || {
        !is_live(&server, "x").await
    })
    .await;
    assert!(is_live(&server, "immortal").await);
}

#[tokio::test]
async fn l15_a_goodbye_a_proxy_or_a_newer_connection_is_no_proof() {
    let server = start().await;
    mortal(&server, "x", "h").await;
    mortal(&server, "y", "behind").await;
    let mut polite = connect(&server, "h", false).await;
    polite
        .send(Message::text(r#"{"type":"goodbye"}"#))
        .await
        .unwrap();
    drop(polite);
    let mut closing = connect(&server, "h", false).await;
    closing.close(None).await.unwrap();
    drop(closing);
    drop(connect(&server, "behind", true).await);
    let mut earlier = connect(&server, "h", false).await;
    let newer = connect(&server, "h", false).await;
    assert_eq!(hear(&mut earlier).await["type"], "goodbye");
    drop(earlier);
    wait::until(LONG, "only the newest stream is open", async || {
        let (_, metrics) = server.call("", "GET", "/metrics", Value::Null).await;
        metrics
            .as_str()
            .unwrap()
            .contains("leasehold_holder_streams 1")
    })
    .await;
    assert!(is_live(&server, "x").await);
    assert!(is_live(&server, "y").await);
    // And the newest one still counts.
    drop(newer);
    wait::until(LONG, "the death is seen", async || {
        !is_live(&server, "x").await
    })
    .await;
}

#[tokio::test]
async fn an_idle_stream_shows_that_it_is_alive() {
    let mut options = options();
    options.limits.stream_heartbeat = leasehold_api::config::Period::from_millis(50);
    let server = start_with(options).await;
    let mut events = Events::open(&server, None).await;
    assert_eq!(events.block().await.as_deref(), Some(": alive"));
    let mut socket = connect(&server, "h", false).await;
    let message = tokio::time::timeout(LONG, socket.next()).await;
    assert!(matches!(message, Ok(Some(Ok(Message::Ping(_))))));
}

#[tokio::test]
async fn l20_a_stream_takes_the_filters_of_a_page() {
    let server = start().await;
    let mut of_holder = Events::filtered(&server, None, "?holder=h").await;
    let mut of_key = Events::filtered(&server, None, "?key=a:2&type=lease_released").await;
    let mut of_kind = Events::filtered(&server, None, "?kind=b&renewals=false").await;
    server.acquire("a", "1", "other").await;
    let lease = server.acquire("a", "2", "h").await;
    let third = server.acquire("b", "3", "other").await;
    for lease in [&lease, &third] {
        let id = lease["lease_id"].as_str().unwrap();
        for (method, verb) in [("PUT", "renew"), ("DELETE", "release")] {
            let path = format!("/api/v1/leases/{id}/{verb}/");
            let (status, answer) = server.call(WRITER, method, &path, json!({})).await;
            assert_eq!(status, 200, "{answer}");
        }
    }
    for (events, expected) in [
        (
            &mut of_holder,
            &["lease_acquired", "lease_renewed", "lease_released"][..],
        ),
        (&mut of_key, &["lease_released"][..]),
        (&mut of_kind, &["lease_acquired", "lease_released"][..]),
    ] {
        for name in expected {
            assert_eq!(events.next().await.unwrap().0, *name);
        }
    }
    // What is live, and nobody else's, when the revision never was.
    server.acquire("a", "4", "h").await;
    let mut again = Events::filtered(&server, Some(1 << 40), "?holder=h").await;
    let (name, snapshot) = again.next().await.unwrap();
    assert_eq!(
        (name.as_str(), snapshot["leases"].as_array().unwrap().len()),
        ("snapshot", 1)
    );
    for wrong in ["?type=nothing", "?key=nocolon", "?kind=%20", "?holder=%20"] {
        let url = format!("{}/api/v1/events/stream{wrong}", server.url);
        let response = server
            .http
            .get(url)
            .bearer_auth(READER)
            .send()
            .await
            .unwrap();
        assert_eq!(response.status(), 400, "{wrong}");
    }
}

/// Each filter alone, and combined: what the page has is what the stream sends, and nothing between.
#[tokio::test]
async fn l20_a_filter_means_the_same_on_a_page_and_on_a_stream() {
    let server = start().await;
    for (kind, id) in [("a", "1"), ("b", "1"), ("a", "2"), ("b", "2"), ("a", "1")] {
        let lease = server.acquire(kind, id, "h").await;
        let id = lease["lease_id"].as_str().unwrap();
        let path = format!("/api/v1/leases/{id}/release/");
        let (status, answer) = server.call(WRITER, "DELETE", &path, Value::Null).await;
        assert_eq!(status, 200, "{answer}");
    }
    for (filter, count) in [
        ("", 10),
        ("&kind=a", 6),
        ("&key=a:1", 4),
        ("&type=lease_released", 5),
        ("&kind=b&type=lease_acquired", 2),
        ("&key=a:1&type=lease_released", 2),
        ("&kind=a&key=a:2", 2),
        ("&kind=a&key=a:1&type=lease_acquired", 2),
    ] {
        let path = format!("/api/v1/events/?after=0{filter}");
        let (_, page) = server.call(READER, "GET", &path, Value::Null).await;
        let of_page: Vec<Value> = page["events"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|it| ["a", "b"].iter().any(|kind| it["kind"] == *kind))
            .map(|it| json!([it["revision"], it["event_type"], it["key"]]))
            .collect();
        assert_eq!(of_page.len(), count, "{filter}: {page}");
        let mut events = Events::filtered(&server, None, &format!("?after=0{filter}")).await;
        let mut of_stream = Vec::new();
        while of_stream.len() < count {
            let (_, it) = events.next().await.unwrap();
            if ["a", "b"].iter().any(|kind| it["kind"] == *kind) {
                of_stream.push(json!([it["revision"], it["event_type"], it["key"]]));
            }
        }
        assert_eq!(of_stream, of_page, "{filter}");
    }
}

#[tokio::test]
async fn namesakes_of_two_tenants_hear_only_of_their_own_losses() {
    let server = start().await;
    let mut sockets = Vec::new();
    for (token, id) in [(TENANT_A, "1"), (TENANT_B, "2")] {
        let socket = connect_as(&server, token, "same", false).await;
        let body = json!({"kind": "job", "id": id, "holder": "same", "incarnation": "i1"});
        let (status, lease) = server
            .call(token, "POST", "/api/v1/leases/acquire/", body)
            .await;
        assert_eq!(status, 200, "{lease}");
        sockets.push((socket, lease["lease_id"].as_str().unwrap().to_owned()));
    }
    // Neither connection took the other's place, and each hears of its own lease first.
    for (_, lease) in &sockets {
        let path = format!("/api/v1/leases/{lease}/revoke/");
        let (status, answer) = server
            .call(ADMIN, "POST", &path, json!({"reason": "test"}))
            .await;
        assert_eq!(status, 200, "{answer}");
    }
    for ((socket, _), key) in sockets.iter_mut().zip(["job:1", "job:2"]) {
        let lost = hear(socket).await;
        assert_eq!(
            (&lost["type"], &lost["body"]["key"]),
            (&json!("lost"), &json!(key))
        );
    }
}

#[tokio::test]
async fn l15_a_runners_proven_death_ends_its_presence() {
    let server = start().await;
    let body = json!({"runner_id": "run-1", "tenant_id": "t", "site_id": "s", "capacity": 4,
        "deployment_group": "g", "deployment_version": "1", "host": "h", "port": 80,
        "capabilities": [], "incarnation": "i1", "ttl_seconds": 600});
    let (status, runner) = server
        .call(ADMIN, "POST", "/api/v1/runners/register/", body)
        .await;
    assert_eq!(status, 200, "{runner}");
    let socket = connect(&server, "run-1", false).await;
    // The kernel of a process that is killed closes its connections without a word.
    drop(socket);
    wait::until(LONG, "the runner is gone", async || {
        let (_, runner) = server
            .call(ADMIN, "GET", "/api/v1/runners/run-1/", Value::Null)
            .await;
        runner["status"] == "inactive"
    })
    .await;
}
