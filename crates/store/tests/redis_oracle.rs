//! Redis decides as the kernel's engine does, to the millisecond: random sequences on both. Its time is
//! held still by a last time far ahead, which the authority never goes behind.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use lease::Authority;
use leasehold_store::{
    conformance::{Harness, Pace, Step, oracle},
    redis::{Options, Redis},
};
use leasehold_testkit::redis::Redis as Server;
use redis::{Script, aio::MultiplexedConnection};

/// The year 2100.
const START_MS: u64 = 4_102_444_800_000;

/// Moves the time on, for waiters' replicas too, and drops the plain keys that Redis would drop then by
/// its own clock.
const ADVANCE: &str = "
local prefix, millis = ARGV[1], ARGV[2]
local now = redis.call('HINCRBY', prefix .. 'leasehold:meta', 'now', millis)
for _, replica in ipairs(redis.call('ZRANGE', prefix .. 'leasehold:alive', 0, -1)) do
  redis.call('ZINCRBY', prefix .. 'leasehold:alive', millis, replica)
end
for _, pattern in ipairs({'lease:*', 'poll:*'}) do
  for _, key in ipairs(redis.call('KEYS', prefix .. pattern)) do
    local at = redis.call('PEXPIRETIME', key)
    if at > 0 and at <= now then redis.call('DEL', key) end
  end
end
return now";

struct Still {
    connection: MultiplexedConnection,
    prefix: String,
    authority: Arc<Redis>,
}

impl Still {
    async fn new(url: &str, connection: MultiplexedConnection) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let prefix = format!("still{}:", NUMBER.fetch_add(1, Ordering::Relaxed));
        let options = Options {
            prefix: prefix.clone(),
            // The test itself is the timer.
            duties: false,
            ..Options::parse(url).expect("an address")
        };
        let authority = Arc::new(Redis::open(options).await.expect("the store opens"));
        let still = Self {
            connection,
            prefix,
            authority,
        };
        let before = still.advance(0).await;
        still.advance(START_MS - before).await;
        still
    }

    async fn advance(&self, millis: u64) -> u64 {
        Script::new(ADVANCE)
            .arg(&self.prefix)
            .arg(millis)
            .invoke_async(&mut self.connection.clone())
            .await
            .expect("the server answers")
    }
}

impl Harness for Still {
    fn authority(&self) -> Arc<dyn Authority> {
        self.authority.clone()
    }

    fn pace(&self) -> Pace {
        Pace::VIRTUAL
    }

    fn pass(&self, millis: u64) -> Step<'_, ()> {
        Box::pin(async move {
            self.advance(millis).await;
            self.authority.tick().await.expect("the server answers");
        })
    }

    fn pass_without_tick(&self, millis: u64) -> Step<'_, bool> {
        Box::pin(async move {
            self.advance(millis).await;
            true
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_agrees_with_the_engine_on_random_sequences() {
    let server = Server::start().await;
    let url = server.url();
    let client = redis::Client::open(url.as_str()).expect("an address");
    let connection = client
        .get_multiplexed_async_connection()
        .await
        .expect("the server answers");
    oracle::check(async || Still::new(&url, connection.clone()).await).await;
}
