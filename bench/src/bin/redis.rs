//! The Redis store beside a hand-written script that does the same work on the same server, at the
//! same concurrency: what the store's API costs over Redis itself.
//!
//! The scripts by hand grant with a fencing token that never goes back, compare the owner and its
//! token before they touch anything, and write an event into a stream. They know no waiters, pools,
//! policies, records, holders or lists, and answer with a number where the store answers with a
//! whole lease.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, bail};
use clap::Parser;
use comfy_table::{CellAlignment, Table};
use hdrhistogram::Histogram;
use lease::{Acquire, Acquired, Authority, Holder, Key, LeaseRef, Renew, Renewal, Renewals, Ttl};
use leasehold_store::redis::Redis;
use leasehold_testkit::redis::Redis as Server;
use redis::{Script, aio::MultiplexedConnection};
use tokio::{sync::Mutex, time::Instant};

const ACQUIRE: &str = "
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
local token = math.max((tonumber(redis.call('GET', KEYS[2])) or 0) + 1, now)
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.call('SET', KEYS[2], token)
redis.call('XADD', KEYS[3], 'MAXLEN', '~', 200000, '*', 'event', 'lease_acquired', 'at', now,
  'key', KEYS[1], 'holder', ARGV[1], 'token', token, 'expires', now + ARGV[2])
return token";

const RELEASE: &str = "
if redis.call('GET', KEYS[1]) ~= ARGV[1] or redis.call('GET', KEYS[2]) ~= ARGV[2] then return 0 end
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
redis.call('DEL', KEYS[1])
redis.call('XADD', KEYS[3], 'MAXLEN', '~', 200000, '*', 'event', 'lease_released', 'at', now,
  'key', KEYS[1], 'holder', ARGV[1], 'token', ARGV[2])
return 1";

