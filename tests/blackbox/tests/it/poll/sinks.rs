//! The HTTP sink: results arrive with their token, and the receiver's no is understood.

use leasehold_blackbox::{
    sink::{Mood, Sink},
    target::Target,
};
use leasehold_testkit::{port, wait};
use redis::AsyncCommands;

use crate::poll::{
    fleet::{Fleet, PATIENCE, TTL_MS},
    metrics::figure,
};

/// A fleet whose instances send to an HTTP sink and count deliveries at this port.
async fn fleet(targets: usize) -> (Fleet, Sink, u16) {
    let mut fleet = Fleet::new(targets).await;
    let (sink, port) = (Sink::start().await, port::free());
    let mut settings = fleet.settings();
    settings.more = format!(
        "  metrics_listen: 127.0.0.1:{port}\n  sinks:\n    - http: {{url: '{}'}}\n",
        sink.url()
    );
    fleet.start_with(1, &settings).await;
    (fleet, sink, port)
}

async fn delivered(port: u16, outcome: &str) -> f64 {
    let name = format!("leasehold_poll_deliveries_total{{sink=\"http\",outcome=\"{outcome}\"}}");
    figure(port, &name).await.unwrap_or(0.0)
}

async fn until_delivered(port: u16, outcome: &str, more_than: f64) {
    wait::until(PATIENCE, outcome, async || {
        delivered(port, outcome).await > more_than
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_http_sink_gets_every_result_with_the_token_it_was_made_under() {
    let (fleet, sink, _) = fleet(2).await;
    wait::until(PATIENCE, "results of both targets", async || {
        let received = sink.received();
        ["poll:session-1", "poll:session-2"]
            .iter()
            .all(|key| received.iter().filter(|it| it.key == *key).count() > 2)
    })
    .await;
    let mut redis = fleet.connect().await;
    for received in sink.received() {
        assert!(received.accepted);
        let result: serde_json::Value = serde_json::from_str(&received.body).unwrap();
        let id = received.key.strip_prefix("poll:").unwrap();
        assert_eq!(result["target"], id);
        assert_eq!(result["token"], received.token);
        assert_eq!(result["instance"], fleet.instances[0].id.as_str());
        let fence: u64 = redis.get(format!("poll:fence:{id}")).await.unwrap();
        assert_eq!(received.token, fence);
    }
    fleet.assert_faultless();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_http_sink_refuses_as_stale_is_dropped_and_counted_and_polling_goes_on() {
    let (mut fleet, sink, port) = fleet(1).await;
    until_delivered(port, "accepted", 0.0).await;
    let token = sink.received()[0].token;
    for mood in [Mood::Checks, Mood::ChecksPreconditions] {
        sink.behave(mood);
        sink.knows("poll:session-1", token + 1);
        let position = fleet.instances[0].child.position();
        fleet.instances[0]
            .child
            .wait_for_line_from(position, "a newer token is known", PATIENCE)
            .await;
        let (stale, accepted) = (delivered(port, "stale").await, sink.accepted());
        until_delivered(port, "stale", stale + 2.0).await;
        assert_eq!(sink.accepted(), accepted, "a stale result was taken");
        sink.knows("poll:session-1", token);
        wait::until(PATIENCE, "taken again", async || sink.accepted() > accepted).await;
    }
    fleet.assert_faultless();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sink_that_is_broken_or_silent_costs_results_and_never_a_lease() {
    let (fleet, sink, port) = fleet(1).await;
    until_delivered(port, "accepted", 0.0).await;
    let token = sink.received()[0].token;
    sink.behave(Mood::Broken);
    until_delivered(port, "failed", 2.0).await;
    // Silent: the delivery is given up by the deadline of the poll, and the next poll begins.
    sink.behave(Mood::Silent);
    let before = hits(&fleet.target);
    until_delivered(port, "late", 1.0).await;
    assert!(hits(&fleet.target) > before);
    sink.behave(Mood::Checks);
    let accepted = sink.accepted();
    wait::until(PATIENCE, "taken again", async || sink.accepted() > accepted).await;
    assert_eq!(
        sink.received().last().unwrap().token,
        token,
        "the same lease all the time, of {TTL_MS} ms"
    );
    fleet.assert_faultless();
}

fn hits(target: &Target) -> usize {
    target.hits().len()
}
