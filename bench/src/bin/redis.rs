//! What the store's API costs over Redis itself: the same server, the same number of callers, the
//! store beside scripts written by hand, each side on one multiplexed connection.
//!
//! Three peers, so that nobody is misled:
//!
//! * **by hand** does the work that a careful engineer needs for the same guarantees. Acquire takes the
//!   key only when it is free (`SET NX PX`), gives it a fencing token that never goes back (the last one
//!   plus one, or the time), puts it into an index of expiries, and appends an event with who, what,
//!   when and the token to a trimmed stream. Release compares owner and token, removes the key and its
//!   index entry, and appends an event. Renewal compares owner and token of each lease, moves its expiry
//!   and its place in the index. It knows no lease ids, incarnations, policies, waiters, pools, records,
//!   watchers, lists by key or by holder, or reasons of a loss, and answers with numbers where the store
//!   answers with whole leases.
//! * **by hand, listed** does the same and keeps the two lists without which nobody can ask what is held,
//!   or what a holder has: every key in order, and the keys of each holder.
//! * **bare** is the least that is called a lock: `SET NX PX` and `INCR` of a counter; compare and
//!   delete; compare and `PEXPIRE`. No history, no index, and a counter that starts again at 1 when
//!   Redis lost its data.

use std::sync::Arc;

use anyhow::bail;
use clap::Parser;
use lease::{Acquire, Acquired, Authority, Holder, Key, LeaseRef, Renew, Renewal, Renewals, Ttl};
use leasehold_bench::rounds::{Pace, Report, Work, compare, work};
use leasehold_store::redis::Redis;
use leasehold_testkit::redis::Redis as Server;
use redis::{FromRedisValue, Script, aio::MultiplexedConnection};

const ACQUIRE: &str = "
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  return {0, redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1])}
end
local token = math.max((tonumber(redis.call('GET', KEYS[2])) or 0) + 1, now)
local expires = now + ARGV[2]
redis.call('SET', KEYS[2], token)
redis.call('ZADD', KEYS[4], expires, KEYS[1])
redis.call('XADD', KEYS[3], 'MAXLEN', '~', 200000, '*', 'event', 'lease_acquired', 'at', now,
  'key', KEYS[1], 'holder', ARGV[1], 'token', token, 'expires', expires)
return {token, expires}";

const RELEASE: &str = "
if redis.call('GET', KEYS[1]) ~= ARGV[1] or redis.call('GET', KEYS[2]) ~= ARGV[2] then return 0 end
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
redis.call('DEL', KEYS[1])
redis.call('ZREM', KEYS[4], KEYS[1])
redis.call('XADD', KEYS[3], 'MAXLEN', '~', 200000, '*', 'event', 'lease_released', 'at', now,
  'key', KEYS[1], 'holder', ARGV[1], 'token', ARGV[2], 'expires', '')
return 1";

/// What the lists add to an acquire and to a release.
const ENLIST: &str = "
redis.call('ZADD', KEYS[5], 0, KEYS[1])
redis.call('ZADD', KEYS[6], 0, KEYS[1])
";
const DELIST: &str = "
redis.call('ZREM', KEYS[5], KEYS[1])
redis.call('ZREM', KEYS[6], KEYS[1])
";

