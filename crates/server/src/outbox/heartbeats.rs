//! Runners' heartbeats to the broker: transient, so a lost one is not sent again.

use std::sync::Arc;

use lease::Clock;
use leasehold_broker::{Broker, Message};
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::sync::mpsc;

use super::{EXCHANGE, routing};

/// What is published about a heartbeat.
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
    broker: Broker,
    clock: Arc<dyn Clock>,
) {
    let mut link = None;
    while let Some(heartbeat) = heartbeats.recv().await {
        let current = match link.take() {
            Some(current) => current,
            None => broker.reach(&[EXCHANGE], &*clock).await,
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
        let message = Message {
            exchange: EXCHANGE,
            routing_key: &key,
            body: &body,
            ..Message::default()
        };
        match current.publish(message).await {
            Ok(_) => link = Some(current),
            Err(error) => tracing::debug!(%error, "heartbeat not published"),
        }
    }
}
