//! Redis decides as the kernel's engine does, to the millisecond: random sequences on both. Its time is
//! held still by a last time far ahead, which the authority never goes behind.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use lease::Authority;
use leasehold_store::{
    conformance::{
        Flip, Harness, Pace, Step, granting,
        mutants::{self, By, Mutant},
        oracle,
    },
    redis::{Options, Redis},
};
use leasehold_testkit::redis::Redis as Server;
use redis::{Script, aio::MultiplexedConnection};

/// The year 2100.
const START_MS: u64 = 4_102_444_800_000;

/// Moves the time on, for waiters' replicas too, and drops the plain keys that Redis would drop then by
/// its own clock: those whose time is over. One whose time ends at this very moment is still there.
const ADVANCE: &str = "
local prefix, millis = ARGV[1], ARGV[2]
local now = redis.call('HINCRBY', prefix .. 'leasehold:meta', 'now', millis)
for _, replica in ipairs(redis.call('ZRANGE', prefix .. 'leasehold:alive', 0, -1)) do
  redis.call('ZINCRBY', prefix .. 'leasehold:alive', millis, replica)
end
for _, pattern in ipairs({'lease:*', 'poll:*'}) do
  for _, key in ipairs(redis.call('KEYS', prefix .. pattern)) do
    local at = redis.call('PEXPIRETIME', key)
    if at == now then
      redis.call('PERSIST', key)
    elseif at < now then
      redis.call('DEL', key)
    end
  end
end
return now";

/// One server for all stores of a test, each behind a prefix of its own.
struct Shared {
    url: String,
    connection: MultiplexedConnection,
    _server: Server,
}

impl Shared {
    async fn start() -> Self {
        let server = Server::start().await;
        let url = server.url();
        let client = redis::Client::open(url.as_str()).expect("an address");
        let connection = client.get_multiplexed_async_connection().await;
        Self {
            url,
            connection: connection.expect("the server answers"),
            _server: server,
        }
    }
}

struct Still {
    connection: MultiplexedConnection,
    prefix: String,
    authority: Arc<Redis>,
}