const RENEW: &str = "
local t = redis.call('TIME')
local expires = t[1] * 1000 + math.floor(t[2] / 1000) + ARGV[2]
local answers = {}
for place = 2, #KEYS, 2 do
  if redis.call('GET', KEYS[place]) == ARGV[1]
    and redis.call('GET', KEYS[place + 1]) == ARGV[2 + place / 2] then
    redis.call('PEXPIREAT', KEYS[place], expires)
    redis.call('ZADD', KEYS[1], expires, KEYS[place])
    answers[#answers + 1] = expires
  else
    answers[#answers + 1] = 0
  end
end
return answers";

const BARE_ACQUIRE: &str = "
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  return {redis.call('INCR', KEYS[2])}
end
return {0}";

const BARE_RELEASE: &str = "
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0";

const BARE_RENEW: &str = "
local answers = {}
for place = 2, #KEYS, 2 do
  if redis.call('GET', KEYS[place]) == ARGV[1] then
    answers[#answers + 1] = redis.call('PEXPIRE', KEYS[place], ARGV[2])
  else
    answers[#answers + 1] = 0
  end
end
return answers";

/// Redis as a home beside scripts written by hand.
#[derive(Parser)]
struct Options {
    #[command(flatten)]
    pace: Pace,
    /// How many ask at once.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 64])]
    callers: Vec<usize>,
    /// How many leases one renewal keeps.
    #[arg(long, default_value_t = 100)]
    batch: usize,
}

const HOLDER: &str = "bench-holder";
const TTL_MS: u64 = 60_000;
/// How many keys each caller uses in turn.
const KEYS: usize = 100;

/// A peer: its scripts, and the names of its keys.
#[derive(Clone)]
struct Hand {
    connection: MultiplexedConnection,
    name: &'static str,
    scripts: Arc<[Script; 3]>,
}

impl Hand {
    fn names(&self, id: &str) -> [String; 6] {
        let name = self.name;
        [
            format!("{name}:lease:{id}"),
            format!("{name}:fence:{id}"),
            format!("{name}:events"),
            format!("{name}:expiry"),
            format!("{name}:keys"),
            format!("{name}:holder:{HOLDER}"),
        ]
    }

    async fn call<T: FromRedisValue>(
        &self,
        script: usize,
        id: &str,
        argument: u64,
    ) -> anyhow::Result<T> {
        let mut call = self.scripts[script].prepare_invoke();
        for name in self.names(id) {
            call.key(name);
        }
        call.arg(HOLDER).arg(argument);
        Ok(call.invoke_async(&mut self.connection.clone()).await?)
    }

    async fn acquire(&self, id: &str) -> anyhow::Result<u64> {
        let answer: Vec<redis::Value> = self.call(0, id, TTL_MS).await?;
        match answer.first() {
            Some(redis::Value::Int(token)) if *token > 0 => Ok(u64::try_from(*token)?),
            _ => bail!("{id} is held"),
        }
    }

    async fn turn(&self, id: &str) -> anyhow::Result<()> {
        let token = self.acquire(id).await?;
        let done: u64 = self.call(1, id, token).await?;
        anyhow::ensure!(done == 1, "{id} was not released");
        Ok(())
    }

    async fn renew(&self, held: &[(String, u64)]) -> anyhow::Result<()> {
        let mut call = self.scripts[2].prepare_invoke();
        let [_, _, _, expiry, ..] = self.names("");
        call.key(expiry).arg(HOLDER).arg(TTL_MS);
        for (id, token) in held {
            let [lease, fence, ..] = self.names(id);
            call.key(lease).key(fence).arg(*token);
        }
        let kept: Vec<u64> = call.invoke_async(&mut self.connection.clone()).await?;
        anyhow::ensure!(!kept.contains(&0), "a lease was lost");
        Ok(())
    }

    fn turns(&self) -> Work {
        let hand = self.clone();
        work(move |caller, turn| {
            let hand = hand.clone();
            async move { hand.turn(&format!("{caller}-{}", turn % KEYS)).await }
        })
    }

    async fn renewals(&self, callers: usize, batch: usize) -> anyhow::Result<Work> {
        let mut held = Vec::new();
        for caller in 0..callers {
            let mut tokens = Vec::new();
            for number in 0..batch {
                let id = format!("kept-{callers}-{caller}-{number}");
                let token = self.acquire(&id).await?;
                tokens.push((id, token));
            }
            held.push(tokens);
        }
        let (hand, held) = (self.clone(), Arc::new(held));
        Ok(work(move |caller, _| {
            let (hand, held) = (hand.clone(), held.clone());
            async move { hand.renew(&held[caller]).await }
        }))
    }
}

async fn take(store: &Redis, id: &str) -> anyhow::Result<lease::Lease> {
    let holder = Holder::new(HOLDER, "1")?;
    let request = Acquire::one(Key::new("bench", id)?, holder, Ttl::from_millis(TTL_MS)?);
    match store.acquire(request).await? {
        Acquired::Granted { mut leases, .. } => Ok(leases.remove(0)),
        Acquired::Refused(refusal) => bail!("{refusal:?}"),
    }
}

fn our_turns(store: &Redis) -> Work {
    let store = store.clone();
    work(move |caller, turn| {
        let store = store.clone();
        async move {
            let lease = take(&store, &format!("{caller}-{}", turn % KEYS)).await?;
            let done = store.release(LeaseRef::from(&lease)).await?;
            anyhow::ensure!(done, "not released");
            Ok(())
        }
    })
}

async fn our_renewals(store: &Redis, callers: usize, batch: usize) -> anyhow::Result<Work> {
    let mut held = Vec::new();
    for caller in 0..callers {
        let mut leases = Vec::new();
        for number in 0..batch {
            let lease = take(store, &format!("kept-{callers}-{caller}-{number}")).await?;
            leases.push(Renewal::of(&lease));
        }
        held.push(Renew {
            holder: Holder::new(HOLDER, "1")?,
            leases: Renewals::These(leases),
        });
    }
    let (store, held) = (store.clone(), Arc::new(held));
    Ok(work(move |caller, _| {
        let (store, held) = (store.clone(), held.clone());
        async move {
            for renewed in store.renew(held[caller].clone()).await? {
                if let Err(loss) = renewed.outcome {
                    bail!("{loss:?}");
                }
            }
            Ok(())
        }
    }))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let server = Server::start().await;
    let store = Redis::open_url(&server.url()).await?;
    let client = redis::Client::open(server.url())?;
    let connection = client.get_multiplexed_async_connection().await?;
    let hand = |name, scripts: [String; 3]| Hand {
        connection: connection.clone(),
        name,
        scripts: Arc::new(scripts.map(|script| Script::new(&script))),
    };
    let bare = hand(
        "bare",
        [BARE_ACQUIRE, BARE_RELEASE, BARE_RENEW].map(String::from),
    );
    let by_hand = hand("hand", [ACQUIRE, RELEASE, RENEW].map(String::from));
    let listing = |script: &str, lists: &str| {
        let (head, last) = script.rsplit_once('\n').unwrap_or(("", script));
        format!("{head}{lists}{last}")
    };
    let listed = hand(
        "listed",
        [
            listing(ACQUIRE, ENLIST),
            listing(RELEASE, DELIST),
            RENEW.to_owned(),
        ],
    );
    let mut report = Report::default();
    for &callers in &options.callers {
        let sides = [
            ("bare", bare.turns()),
            ("by hand", by_hand.turns()),
            ("by hand, listed", listed.turns()),
            ("store", our_turns(&store)),
        ];
        let figures = compare(&sides, callers, options.pace).await?;
        report.add("acquire + release", callers, &figures);
    }
    let batch = options.batch;
    for &callers in &options.callers {
        let sides = [
            ("bare", bare.renewals(callers, batch).await?),
            ("by hand", by_hand.renewals(callers, batch).await?),
            ("store", our_renewals(&store, callers, batch).await?),
        ];
        let figures = compare(&sides, callers, options.pace).await?;
        report.add(&format!("renewal of {batch}"), callers, &figures);
    }
    println!("{report}");
    Ok(())
}
