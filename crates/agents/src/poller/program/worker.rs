//! One target's polls, for as long as this instance owns it.

use std::time::Duration;

use futures_util::future::join_all;
use http::Uri;
use serde_json::Value;

use super::{
    Program,
    fetch::{Answer, Poll, Validators},
    pace::{self, Pace},
    report::Report,
    sink::Delivery,
    template,
};
use crate::poller::{PollPermit, Target};

/// How soon a poll is tried again that could not start: ownership was uncertain, or just changing.
const NOT_NOW: Duration = Duration::from_millis(50);
/// The part of the time to the deadline that a poll may use, and of the rest its result: nothing reaches the
/// deadline by itself.
const SHARE: f64 = 0.8;

/// Polls at the target's interval. Ends when the target is no longer owned here.
pub(super) async fn poll_while_owned(program: &Program, id: &str) {
    let mut validators = Validators::default();
    let mut pace = Pace::new(Duration::ZERO);
    let mut pause: Option<Duration> = None;
    loop {
        let Some(target) = program.coordinator.target(id) else {
            return;
        };
        let interval = program.interval(&target);
        pace.set_interval(interval);
        let pause_now = pause.unwrap_or_else(|| pace::first_pause(interval));
        tokio::time::sleep(pause_now).await;
        if !program.coordinator.is_owned(id) {
            // Draining for a hand-over looks the same, and may come to nothing: whoever started this
            // task starts it again when the target is owned then.
            return;
        }
        let uri = match program.uri(&target) {
            Ok(uri) => uri,
            Err(error) => {
                tracing::warn!(target = id, %error, "not polled");
                pause = Some(interval);
                continue;
            }
        };
        // First a free slot, then the permit: time spent in the queue must not be the lease's.
        let Ok(_slot) = program.slots.acquire().await else {
            return;
        };
        let Some(permit) = program.coordinator.permit(id) else {
            pause = Some(NOT_NOW);
            continue;
        };
        let probe = pace.probes();
        let recovered = program
            .poll(&permit, &uri, probe, &mut validators, &mut pace)
            .await;
        pause = Some(if recovered {
            Duration::ZERO
        } else {
            pace.pause()
        });
    }
}

impl Program {
    /// One poll and its result. Returns whether a probe found the target well again.
    async fn poll(
        &self,
        permit: &PollPermit,
        uri: &Uri,
        probe: bool,
        validators: &mut Validators,
        pace: &mut Pace,
    ) -> bool {
        let _pass = self.gate.enter(permit.deadline());
        let began = self.clock.boot();
        let at = self.clock.unix();
        let poll = Poll {
            uri,
            headers: &self.headers,
            target: permit.target(),
            token: permit.token(),
            probe,
            max_body_bytes: self.settings.max_body_bytes,
        };
        let limit = self.timeout().min(permit.left().mul_f64(SHARE));
        let mut broken_off = false;
        let outcome = tokio::select! {
            outcome = tokio::time::timeout(limit, poll.send(&self.client, validators)) => {
                outcome.unwrap_or_else(|_| Err(format!("no answer within {} ms", limit.as_millis())))
            }
            () = permit.lost() => {
                broken_off = true;
                Err("broken off: the lease is over, or this instance stops".to_owned())
            }
        };
        let duration_ms = self.clock.boot().since(began);
        let success = outcome.as_ref().is_ok_and(|answer| {
            // A server that knows no HEAD is there all the same.
            answer.is_success() || (probe && answer.status.is_client_error())
        });
        let recovered = pace.note(success);
        self.metrics.polled(
            permit.target(),
            word(&outcome, success),
            Duration::from_millis(duration_ms),
            pace.failures(),
            at.get(),
        );
        if let Err(error) = &outcome {
            let (target, token) = (permit.target(), permit.token());
            // Neither the end of a lease nor the next failure of a series is news.
            if broken_off || pace.failures() > 1 {
                tracing::debug!(target, event = "poll_failed", reason = error, %token, probe, "poll failed");
            } else {
                tracing::warn!(target, event = "poll_failed", reason = error, %token, probe, "poll failed");
            }
        }
        if !probe {
            let instance = self.coordinator.instance_id().as_str();
            let report = Report::new(
                permit.target(),
                permit.token(),
                instance,
                at,
                duration_ms,
                &outcome,
            );
            self.deliver(permit, &report).await;
        }
        recovered
    }

    /// Gives a result to every sink, unless the ownership it was made under is over.
    async fn deliver(&self, permit: &PollPermit, report: &Report) {
        if !permit.is_current() {
            self.metrics.delivered("all", "stale");
            tracing::info!(target = permit.target(), event = "result_dropped", reason = "its lease is over", token = %permit.token(), "result dropped");
            return;
        }
        let deliveries = self.sinks.iter().map(|sink| async move {
            let limit = permit.left().mul_f64(SHARE);
            let delivered = async {
                tokio::select! {
                    delivered = tokio::time::timeout(limit, sink.deliver(report, limit)) => delivered,
                    // Over before its time, or this instance stops.
                    () = permit.lost() => Ok(Ok(Delivery::Late)),
                }
            };
            let outcome = match delivered.await {
                Ok(Ok(Delivery::Accepted)) => "accepted",
                Ok(Ok(Delivery::Stale)) => {
                    tracing::warn!(target = permit.target(), event = "result_dropped", reason = "a newer token is known", sink = sink.name(), token = %permit.token(), "result dropped");
                    "stale"
                }
                Ok(Err(error)) => {
                    tracing::warn!(target = permit.target(), sink = sink.name(), %error, "a result was not delivered");
                    "failed"
                }
                Ok(Ok(Delivery::Late)) | Err(_) => {
                    tracing::warn!(target = permit.target(), sink = sink.name(), "a result was not delivered before the deadline");
                    "late"
                }
            };
            self.metrics.delivered(sink.name(), outcome);
        });
        join_all(deliveries).await;
    }

    /// The target's own interval, or the program's.
    fn interval(&self, target: &Target) -> Duration {
        let own = target
            .document
            .get("intervalSeconds")
            .and_then(Value::as_f64);
        let seconds = own
            .filter(|seconds| {
                let fits = self.settings.check_interval(*seconds);
                if let Err(error) = &fits {
                    tracing::warn!(target = target.id, %error, "the target's own interval is ignored");
                }
                fits.is_ok()
            })
            .unwrap_or(self.settings.interval.duration().as_secs_f64());
        Duration::from_secs_f64(seconds)
    }

    fn timeout(&self) -> Duration {
        self.settings.timeout.duration()
    }

    /// The target's own address, or the program's with the target's id in it.
    fn uri(&self, target: &Target) -> Result<Uri, String> {
        let own = target.document.get("url").and_then(Value::as_str);
        let text = match (own, &self.settings.url) {
            (Some(own), _) => own.to_owned(),
            (None, Some(pattern)) => template::fill(pattern, target)?,
            (None, None) => return Err("it has no `url`, and `poll.url` is not set".to_owned()),
        };
        let uri: Uri = text
            .parse()
            .map_err(|_| "its url is not a URL".to_owned())?;
        match uri.scheme_str() {
            Some("http" | "https") if uri.host().is_some() => Ok(uri),
            _ => Err("its url is not an http or https URL".to_owned()),
        }
    }
}

fn word(outcome: &Result<Answer, String>, success: bool) -> &'static str {
    match outcome {
        Ok(answer) if answer.status == http::StatusCode::NOT_MODIFIED => "unchanged",
        Ok(_) if success => "success",
        Ok(_) => "refused",
        Err(_) => "failed",
    }
}