const RENEW: &str = "
local answers = {}
for place = 1, #KEYS, 2 do
  if redis.call('GET', KEYS[place]) == ARGV[1]
    and redis.call('GET', KEYS[place + 1]) == ARGV[2 + (place + 1) / 2] then
    redis.call('PEXPIRE', KEYS[place], ARGV[2])
    answers[#answers + 1] = 1
  else
    answers[#answers + 1] = 0
  end
end
return answers";

#[derive(Parser)]
struct Options {
    /// How long each measurement takes, in seconds.
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// How many ask at once.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 64])]
    tasks: Vec<usize>,
    /// How many leases one renewal keeps.
    #[arg(long, default_value_t = 100)]
    batch: usize,
}

/// One side of the comparison.
#[derive(Clone)]
enum Side {
    Store(Redis),
    Hand(Hand),
}

#[derive(Clone)]
struct Hand {
    connection: MultiplexedConnection,
    acquire: Arc<Script>,
    release: Arc<Script>,
    renew: Arc<Script>,
}

const TTL_MS: u64 = 30_000;

fn ask(id: &str) -> anyhow::Result<Acquire> {
    let holder = Holder::new("bench-holder", "1")?;
    Ok(Acquire::one(
        Key::new("bench", id)?,
        holder,
        Ttl::from_millis(TTL_MS)?,
    ))
}

fn names(id: &str) -> [String; 3] {
    [
        format!("hand:lease:{id}"),
        format!("hand:fence:{id}"),
        "hand:events".into(),
    ]
}

impl Hand {
    async fn acquire(&mut self, id: &str) -> anyhow::Result<u64> {
        let [lease, fence, events] = names(id);
        let mut call = self.acquire.prepare_invoke();
        call.key(lease).key(fence).key(events);
        call.arg("bench-holder").arg(TTL_MS);
        let token: u64 = call.invoke_async(&mut self.connection).await?;
        if token == 0 {
            bail!("{id} is held");
        }
        Ok(token)
    }

    async fn release(&mut self, id: &str, token: u64) -> anyhow::Result<()> {
        let [lease, fence, events] = names(id);
        let mut call = self.release.prepare_invoke();
        call.key(lease).key(fence).key(events);
        call.arg("bench-holder").arg(token);
        let done: u64 = call.invoke_async(&mut self.connection).await?;
        if done != 1 {
            bail!("{id} was not released");
        }
        Ok(())
    }
}

impl Side {
    /// Takes a key and gives it back.
    async fn turn(&mut self, id: &str) -> anyhow::Result<()> {
        match self {
            Self::Store(store) => match store.acquire(ask(id)?).await? {
                Acquired::Granted { leases, .. } => {
                    store.release(LeaseRef::from(&leases[0])).await?;
                }
                Acquired::Refused(refusal) => bail!("{refusal:?}"),
            },
            Self::Hand(hand) => {
                let token = hand.acquire(id).await?;
                hand.release(id, token).await?;
            }
        }
        Ok(())
    }

    /// Takes keys, to renew them together.
    async fn hold(&mut self, ids: &[String]) -> anyhow::Result<Held> {
        let mut leases = Vec::new();
        let mut tokens = Vec::new();
        for id in ids {
            match self {
                Self::Store(store) => match store.acquire(ask(id)?).await? {
                    Acquired::Granted { leases: new, .. } => leases.extend(new),
                    Acquired::Refused(refusal) => bail!("{refusal:?}"),
                },
                Self::Hand(hand) => tokens.push((id.clone(), hand.acquire(id).await?)),
            }
        }
        Ok(Held {
            renew: Renew {
                holder: Holder::new("bench-holder", "1")?,
                leases: Renewals::These(leases.iter().map(Renewal::of).collect()),
            },
            tokens,
        })
    }

    async fn renew(&mut self, held: &Held) -> anyhow::Result<()> {
        match self {
            Self::Store(store) => {
                for renewed in store.renew(held.renew.clone()).await? {
                    if let Err(loss) = renewed.outcome {
                        bail!("{loss:?}");
                    }
                }
            }
            Self::Hand(hand) => {
                let mut call = hand.renew.prepare_invoke();
                call.arg("bench-holder").arg(TTL_MS);
                for (id, token) in &held.tokens {
                    let [lease, fence, _] = names(id);
                    call.key(lease).key(fence).arg(*token);
                }
                let kept: Vec<u64> = call.invoke_async(&mut hand.connection).await?;
                if kept.contains(&0) {
                    bail!("a lease was lost");
                }
            }
        }
        Ok(())
    }
}

struct Held {
    renew: Renew,
    tokens: Vec<(String, u64)>,
}

/// What a measurement gave: per second, and microseconds at the median and the 99th percentile.
struct Figures {
    rate: f64,
    median: u64,
    p99: u64,
}

async fn measure(
    side: &Side,
    what: &'static str,
    tasks: usize,
    options: &Options,
) -> anyhow::Result<Figures> {
    static ROUND: AtomicU64 = AtomicU64::new(0);
    let round = ROUND.fetch_add(1, Ordering::Relaxed);
    let histogram = Arc::new(Mutex::new(Histogram::<u64>::new(3)?));
    let began = Instant::now();
    let until = began + Duration::from_secs(options.seconds);
    let workers: Vec<_> = (0..tasks)
        .map(|task| {
            let mut side = side.clone();
            let histogram = histogram.clone();
            let batch = options.batch;
            tokio::spawn(async move {
                let ids: Vec<String> = (0..batch).map(|n| format!("{round}-{task}-{n}")).collect();
                let held = match what {
                    "renew" => Some(side.hold(&ids).await?),
                    _ => None,
                };
                let mut local = Histogram::<u64>::new(3)?;
                let mut turn = 0;
                while Instant::now() < until {
                    let sent = Instant::now();
                    match &held {
                        Some(held) => side.renew(held).await?,
                        None => side.turn(&ids[turn % batch]).await?,
                    }
                    local.record(u64::try_from(sent.elapsed().as_micros())?)?;
                    turn += 1;
                }
                histogram.lock().await.add(&local)?;
                anyhow::Ok(())
            })
        })
        .collect();
    for worker in workers {
        worker.await.context("a worker panicked")??;
    }
    let histogram = histogram.lock().await;
    Ok(Figures {
        rate: histogram.len() as f64 / began.elapsed().as_secs_f64(),
        median: histogram.value_at_quantile(0.5),
        p99: histogram.value_at_quantile(0.99),
    })
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let server = Server::start().await;
    let store = Redis::open_url(&server.url()).await?;
    let client = redis::Client::open(server.url())?;
    let hand = Hand {
        connection: client.get_multiplexed_async_connection().await?,
        acquire: Arc::new(Script::new(ACQUIRE)),
        release: Arc::new(Script::new(RELEASE)),
        renew: Arc::new(Script::new(RENEW)),
    };
    let sides = [("by hand", Side::Hand(hand)), ("store", Side::Store(store))];
    let mut table = Table::new();
    table.set_header([
        "work",
        "tasks",
        "side",
        "per second",
        "median µs",
        "p99 µs",
        "ratio",
    ]);
    let renewal = format!("renewal of {}", options.batch);
    for (what, title) in [("turn", "acquire + release"), ("renew", renewal.as_str())] {
        for &tasks in &options.tasks {
            let mut by_hand = None;
            for (name, side) in &sides {
                let figures = measure(side, what, tasks, &options).await?;
                let base = *by_hand.get_or_insert(figures.rate);
                table.add_row([
                    title.to_owned(),
                    tasks.to_string(),
                    (*name).to_owned(),
                    format!("{:.0}", figures.rate),
                    figures.median.to_string(),
                    figures.p99.to_string(),
                    format!("{:.2}", base / figures.rate),
                ]);
            }
        }
    }
    for column in [1, 3, 4, 5, 6] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    println!("{table}");
    Ok(())
}
