//! Motion and the state of streams at a real RabbitMQ.

use std::sync::{Arc, Mutex};

use futures_util::StreamExt as _;
use lapin::{
    Connection, ConnectionProperties, ExchangeKind,
    options::{BasicConsumeOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions},
    types::FieldTable,
};
use leasehold_testkit::{Dir, RabbitMq, port, wait};

use crate::{
    camera::world::{Entry, Published, Shard, Start, camera, moving, set, still, zone},
    cli_support::SOON,
};

/// Listens to both exchanges until it is dropped.
pub struct Listener {
    heard: Arc<Mutex<Vec<Published>>>,
    _connection: Connection,
}

impl Listener {
    /// Listens to the cameras of a site, `tenant.site`.
    pub async fn start(url: &str, site: &str) -> Self {
        let connection = Connection::connect(url, ConnectionProperties::default())
            .await
            .unwrap();
        let channel = connection.create_channel().await.unwrap();
        let exclusive = QueueDeclareOptions {
            exclusive: true,
            ..QueueDeclareOptions::default()
        };
        let queue = channel
            .queue_declare("".into(), exclusive, FieldTable::default())
            .await
            .unwrap();
        for (exchange, pattern) in [
            ("status.topic", format!("stream.status.{site}.*")),
            ("detections.topic", format!("detections.{site}.*")),
        ] {
            let durable = ExchangeDeclareOptions {
                durable: true,
                ..ExchangeDeclareOptions::default()
            };
            channel
                .exchange_declare(
                    exchange.into(),
                    ExchangeKind::Topic,
                    durable,
                    FieldTable::default(),
                )
                .await
                .unwrap();
            channel
                .queue_bind(
                    queue.name().clone(),
                    exchange.into(),
                    pattern.into(),
                    QueueBindOptions::default(),
                    FieldTable::default(),
                )
                .await
                .unwrap();
        }
        let no_ack = BasicConsumeOptions {
            no_ack: true,
            ..BasicConsumeOptions::default()
        };
        let mut consumer = channel
            .basic_consume(
                queue.name().clone(),
                "".into(),
                no_ack,
                FieldTable::default(),
            )
            .await
            .unwrap();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let noted = heard.clone();
        tokio::spawn(async move {
            while let Some(Ok(delivery)) = consumer.next().await {
                let message = serde_json::from_slice(&delivery.data).unwrap();
                noted.lock().unwrap().push(Published {
                    routing_key: delivery.routing_key.to_string(),
                    message,
                });
            }
        });
        Self {
            heard,
            _connection: connection,
        }
    }

    pub fn heard(&self) -> Vec<Published> {
        self.heard.lock().unwrap().clone()
    }

    pub async fn event(&self, camera: &str, event: &str) -> Published {
        wait::until_some(SOON, &format!("{event} of {camera}"), async || {
            self.heard().into_iter().find(|it| it.is(camera, event))
        })
        .await
    }
}

#[tokio::test]
async fn heavy_motion_counts_in_an_including_zone_and_not_in_an_excluding_one() {
    let dir = Dir::new("video");
    let (moving, still) = (moving(&dir).await, still(&dir).await);
    let mut broker = RabbitMq::start().await;
    let listener = Listener::start(&broker.url(), "acme.north").await;
    let with = |name: &str, url: &str, zones: serde_json::Value| {
        let mut camera = camera(name, url);
        camera["zones"] = zones;
        camera
    };
    let entries = [
        Entry::new(
            with("in", &moving, serde_json::json!([zone(3, "include", true)])),
            11,
        ),
        Entry::new(
            with(
                "out",
                &moving,
                serde_json::json!([zone(1, "exclude", true)]),
            ),
            12,
        ),
        Entry::new(
            with(
                "beside",
                &moving,
                serde_json::json!([zone(1, "include", false)]),
            ),
            13,
        ),
        Entry::new(camera("still", &still), 14),
    ];
    let mut start = Start::reference();
    start.environment = vec![("LEASEHOLD_WORKER_AMQP", broker.url())];
    let shard = Shard::start(start, &entries).await;
    shard.working("4/4").await;

    let found = listener.event("in", "motion_started").await;
    assert_eq!(found.routing_key, "detections.acme.north.in");
    let area = &found.message["areas"][0];
    assert_eq!(area["zone_id"], 3, "{area}");
    assert!(area["area_px"].as_f64().unwrap() >= 200.0, "{area}");
    // Enough pictures of each for everything that does not count to show.
    for entry in &entries {
        let what = format!("{} has shown twenty pictures", entry.name());
        wait::until(SOON, &what, async || {
            let name = "leasehold_worker_frames_total";
            shard.figure(name, &entry.name()).await >= 20
        })
        .await;
    }
    listener.event("in", "alive").await;
    let heard = listener.heard();
    for silent in ["out", "beside", "still"] {
        let wrong = heard
            .iter()
            .find(|it| it.camera() == silent && it.is_detection());
        assert!(wrong.is_none(), "{wrong:?}");
        assert!(heard.iter().any(|it| it.is(silent, "started")), "{silent}");
        assert!(heard.iter().any(|it| it.is(silent, "online")), "{silent}");
    }
    for it in &heard {
        let entry = entries.iter().find(|entry| entry.name() == it.camera());
        assert_eq!(it.message["token"], entry.unwrap().token, "{it:?}");
        assert_eq!(
            it.message["lease_id"],
            format!("lease-{}", entry.unwrap().token)
        );
        let head = if it.is_detection() {
            "detections"
        } else {
            "stream.status"
        };
        assert_eq!(it.routing_key, format!("{head}.acme.north.{}", it.camera()));
    }
    assert_eq!(
        shard.figure("leasehold_worker_motion_total", "still").await,
        0
    );

    // A broker that comes back is found again.
    broker.restart().await;
    let listener = Listener::start(&broker.url(), "acme.north").await;
    listener.event("in", "motion").await;
    listener.event("still", "alive").await;
}

#[tokio::test]
async fn an_address_that_is_no_broker_s_is_refused() {
    let dir = Dir::new("shard");
    let config = dir.write("shard.json", &set(1, &[]).to_string()).unwrap();
    let start = Start::reference();
    let refused = start
        .program
        .arg("--config")
        .arg(config)
        .args(["--runner-id", "edge-1", "--shard-id", "edge-1-0"])
        .env("LEASEHOLD_WORKER_PORT", port::free().to_string())
        .env("LEASEHOLD_WORKER_AMQP", "http://user:secret@broker")
        .run()
        .await;
    let said = refused.unwrap_err().to_string();
    assert!(said.contains("amqp://HOST"), "{said}");
    assert!(!said.contains("user:secret"), "{said}");
}
