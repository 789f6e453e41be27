//! Where results go. Every sink is given the token, and none lets a stale one through.

mod http;
mod redis;

use std::io::Write as _;

use super::{fetch::HttpClient, report::Report, settings::SinkSettings};

/// What became of a result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Delivery {
    /// It arrived.
    Accepted,
    /// A newer token is known there: dropped.
    Stale,
}

/// A place for results.
pub(super) enum Sink {
    Stdout,
    Http(http::HttpSink),
    Redis(redis::RedisSink),
}

impl Sink {
    /// Nothing is sent yet: a sink that is away must not keep the program from starting.
    pub fn open(settings: &SinkSettings, client: &HttpClient) -> Result<Self, String> {
        Ok(match settings {
            SinkSettings::Stdout => Self::Stdout,
            SinkSettings::Http { url } => Self::Http(http::HttpSink::new(url, client.clone())?),
            SinkSettings::Redis {
                url,
                channel,
                stream,
                stream_length,
            } => Self::Redis(redis::RedisSink::new(
                url,
                channel.clone(),
                stream.clone(),
                *stream_length,
            )?),
        })
    }

    pub const fn name(&self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Http(_) => "http",
            Self::Redis(_) => "redis",
        }
    }

    /// Delivers one result. The caller bounds the time.
    pub async fn deliver(&self, report: &Report) -> Result<Delivery, String> {
        let text = serde_json::to_string(report).map_err(|error| error.to_string())?;
        match self {
            Self::Stdout => {
                // A pipe that nobody reads blocks; not the tasks of others, though.
                let written = tokio::task::spawn_blocking(move || {
                    let mut stdout = std::io::stdout().lock();
                    writeln!(stdout, "{text}").and_then(|()| stdout.flush())
                });
                written
                    .await
                    .map_err(|error| error.to_string())?
                    .map_err(|error| error.to_string())?;
                Ok(Delivery::Accepted)
            }
            Self::Http(sink) => sink.deliver(report, text).await,
            Self::Redis(sink) => sink.deliver(report, text).await,
        }
    }
}
