//! Events on their way to a real RabbitMQ that stops, and from a server that dies.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

use futures_util::StreamExt as _;
use lapin::{
    Connection, ConnectionProperties, ExchangeKind,
    options::{
        BasicAckOptions, BasicConsumeOptions, ExchangeDeclareOptions, QueueBindOptions,
        QueueDeclareOptions,
    },
    types::FieldTable,
};
use lease::{Acquire, Acquired, Authority, EventQuery, Holder, Key, LeaseRef, Revision, Ttl};
use leasehold_server::{EXCHANGE, Options};
use leasehold_testkit::{RabbitMq, wait};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::support::{self, ADMIN};

const QUEUE: &str = "everything";

async fn broker(rabbit: &RabbitMq) -> Connection {
    Connection::connect(&rabbit.url(), ConnectionProperties::default())
        .await
        .unwrap()
}

/// A durable queue that gets everything from now on.
async fn listen(rabbit: &RabbitMq) {
    let connection = broker(rabbit).await;
    let channel = connection.create_channel().await.unwrap();
    let durable = ExchangeDeclareOptions {
        durable: true,
        ..ExchangeDeclareOptions::default()
    };
    let none = FieldTable::default;
    channel
        .exchange_declare(EXCHANGE.into(), ExchangeKind::Topic, durable, none())
        .await
        .unwrap();
    channel
        .queue_declare(QUEUE.into(), QueueDeclareOptions::durable(), none())
        .await
        .unwrap();
    let bind = QueueBindOptions::default();
    channel
        .queue_bind(QUEUE.into(), EXCHANGE.into(), "#".into(), bind, none())
        .await
        .unwrap();
}

struct Message {
    id: Option<String>,
    routing_key: String,
    body: Value,
}

