//! Redis as a lock: `SET NX PX` and a scripted delete over a connection per caller; and, for the store
//! on Redis, scripts that a careful engineer would write for the same guarantees.
//!
//! **By hand** means: acquire takes the key only when it is free, gives it a fencing token that never
//! goes back (the last one plus one, or the time), puts it into an index of expiries, and appends an
//! event to a trimmed stream; release compares owner and token, removes the key and its index entry, and
//! appends an event. It knows no lease ids, incarnations, policies, waiters, pools, lists or reasons of a
//! loss. It uses one multiplexed connection, as the store does.

use std::{fmt::Write as _, net::SocketAddr, sync::Arc};

use anyhow::{Context as _, Result, bail, ensure};
use futures_util::future::BoxFuture;
use leasehold_bench::{
    rounds::{Caller, Callers},
    usage::Processes,
};
use leasehold_testkit::Redis as Server;
use redis::{Script, aio::MultiplexedConnection};

use super::{HELD_SECONDS, Keys, TTL_MS, wire::Wire};

/// Gives a key back, if it is the caller's.
pub const DELETE: &str =
    "if redis.call('GET',KEYS[1])==ARGV[1] then return redis.call('DEL',KEYS[1]) end return 0";
const KEEP: &str = "if redis.call('GET',KEYS[1])==ARGV[1] then return redis.call('PEXPIRE',KEYS[1],ARGV[2]) end return 0";

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

/// When writes reach the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aof {
    Off,
    EverySecond,
    Always,
}

/// A server.
pub struct Redis {
    server: Server,
    pid: u32,
}

impl Redis {
    pub async fn start(aof: Aof) -> Result<Self> {
        let options = match aof {
            Aof::Off => Server::options(),
            Aof::EverySecond => Server::options()
                .set("appendonly", "yes")
                .set("appendfsync", "everysec"),
            Aof::Always => Server::options().persistent(),
        };
        let mut server = options.try_start().await?;
        let pid = server.child().pid();
        Ok(Self { server, pid })
    }

    pub fn address(&self) -> SocketAddr {
        self.server.addr()
    }

    pub fn url(&self) -> String {
        self.server.url()
    }

    pub fn processes(&self) -> Processes {
        Processes::one(self.pid)
    }

    /// Callers that acquire and release, each on its own connection.
    pub async fn cycles(&self, callers: usize) -> Result<Callers> {
        let mut all: Callers = Vec::new();
        for caller in 0..callers {
            let mut connection = Connection::open(self.address()).await?;
            let delete = connection.load(DELETE).await?;
            all.push(Box::new(Cycle {
                connection,
                delete,
                keys: Keys::new(caller, callers),
                owner: format!("client-{caller}"),
            }));
        }
        Ok(all)
    }

    /// Holds keys.
    pub async fn fill(&self, kind: &str, leases: usize, value: &str, ttl_ms: u64) -> Result<()> {
        const PIPELINE: usize = 1_000;
        let mut connection = Connection::open(self.address()).await?;
        for first in (0..leases).step_by(PIPELINE) {
            let many = PIPELINE.min(leases - first);
            for number in first..first + many {
                let key = format!("{kind}:lease-{number:09}");
                connection.queue(&["SET", &key, value, "NX", "PX", &ttl_ms.to_string()]);
            }
            connection.send().await?;
            for _ in 0..many {
                ensure!(connection.reply().await?.is_ok(), "a key is taken");
            }
        }
        Ok(())
    }

    /// Callers that keep what was filled, 100 in a pipeline; each has its share.
    pub async fn renewals(
        &self,
        kind: &str,
        leases: usize,
        value: &str,
        lanes: usize,
    ) -> Result<Callers> {
        let mut all: Callers = Vec::new();
        for lane in 0..lanes {
            let mut connection = Connection::open(self.address()).await?;
            let script = connection.load(KEEP).await?;
            all.push(Box::new(Renewal {
                connection,
                script,
                keys: (lane..leases)
                    .step_by(lanes)
                    .map(|number| format!("{kind}:lease-{number:09}"))
                    .collect(),
                value: value.to_owned(),
                next: 0,
            }));
        }
        Ok(all)
    }

    /// Callers with scripts written by hand, on one multiplexed connection.
    pub async fn by_hand(&self, callers: usize) -> Result<Callers> {
        let client = redis::Client::open(self.url())?;
        let connection = client.get_multiplexed_async_connection().await?;
        let scripts = Arc::new([ACQUIRE, RELEASE].map(Script::new));
        Ok((0..callers)
            .map(|caller| {
                Box::new(ByHand {
                    connection: connection.clone(),
                    scripts: scripts.clone(),
                    keys: Keys::new(caller, callers),
                    owner: format!("client-{caller}"),
                }) as Box<dyn Caller>
            })
            .collect())
    }
}

/// How many renewals go in one pipeline.
pub const PIPELINE: usize = 100;

/// A reply, as far as the driver cares.
#[derive(Debug, PartialEq, Eq)]
pub enum Reply {
    Text(String),
    Number(i64),
    Nothing,
    List(Vec<Reply>),
}

impl Reply {
    fn is_ok(&self) -> bool {
        matches!(self, Self::Text(text) if text == "OK")
    }

