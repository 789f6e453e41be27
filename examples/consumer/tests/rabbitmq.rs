//! The consumer as a process, against a real broker: what comes twice, late or from an old owner, and
//! ends in the middle.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::{collections::BTreeMap, path::Path, time::Duration};

use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties,
    options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions},
    types::FieldTable,
};
use leasehold_consumer::{Applied, Outcome, Store};
use leasehold_testkit::{Child, Dir, Program, RabbitMq, wait};
use serde_json::json;

const SOON: Duration = Duration::from_secs(60);
const QUEUE: &str = "test.events";

fn consumer(broker: &RabbitMq, state: &Path) -> Child {
    Program::new(env!("CARGO_BIN_EXE_leasehold-consumer"))
        .args(["--amqp", &broker.url(), "--queue", QUEUE, "--state"])
        .arg(state)
        .spawn()
}

/// Publishes as the server does: persistent and confirmed.
struct Publisher {
    _connection: Connection,
    channel: Channel,
}

impl Publisher {
    async fn connect(broker: &RabbitMq) -> Self {
        let properties = ConnectionProperties::default();
        let connection = Connection::connect(&broker.url(), properties)
            .await
            .unwrap();
        let channel = connection.create_channel().await.unwrap();
        let confirm = ConfirmSelectOptions::default();
        channel.confirm_select(confirm).await.unwrap();
        Self {
            _connection: connection,
            channel,
        }
    }

    async fn raw(&self, id: Option<&str>, body: &[u8]) {
        let mut properties = BasicProperties::default().with_delivery_mode(2);
        if let Some(id) = id {
            properties = properties.with_message_id(id.into());
        }
        let publish = self.channel.basic_publish(
            "leasehold.events".into(),
            "lease.lease_acquired.-.-.job:x".into(),
            BasicPublishOptions::default(),
            body,
            properties,
        );
        assert!(publish.await.unwrap().await.unwrap().is_ack());
    }

    async fn event(&self, key: &str, revision: u64, token: Option<u64>) {
        self.event_of("one", key, revision, token).await;
    }

    async fn event_of(&self, authority: &str, key: &str, revision: u64, token: Option<u64>) {
        let message_id = format!("{authority}-{revision}");
        let (kind, id) = key.split_once(':').unwrap();
        let mut event = json!({
            "event_id": message_id, "revision": revision, "event_type": "lease_acquired",
            "timestamp": "2026-01-01T00:00:00Z", "key": key, "kind": kind, "id": id,
        });
        if let Some(token) = token {
            event["token"] = token.into();
        }
        self.raw(Some(&message_id), event.to_string().as_bytes())
            .await;
    }
}

/// Waits until an event took effect, and returns everything that did.
async fn until_applied(state: &Path, revision: u64) -> Vec<Applied> {
    let what = format!("revision {revision} takes effect");
    wait::until_some(SOON, &what, async || {
        let applied = Store::open(state).ok()?.applied().ok()?;
        let there = applied.iter().any(|event| event.revision == revision);
        there.then_some(applied)
    })
    .await
}

fn revisions_of(applied: &[Applied], key: &str) -> Vec<u64> {
    let of_key = applied.iter().filter(|event| event.key == key);
    of_key.map(|event| event.revision).collect()
}

