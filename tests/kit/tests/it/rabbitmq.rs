//! A private RabbitMQ: durable messages survive a stop and a kill.

use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use lapin::options::{
    BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use leasehold_testkit::{RabbitMq, wait};

const QUEUE: &str = "facts";
const PERSISTENT: u8 = 2;

async fn channel(broker: &RabbitMq) -> (Connection, Channel) {
    let connection = Connection::connect(&broker.url(), ConnectionProperties::default())
        .await
        .expect("the broker accepts");
    let channel = connection.create_channel().await.expect("a channel");
    let durable = QueueDeclareOptions {
        durable: true,
        ..QueueDeclareOptions::default()
    };
    channel
        .queue_declare(QUEUE.into(), durable, FieldTable::default())
        .await
        .expect("the queue is declared");
    (connection, channel)
}

async fn publish(channel: &Channel, payload: &[u8]) {
    channel
        .confirm_select(ConfirmSelectOptions::default())
        .await
        .expect("confirms are on");
    let properties = BasicProperties::default().with_delivery_mode(PERSISTENT);
    let confirm = channel
        .basic_publish(
            "".into(),
            QUEUE.into(),
            BasicPublishOptions::default(),
            payload,
            properties,
        )
        .await
        .expect("published");
    assert!(confirm.await.expect("confirmed").is_ack());
}

async fn take(channel: &Channel) -> Option<Vec<u8>> {
    let options = BasicGetOptions { no_ack: true };
    let message = channel.basic_get(QUEUE.into(), options).await;
    message
        .expect("the broker answers")
        .map(|message| message.delivery.data)
}

#[tokio::test]
async fn durable_messages_survive_a_restart_and_a_kill() {
    let mut broker = RabbitMq::start().await;
    let address = broker.addr();
    {
        let (_connection, channel) = channel(&broker).await;
        publish(&channel, b"stop").await;
    }

    broker.restart().await;
    assert_eq!(broker.addr(), address);
    {
        let (_connection, channel) = channel(&broker).await;
        assert_eq!(take(&channel).await.as_deref(), Some(&b"stop"[..]));
        publish(&channel, b"kill").await;
    }

    broker.kill9();
    assert!(std::net::TcpStream::connect(address).is_err());
    broker.restart().await;
    {
        let (_connection, channel) = channel(&broker).await;
        assert_eq!(take(&channel).await.as_deref(), Some(&b"kill"[..]));
        assert_eq!(take(&channel).await, None);
    }

    broker.pause();
    let url = broker.url();
    let connecting = Connection::connect(&url, ConnectionProperties::default());
    let silent = tokio::time::timeout(Duration::from_millis(500), connecting).await;
    assert!(!matches!(silent, Ok(Ok(_))), "a frozen broker answered");
    broker.resume();
    channel(&broker).await;

    let folder = broker.dir().path().to_path_buf();
    assert!(running_in(&folder));
    drop(broker);
    assert!(!folder.exists());
    // The port mapper, too, is ours and must be gone. What a killed broker started leaves by itself.
    wait::until(Duration::from_secs(30), "nothing runs there", async || {
        !running_in(&folder)
    })
    .await;
}

/// Whether any process has its working folder there, or had it before that was removed.
fn running_in(folder: &std::path::Path) -> bool {
    let processes = std::fs::read_dir("/proc").expect("a process table");
    processes
        .flatten()
        .filter_map(|process| std::fs::read_link(process.path().join("cwd")).ok())
        .any(|cwd| {
            cwd.as_os_str()
                .as_bytes()
                .starts_with(folder.as_os_str().as_bytes())
        })
}