    fn is_one(&self) -> bool {
        *self == Self::Number(1)
    }
}

/// A connection that speaks RESP.
pub struct Connection {
    wire: Wire,
    out: String,
}

impl Connection {
    pub async fn open(address: SocketAddr) -> Result<Self> {
        Ok(Self {
            wire: Wire::open(address).await?,
            out: String::new(),
        })
    }

    pub fn queue(&mut self, words: &[&str]) {
        // Writing to a string cannot fail.
        let _ = write!(self.out, "*{}\r\n", words.len());
        for word in words {
            let _ = write!(self.out, "${}\r\n{word}\r\n", word.len());
        }
    }

    pub async fn send(&mut self) -> Result<()> {
        self.wire.send(self.out.as_bytes()).await?;
        self.out.clear();
        Ok(())
    }

    pub async fn reply(&mut self) -> Result<Reply> {
        loop {
            if let Some((reply, length)) = parse(self.wire.input())? {
                self.wire.advance(length);
                return Ok(reply);
            }
            self.wire.fill().await?;
        }
    }

    pub async fn call(&mut self, words: &[&str]) -> Result<Reply> {
        self.queue(words);
        self.send().await?;
        self.reply().await
    }

    async fn load(&mut self, script: &str) -> Result<String> {
        match self.call(&["SCRIPT", "LOAD", script]).await? {
            Reply::Text(sha) => Ok(sha),
            other => bail!("no digest of a script: {other:?}"),
        }
    }
}

/// A reply and its length, when it is all there.
fn parse(input: &[u8]) -> Result<Option<(Reply, usize)>> {
    let Some(end) = input.windows(2).position(|two| two == b"\r\n") else {
        return Ok(None);
    };
    let line = std::str::from_utf8(&input[1..end])?;
    let mut used = end + 2;
    let reply = match input[0] {
        b'+' => Reply::Text(line.to_owned()),
        b'-' => bail!("Redis: {line}"),
        b':' => Reply::Number(line.parse()?),
        b'$' => match usize::try_from(line.parse::<i64>()?) {
            Err(_) => Reply::Nothing,
            Ok(length) => {
                let Some(text) = input.get(used..used + length + 2) else {
                    return Ok(None);
                };
                used += length + 2;
                Reply::Text(String::from_utf8_lossy(&text[..length]).into_owned())
            }
        },
        b'*' => {
            let mut list = Vec::new();
            for _ in 0..line.parse::<i64>()? {
                let Some((item, length)) = parse(&input[used..])? else {
                    return Ok(None);
                };
                list.push(item);
                used += length;
            }
            Reply::List(list)
        }
        other => bail!("not RESP: {other}"),
    };
    Ok(Some((reply, used)))
}

struct Cycle {
    connection: Connection,
    delete: String,
    keys: Keys,
    owner: String,
}

impl Caller for Cycle {
    fn turn(&mut self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async {
            let key = format!("job:{}", self.keys.next());
            let ttl = TTL_MS.to_string();
            let set = ["SET", &key, &self.owner, "NX", "PX", &ttl];
            ensure!(self.connection.call(&set).await?.is_ok(), "{key} is held");
            let delete = ["EVALSHA", &self.delete, "1", &key, &self.owner];
            ensure!(
                self.connection.call(&delete).await?.is_one(),
                "{key} was lost"
            );
            Ok(())
        })
    }
}

struct Renewal {
    connection: Connection,
    script: String,
    keys: Vec<String>,
    value: String,
    next: usize,
}

impl Caller for Renewal {
    fn turn(&mut self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async {
            let ttl = (HELD_SECONDS * 1000).to_string();
            for _ in 0..PIPELINE {
                let key = &self.keys[self.next % self.keys.len()];
                self.next += 1;
                let words = ["EVALSHA", &self.script, "1", key, &self.value, &ttl];
                self.connection.queue(&words);
            }
            self.connection.send().await?;
            for _ in 0..PIPELINE {
                ensure!(self.connection.reply().await?.is_one(), "a key was lost");
            }
            Ok(())
        })
    }
}

struct ByHand {
    connection: MultiplexedConnection,
    scripts: Arc<[Script; 2]>,
    keys: Keys,
    owner: String,
}

impl ByHand {
    async fn call<T: redis::FromRedisValue>(
        &mut self,
        script: usize,
        id: usize,
        argument: u64,
    ) -> Result<T> {
        let mut call = self.scripts[script].prepare_invoke();
        call.key(format!("hand:lease:{id}"))
            .key(format!("hand:fence:{id}"))
            .key("hand:events")
            .key("hand:expiry")
            .arg(&self.owner)
            .arg(argument);
        Ok(call.invoke_async(&mut self.connection).await?)
    }
}

impl Caller for ByHand {
    fn turn(&mut self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async {
            let id = self.keys.next();
            let answer: Vec<redis::Value> = self.call(0, id, TTL_MS).await?;
            let Some(redis::Value::Int(token @ 1..)) = answer.first() else {
                bail!("{id} is held");
            };
            let token = u64::try_from(*token).context("a token")?;
            let done: u64 = self.call(1, id, token).await?;
            ensure!(done == 1, "{id} was not released");
            Ok(())
        })
    }
}