impl Still {
    async fn new(server: &Shared, flip: Option<Flip>, forgets: bool) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let prefix = format!("still{}:", NUMBER.fetch_add(1, Ordering::Relaxed));
        let options = Options {
            prefix: prefix.clone(),
            // The test itself is the timer.
            housekeeping: false,
            flip,
            idle_ms: if forgets { 0 } else { 3_600_000 },
            ..Options::parse(&server.url).expect("an address")
        };
        let connection = server.connection.clone();
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
    let server = Shared::start().await;
    oracle::check(async || Still::new(&server, None, false).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l3_a_forgotten_key_never_sees_a_smaller_token_on_redis() {
    let server = Shared::start().await;
    let still = Still::new(&server, None, true).await;
    granting::l3_a_forgotten_key_never_sees_a_smaller_token(&still).await;
}

/// Bugs in the scripts. The first few are planted in every run.
const MUTANTS: &[Mutant] = &[
    (
        "the last token of a key is ignored, fast path",
        "      last = last + 1\n      if last < now then last = now end",
        "      last = now",
        By::Oracle,
    ),
    (
        "a renewal is accepted 1 ms late, fast path",
        "if now >= expires + withheld then return end",
        "if now > expires + withheld then return end",
        By::Oracle,
    ),
    (
        "the floor is ignored, fast path",
        "if least > last then last = least end",
        "",
        By::Floor,
    ),
    (
        "a release is accepted 1 ms late, fast path",
        "if now < lapses and there == (",
        "if now <= lapses and there == (",
        By::Oracle,
    ),
    (
        "the last token of a key is ignored",
        "math.max(last_token(slot), least) + 1",
        "least + 1",
        By::Oracle,
    ),
    (
        "a lease lapses 1 ms late",
        "if slot.live and slot.lapses <= now then",
        "if slot.live and slot.lapses < now then",
        By::Oracle,
    ),
    (
        "the floor is ignored",
        "math.max(last_token(slot), least) + 1",
        "last_token(slot) + 1",
        By::Floor,
    ),
    (
        "forgotten tokens are not folded into the floor",
        "      least = newest\n",
        "",
        By::Floor,
    ),
    (
        "a handoff loses the labels",
        "death = slot.death, labels = slot.labels}",
        "death = slot.death, labels = ''}",
        By::Oracle,
    ),
    (
        "a handoff loses the policy",
        "policy = slot.policy, grace = slot.grace, death = slot.death, labels",
        "policy = '0', grace = 0, death = slot.death, labels",
        By::Oracle,
    ),
    (
        "a limit counts lapsed leases",
        "if slot.live and not slot.tampered and now < slot.lapses\n      and label",
        "if slot.live and not slot.tampered\n      and label",
        By::Oracle,
    ),
    (
        "a limit is off by one",
        "return held + new > limit",
        "return held + new > limit + 1",
        By::Oracle,
    ),
    (
        "a namesake in another tenant is the same holder",
        "\n    and label(slot.labels, 'tenant') == label(request.labels, 'tenant')",
        "",
        By::Oracle,
    ),
    (
        "the last waiter is served first",
        "call('ZRANGE', QUEUE .. slot.key, 0, -1)",
        "call('ZREVRANGE', QUEUE .. slot.key, 0, -1)",
        By::Oracle,
    ),
    (
        "a waiter with a definite refusal waits on",
        "      if not is_held(answer) then\n        leave(name, waiter)",
        "      if answer[1] == 'G' then\n        leave(name, waiter)",
        By::Oracle,
    ),
    (
        "expiry moves backwards",
        "if now + slot.ttl > slot.expires then",
        "if true then",
        By::Oracle,
    ),
    (
        "the grace of hold is ignored",
        "  if slot.policy == '1' then slot.lapses = expires + slot.grace end\n",
        "",
        By::Oracle,
    ),
    (
        "a transaction overtakes waiters",
        "  local request = read_request()\n  settle_waited(request)\n",
        "  local request = read_request()\n",
        By::Oracle,
    ),
    (
        "a proven death releases what did not ask for it",
        "\n    and (how ~= 'died' or slot.death == '1')",
        "",
        By::Oracle,
    ),
    (
        "a stranger may renew and release",
        "if slot.name ~= name or slot.incarnation ~= incarnation then return nil",
        "if false then return nil",
        By::Oracle,
    ),
    (
        "a revision is left out",
        "  revision = revision + 1\n  changed = true\n  append(",
        "  revision = revision + 2\n  changed = true\n  append(",
        By::Oracle,
    ),
    (
        "a transaction ignores what it expects",
        "if actual ~= tonumber(expected) then",
        "if false then",
        By::Oracle,
    ),
    (
        "a pool gives a holder the slot it has",
        "if occupancy(request, slot) == 'free' then",
        "if occupancy(request, slot) ~= 'held' then",
        By::Oracle,
    ),
    (
        "a pool takes one request of a holder for another",
        "and label(slot.labels, 'request') == id then",
        "and label(slot.labels, 'request') then",
        By::Oracle,
    ),
    (
        "a repeated request gets another slot",
        "  if id then\n",
        "  if false then\n",
        By::Oracle,
    ),
    (
        "a stolen lease is told as unknown",
        "if token < newest then return {'L', 'stolen'} end",
        "if token < newest then return {'L', 'unknown'} end",
        By::Oracle,
    ),
    (
        "an ended lease forgets its policy",
        "table.concat({slot.ttl, slot.policy, slot.grace,",
        "table.concat({slot.ttl, '0', slot.grace,",
        By::Oracle,
    ),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn planted_bugs_are_noticed_on_redis() {
    let server = Shared::start().await;
    let make = async |flip, forgets| Still::new(&server, Some(flip), forgets).await;
    mutants::check("redis", MUTANTS, make).await;
}
