//! Where results go. Every sink is given the token, and none lets a stale one through.

mod http;
mod redis;
mod stdout;

use std::{sync::Arc, time::Duration};

use lease::Clock;

use super::{fetch::HttpClient, report::Report, settings::SinkSettings};

/// What became of a result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Delivery {
    /// It arrived.
    Accepted,
    /// A newer token is known there: dropped.
    Stale,
    /// Its deadline passed before it could be delivered: dropped.
    Late,
}

/// A place for results.
pub(super) enum Sink {
    Stdout(stdout::StdoutSink),
    Http(http::HttpSink),
    Redis(redis::RedisSink),
}

impl Sink {
    /// Nothing is sent yet: a sink that is away must not keep the program from starting.
    pub fn open(
        settings: &SinkSettings,
        store: Option<&str>,
        client: &HttpClient,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self, String> {
        Ok(match settings {
            SinkSettings::Stdout => Self::Stdout(stdout::StdoutSink::start(clock.clone())?),
            SinkSettings::Http { url } => Self::Http(http::HttpSink::new(url, client.clone())?),
            SinkSettings::Redis {
                url,
                channel,
                stream,
                stream_length,
                prefix,
            } => Self::Redis(redis::RedisSink::new(
                url,
                redis::prefix(prefix.as_deref(), url, store),
                channel.clone(),
                stream.clone(),
                *stream_length,
            )?),
        })
    }

    pub const fn name(&self) -> &'static str {
        match self {
            Self::Stdout(_) => "stdout",
            Self::Http(_) => "http",
            Self::Redis(_) => "redis",
        }
    }

    /// Delivers one result, whose ownership is trusted for `left` from now. The caller bounds the time.
    pub async fn deliver(&self, report: &Report, left: Duration) -> Result<Delivery, String> {
        let text = serde_json::to_string(report).map_err(|error| error.to_string())?;
        match self {
            Self::Stdout(sink) => {
                let left_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
                sink.deliver(text, left_ms).await
            }
            Self::Http(sink) => sink.deliver(report, text).await,
            Self::Redis(sink) => sink.deliver(report, text).await,
        }
    }
}
