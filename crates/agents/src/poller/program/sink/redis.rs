//! Redis: Pub/Sub and streams, behind a script that drops stale tokens.

use ::redis::{Script, aio::ConnectionManager};
use tokio::sync::OnceCell;

use super::{super::report::Report, Delivery};

/// Entries that a stream keeps unless configured otherwise.
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

/// What the keys in Redis begin with: as it is set, or as the sink's own URL says, or as that of the
/// store does, whose fences are compared with.
pub(super) fn prefix(set: Option<&str>, url: &str, store: Option<&str>) -> String {
    let in_url = |url: &str| {
        let (_, query) = url.split_once('?')?;
        let prefix = query
            .split('&')
            .find_map(|pair| pair.strip_prefix("prefix="))?;
        Some(prefix.to_owned())
    };
    let of_store = |url: &str| {
        let is_cluster = url.starts_with("redis-cluster:");
        match in_url(url) {
            // As the store does it: without the tag the keys would be spread over the nodes.
            Some(prefix) if is_cluster && !prefix.contains('{') => Some(format!("{{{prefix}}}:")),
            None if is_cluster => Some("{leasehold}:".to_owned()),
            prefix => prefix,
        }
    };
    let set = set.map(str::to_owned).or_else(|| in_url(url));
    let store = store.filter(|url| url.starts_with("redis"));
    set.or_else(|| of_store(store?)).unwrap_or_default()
}

/// Publishes results in Redis.
pub(in super::super) struct RedisSink {
    client: ::redis::Client,
    /// Made with the first result.
    connection: OnceCell<ConnectionManager>,
    script: Script,
    channel: Option<String>,
    stream: Option<String>,
    stream_length: usize,
    prefix: String,
}

impl RedisSink {
    pub fn new(
        url: &str,
        prefix: String,
        channel: Option<String>,
        stream: Option<String>,
        stream_length: Option<usize>,
    ) -> Result<Self, String> {
        // The URL may hold a password: it is not repeated.
        let plain = url.split_once('?').map_or(url, |(plain, _)| plain);
        let client = ::redis::Client::open(plain)
            .map_err(|_| "poll.sinks: the url of a Redis sink is not a Redis URL".to_owned())?;
        Ok(Self {
            client,
            connection: OnceCell::new(),
            script: Script::new(PUBLISH),
            channel,
            stream,
            stream_length: stream_length.unwrap_or(STREAM_LENGTH),
            prefix,
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
            .key(format!("{}poll:fence:{}", self.prefix, report.target))
            .key(format!("{}poll:published:{}", self.prefix, report.target))
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

#[cfg(test)]
mod tests {
    use super::prefix;

    #[test]
    fn the_prefix_is_the_one_that_the_stores_fences_have() {
        let sink = "redis://h/";
        let of = |store| prefix(None, sink, Some(store));
        assert_eq!(of("redis://h/1?prefix=blue:"), "blue:");
        assert_eq!(of("redis://h/?history=9"), "");
        assert_eq!(of("redis-cluster://h"), "{leasehold}:");
        assert_eq!(of("redis-cluster://h?prefix=blue"), "{blue}:");
        assert_eq!(of("postgres://h/d?prefix=no"), "");
        assert_eq!(
            prefix(Some("set:"), sink, Some("redis://h?prefix=a")),
            "set:"
        );
        assert_eq!(prefix(None, "redis://h/?prefix=own:", None), "own:");
    }
}
