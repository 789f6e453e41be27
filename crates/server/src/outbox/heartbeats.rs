//! Runners' heartbeats to the broker: news that nobody waits for, so a lost one is not sent again.

use std::sync::Arc;

use lapin::{BasicProperties, options::BasicPublishOptions};
use lease::Clock;
use secrecy::SecretString;
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::sync::mpsc;

use super::{BROKER_TIMEOUT, EXCHANGE, reach, routing};

/// What is told about a heartbeat.
#[derive(Debug, Serialize)]
pub(crate) struct Heartbeat {
    pub runner_id: String,
    pub tenant_id: String,
    pub site_id: String,
    pub incarnation: String,
    pub status: String,
    pub current_load: u32,
    pub active_leases: usize,
    pub metrics: Map<String, Value>,
    pub timestamp: leasehold_api::Time,
}

pub(super) async fn run(
    mut heartbeats: mpsc::Receiver<Heartbeat>,
    url: Arc<SecretString>,
    clock: Arc<dyn Clock>,
) {
    let mut link = None;
    while let Some(heartbeat) = heartbeats.recv().await {
        let current = match link.take() {
            Some(current) => current,
            None => reach(&url, &*clock).await,
        };
        let key = routing::of_heartbeat(
            &heartbeat.tenant_id,
            &heartbeat.site_id,
            &heartbeat.runner_id,
        );
        let Ok(body) = serde_json::to_vec(&heartbeat) else {
            link = Some(current);
            continue;
        };
        let publish = current.channel.basic_publish(
            EXCHANGE.into(),
            key.into(),
            BasicPublishOptions::default(),
            &body,
            BasicProperties::default().with_content_type("application/json".into()),
        );
        match tokio::time::timeout(BROKER_TIMEOUT, publish).await {
            Ok(Ok(_)) => link = Some(current),
            Ok(Err(error)) => tracing::debug!(%error, "a heartbeat was not published"),
            Err(_) => tracing::debug!("a heartbeat was not published in time"),
        }
    }
}
