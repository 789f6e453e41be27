//! Redis: Pub/Sub and streams, behind a script that drops stale tokens.

use ::redis::{Script, aio::ConnectionManager};
use tokio::sync::OnceCell;

use super::{super::report::Report, Delivery};

/// Entries that a stream keeps unless it is told otherwise.
const STREAM_LENGTH: usize = 10_000;

/// Compares with the newest token that was granted (`poll:fence:`, when the leases live in this
/// Redis) and with the newest that published here, and publishes in the same step.
const PUBLISH: &str = r"
local token = tonumber(ARGV[1])
for _, key in ipairs(KEYS) do
  local newest = tonumber(redis.call('GET', key))
  if newest and token < newest then return 0 end
end
redis.call('SET', KEYS[2], ARGV[1])
if ARGV[3] ~= '' then redis.call('PUBLISH', ARGV[3], ARGV[2]) end
if ARGV[4] ~= '' then
  redis.call('XADD', ARGV[4], 'MAXLEN', '~', ARGV[5], '*',
    'target', ARGV[6], 'token', ARGV[1], 'result', ARGV[2])
end
return 1
";

/// Publishes results in Redis.
pub(in super::super) struct RedisSink {
    client: ::redis::Client,
    /// Made with the first result.
    connection: OnceCell<ConnectionManager>,
    script: Script,
    channel: Option<String>,
    stream: Option<String>,
    stream_length: usize,
}

impl RedisSink {
    pub fn new(
        url: &str,
        channel: Option<String>,
        stream: Option<String>,
        stream_length: Option<usize>,
    ) -> Result<Self, String> {
        // The URL may hold a password: it is not repeated.
        let client = ::redis::Client::open(url)
            .map_err(|_| "poll.sinks: the url of a Redis sink is not a Redis URL".to_owned())?;
        Ok(Self {
            client,
            connection: OnceCell::new(),
            script: Script::new(PUBLISH),
            channel,
            stream,
            stream_length: stream_length.unwrap_or(STREAM_LENGTH),
        })
    }

    pub async fn deliver(&self, report: &Report, text: String) -> Result<Delivery, String> {
        let connection = self
            .connection
            .get_or_try_init(|| self.client.get_connection_manager())
            .await
            .map_err(|error| error.to_string())?;
        let channel = self
            .channel
            .as_ref()
            .map(|channel| channel.replace("{id}", &report.target));
        let accepted: i64 = self
            .script
            .key(format!("poll:fence:{}", report.target))
            .key(format!("poll:published:{}", report.target))
            .arg(report.token.get())
            .arg(text)
            .arg(channel.unwrap_or_default())
            .arg(self.stream.as_deref().unwrap_or_default())
            .arg(self.stream_length)
            .arg(&report.target)
            .invoke_async(&mut connection.clone())
            .await
            .map_err(|error| error.to_string())?;
        Ok(if accepted == 1 {
            Delivery::Accepted
        } else {
            Delivery::Stale
        })
    }
}