/// What is in the queue, until `last` was seen.
async fn consume(rabbit: &RabbitMq, last: impl Fn(&Message) -> bool) -> Vec<Message> {
    let connection = broker(rabbit).await;
    let channel = connection.create_channel().await.unwrap();
    let mut consumer = channel
        .basic_consume(
            QUEUE.into(),
            "test".into(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        )
        .await
        .unwrap();
    let mut messages = Vec::new();
    let reading = async {
        while let Some(delivery) = consumer.next().await {
            let delivery = delivery.unwrap();
            let message = Message {
                id: delivery
                    .properties
                    .message_id()
                    .as_ref()
                    .map(ToString::to_string),
                routing_key: delivery.routing_key.to_string(),
                body: serde_json::from_slice(&delivery.data).unwrap(),
            };
            delivery.ack(BasicAckOptions::default()).await.unwrap();
            let done = last(&message);
            messages.push(message);
            if done {
                break;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), reading)
        .await
        .expect("everything arrives");
    messages
}

fn options(rabbit: &RabbitMq) -> Options {
    Options {
        amqp: Some(rabbit.url().into()),
        ..support::options()
    }
}

/// `count` grants and releases over a few keys.
async fn work(authority: &dyn Authority, count: usize) {
    let ttl = Ttl::from_millis(60_000).unwrap();
    for n in 0..count {
        let key = Key::new("job", &format!("k.{}", n % 7)).unwrap();
        let holder = Holder::new(&format!("h{n}"), "0").unwrap();
        let acquired = authority
            .acquire(Acquire::one(key, holder, ttl))
            .await
            .unwrap();
        let Acquired::Granted { leases, .. } = acquired else {
            panic!("{acquired:?}");
        };
        authority.release(LeaseRef::from(&leases[0])).await.unwrap();
    }
}

async fn confirmed(authority: &dyn Authority) -> u64 {
    let cursor = Key::new("outbox", "cursor").unwrap();
    let record = authority.record(cursor).await.unwrap();
    record.map_or(0, |record| {
        let cursor: Value = serde_json::from_str(&record.value).unwrap();
        cursor["after"].as_u64().unwrap()
    })
}

/// The history without the cursor's own changes, by key.
async fn history(authority: &dyn Authority) -> BTreeMap<String, Vec<u64>> {
    let mut events = BTreeMap::<String, Vec<u64>>::new();
    let mut after = Revision::ZERO;
    loop {
        let query = EventQuery {
            after,
            limit: 1000,
            ..EventQuery::default()
        };
        let page = authority.events(query).await.unwrap();
        for event in &page.events {
            after = event.revision;
            if event.key.kind() != "outbox" {
                events
                    .entry(event.key.to_string())
                    .or_default()
                    .push(event.revision.get());
            }
        }
        if !page.more {
            return events;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heavy_every_event_arrives_in_order_though_the_broker_stops_and_the_server_dies() {
    let mut rabbit = RabbitMq::start().await;
    listen(&rabbit).await;
    let clock = support::clock();
    let authority = support::memory(&clock);
    let first = Runtime::new().unwrap();
    // Dropped, it would stop the server.
    let _dies_with_its_runtime = first
        .spawn(support::start_on(
            options(&rabbit),
            clock.clone(),
            authority.clone(),
        ))
        .await
        .unwrap();
    work(&*authority, 200).await;
    let long = Duration::from_secs(30);
    wait::until(long, "the first events are confirmed", async || {
        confirmed(&*authority).await > 100
    })
    .await;

    // The broker goes away under load, and comes back.
    let load = tokio::spawn({
        let authority = authority.clone();
        async move { work(&*authority, 600).await }
    });
    rabbit.stop().await;
    load.await.unwrap();
    let stuck = confirmed(&*authority).await;
    rabbit.restart().await;
    wait::until(long, "publishing goes on", async || {
        // The publisher pauses on this clock between attempts to reach the broker.
        clock.advance(100);
        confirmed(&*authority).await > stuck
    })
    .await;

    // The server dies in the middle of it, and another takes over once its leadership has lapsed.
    let load = tokio::spawn({
        let authority = authority.clone();
        async move { work(&*authority, 600).await }
    });
    first.shutdown_background();
    load.await.unwrap();
    clock.advance(11_000);
    let second = support::start_on(options(&rabbit), clock.clone(), authority.clone()).await;
    work(&*authority, 50).await;

    let last = history(&*authority)
        .await
        .into_iter()
        .filter(|(key, _)| key.starts_with("job:"))
        .filter_map(|(_, revisions)| revisions.last().copied())
        .max()
        .unwrap();
    wait::until(long, "everything is confirmed", async || {
        clock.advance(100);
        confirmed(&*authority).await >= last
    })
    .await;
    let wanted = format!("-{last}");
    let is_last = |message: &Message| message.id.as_ref().is_some_and(|id| id.ends_with(&wanted));
    let messages = consume(&rabbit, is_last).await;

    let mut seen = HashSet::new();
    let mut arrived = BTreeMap::<String, Vec<u64>>::new();
    let total = messages.len();
    for message in &messages {
        if !seen.insert(message.id.clone().unwrap()) {
            continue;
        }
        let key = message.body["key"].as_str().unwrap().to_owned();
        arrived
            .entry(key)
            .or_default()
            .push(message.body["revision"].as_u64().unwrap());
    }
    println!("{total} messages, {} of them once", seen.len());
    for (key, revisions) in history(&*authority).await {
        let expected: Vec<u64> = revisions.into_iter().filter(|it| *it <= last).collect();
        assert_eq!(arrived.remove(&key).unwrap_or_default(), expected, "{key}");
    }
    assert!(arrived.is_empty(), "{arrived:?}");
    let acquired = messages
        .iter()
        .find(|it| it.body["event_type"] == "lease_acquired" && it.body["key"] == "job:k.1")
        .unwrap();
    assert_eq!(acquired.routing_key, "lease.lease_acquired.-.-.job:k%2E1");
    assert!(acquired.body["token"].as_u64().unwrap() > 0);
    drop(second);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rebuilt_store_repeats_no_message_id() {
    const STORES: usize = 2;
    const SERVERS: usize = 2;
    let rabbit = RabbitMq::start().await;
    listen(&rabbit).await;
    let mut events = 0;
    for _ in 0..STORES {
        let clock = support::clock();
        let authority = support::memory(&clock);
        // Another server on the same store goes on with its identity.
        for _ in 0..SERVERS {
            work(&*authority, 3).await;
            let newest = history(&*authority).await.into_values().flatten().max();
            let server =
                support::start_on(options(&rabbit), clock.clone(), authority.clone()).await;
            let long = Duration::from_secs(30);
            wait::until(long, "everything is confirmed", async || {
                clock.advance(100);
                confirmed(&*authority).await >= newest.unwrap()
            })
            .await;
            drop(server);
            clock.advance(11_000);
        }
        let jobs = history(&*authority).await.into_iter();
        events += jobs
            .filter(|(key, _)| key.starts_with("job:"))
            .map(|(_, revisions)| revisions.len())
            .sum::<usize>();
    }
    assert_eq!(events, STORES * SERVERS * 6);
    let seen = std::cell::RefCell::new(BTreeMap::<String, HashSet<String>>::new());
    consume(&rabbit, |message| {
        let id = message.id.clone().unwrap();
        assert_eq!(message.body["event_id"].as_str(), Some(id.as_str()));
        let (identity, revision) = id
            .rsplit_once('-')
            .expect("an identity before the revision");
        assert_eq!(message.body["revision"].to_string(), revision);
        let mut seen = seen.borrow_mut();
        if message.body["kind"] == "job" {
            seen.entry(identity.to_owned()).or_default().insert(id);
        }
        seen.values().map(HashSet::len).sum::<usize>() == events
    })
    .await;
    assert_eq!(seen.borrow().len(), STORES, "{seen:?}");
}

#[tokio::test]
async fn heartbeats_and_camera_leases_are_routed_by_tenant_and_site() {
    let rabbit = RabbitMq::start().await;
    listen(&rabbit).await;
    let clock = support::clock();
    let authority: Arc<dyn Authority> = support::memory(&clock);
    let server = support::start_on(options(&rabbit), clock, authority).await;
    server.runner("t.1", "s", "r", 4).await;
    server.camera("t.1", "s", "cam").await;
    let (status, _) = server.lease_camera("cam", "r").await;
    assert_eq!(status, 200);
    let body = json!({"current_load": 1, "metrics": {"fps": 25}});
    server
        .call(ADMIN, "PUT", "/api/v1/runners/r/heartbeat", body)
        .await;
    let wanted = HashSet::from([
        "runner.heartbeat.t%2E1.s.r".to_owned(),
        "lease.lease_acquired.t%2E1.s.camera:cam".to_owned(),
        "lease.record_put.t%2E1.s.camera:t%2E1/s/cam".to_owned(),
    ]);
    let seen = std::cell::RefCell::new(wanted.clone());
    let messages = consume(&rabbit, |message| {
        seen.borrow_mut().remove(&message.routing_key);
        seen.borrow().is_empty()
    })
    .await;
    for message in &messages {
        assert!(!message.body.to_string().contains("secret"));
    }
    let heartbeat = messages
        .iter()
        .find(|it| it.routing_key.starts_with("runner."))
        .unwrap();
    assert_eq!(heartbeat.body["current_load"], 1);
    assert_eq!(heartbeat.body["active_leases"], 1);
}