#[tokio::test]
async fn rabbitmq_what_comes_twice_late_or_from_an_old_owner_has_no_effect() {
    let broker = RabbitMq::start().await;
    let dir = Dir::new("consumer");
    let state = dir.join("state.sqlite3");
    let mut process = consumer(&broker, &state);
    process.wait_for_line("consuming", SOON).await;
    let publisher = Publisher::connect(&broker).await;

    publisher.event("job:a", 10, Some(100)).await;
    publisher.event("job:a", 10, Some(100)).await; // twice
    publisher.event("job:a", 12, Some(100)).await; // the same owner's next
    publisher.event("job:a", 13, Some(200)).await; // another owner
    publisher.event("job:a", 14, Some(100)).await; // the first owner woke up late
    publisher.event("job:a", 11, Some(200)).await; // out of order
    publisher.event("job:a", 15, None).await; // not about a lease
    publisher.event("job:a", 16, Some(100)).await; // the mark is still there
    publisher.raw(None, b"{}").await; // no id
    publisher.raw(Some("x"), b"not JSON").await;
    publisher.event("job:b", 17, Some(1)).await; // other keys have tokens of their own
    for _ in 0..2 {
        publisher.event("job:a", 13, Some(200)).await;
    }
    publisher.event("job:a", 18, Some(200)).await;

    let applied = until_applied(&state, 18).await;
    assert_eq!(revisions_of(&applied, "job:a"), [10, 12, 13, 15, 18]);
    assert_eq!(revisions_of(&applied, "job:b"), [17]);
    let dropped = |outcome| Store::open(&state).unwrap().dropped(outcome).unwrap();
    assert_eq!(dropped(Outcome::Duplicate), 3);
    assert_eq!(dropped(Outcome::Stale), 2);
    assert_eq!(dropped(Outcome::Late), 1);
    // What made no sense is kept aside, and nothing else is.
    wait::until(SOON, "two messages are aside", async || {
        let passive = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::durable()
        };
        let aside = format!("{QUEUE}.rejected");
        let queue = publisher
            .channel
            .queue_declare(aside.as_str().into(), passive, FieldTable::default())
            .await;
        queue.unwrap().message_count() == 2
    })
    .await;
}

#[tokio::test]
async fn rabbitmq_events_of_a_rebuilt_store_take_effect_though_its_revisions_begin_anew() {
    let broker = RabbitMq::start().await;
    let dir = Dir::new("consumer");
    let state = dir.join("state.sqlite3");
    let mut process = consumer(&broker, &state);
    process.wait_for_line("consuming", SOON).await;
    let publisher = Publisher::connect(&broker).await;
    publisher.event_of("one", "job:a", 10, Some(100)).await;
    publisher.event_of("two", "job:a", 1, Some(1)).await;
    publisher.event_of("two", "job:a", 10, Some(2)).await;
    publisher.event_of("two", "job:a", 10, Some(2)).await;
    publisher.event_of("two", "job:a", 11, Some(2)).await;
    let applied = until_applied(&state, 11).await;
    assert_eq!(revisions_of(&applied, "job:a"), [10, 1, 10, 11]);
    let dropped = Store::open(&state).unwrap().dropped(Outcome::Duplicate);
    assert_eq!(dropped.unwrap(), 1);
}

#[tokio::test]
async fn rabbitmq_each_event_takes_effect_once_and_in_order_through_kills_and_a_broker_restart() {
    const KEYS: u64 = 5;
    const EVENTS: u64 = 600;
    let mut broker = RabbitMq::start().await;
    let dir = Dir::new("consumer");
    let state = dir.join("state.sqlite3");
    let mut process = consumer(&broker, &state);
    process.wait_for_line("consuming", SOON).await;

    let mut publisher = Publisher::connect(&broker).await;
    for revision in 1..=EVENTS {
        let key = format!("job:{}", revision % KEYS);
        publisher.event(&key, revision, Some(revision)).await;
        if revision % 20 == 0 {
            // As a publisher does that crashed before its cursor moved.
            for repeated in revision - 10..=revision {
                let key = format!("job:{}", repeated % KEYS);
                publisher.event(&key, repeated, Some(repeated)).await;
            }
        }
        match revision {
            // Killed in the middle, with messages in its hands.
            200 | 300 => {
                process.kill9();
                process = consumer(&broker, &state);
            }
            400 => {
                broker.restart().await;
                publisher = Publisher::connect(&broker).await;
            }
            _ => {}
        }
    }

    let applied = until_applied(&state, EVENTS).await;
    assert!(process.is_running(), "it outlived the broker's restart");
    let mut by_key: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for event in &applied {
        by_key.entry(&event.key).or_default().push(event.revision);
    }
    for (key, revisions) in by_key {
        let number: u64 = key["job:".len()..].parse().unwrap();
        let expected: Vec<u64> = (1..=EVENTS).filter(|it| it % KEYS == number).collect();
        assert_eq!(revisions, expected, "{key}");
    }
    assert_eq!(applied.len() as u64, EVENTS);
    // The last of them were published after everything had taken effect.
    let store = Store::open(&state).unwrap();
    wait::until(SOON, "what was repeated is dropped", async || {
        store.dropped(Outcome::Duplicate).unwrap() >= EVENTS / 20 * 11
    })
    .await;
}
