//! Private services, faults and processes for tests.
//!
//! Every test gets its own Redis, PostgreSQL, etcd or RabbitMQ on free loopback ports in a temporary
//! folder, can stop, kill, pause and restart it, and can put a faulty network in between. All of
//! it ends with the test, also when the test panics or is killed: see [Cleaning](self#cleaning).
//!
//! Starting a service panics with a message that says what is missing: a test that cannot have its
//! service has failed. Where a *machine* may lack an ability (network namespaces), an [`Error`] is
//! returned instead, so that the caller decides.
//!
//! ```no_run
//! # async fn example() {
//! use leasehold_testkit::{Proxy, Redis};
//!
//! let redis = Redis::start().await;
//! let proxy = Proxy::start(redis.addr()).await;
//! proxy.blackhole(); // whoever talks to `proxy.addr()` now waits in vain
//! # }
//! ```
//!
//! # Cleaning
//!
//! Three layers, from polite to certain: values end what they started when they are dropped;
//! children carry a parent-death signal; and a small watcher process removes folders and ends
//! stragglers once the test process is gone, however it went.

mod binary;
mod certificates;
pub mod dir;
mod error;
pub mod etcd;
mod janitor;
pub mod length;
pub mod netns;
mod pgbouncer;
pub mod planted;
pub mod port;
pub mod postgres;
pub mod process;
pub mod proxy;
pub mod rabbitmq;
pub mod redis;
mod redis_cluster;
mod redis_sentinel;
mod spawner;
mod template;
mod tree;
pub mod wait;

pub use binary::Binary;
pub use certificates::{Issued, Issuer};
pub use dir::Dir;
pub use error::Error;
pub use etcd::Etcd;
pub use netns::{Namespace, Namespaces};
pub use pgbouncer::PgBouncer;
pub use postgres::{Database, Postgres};
pub use process::{Child, Program};
pub use proxy::Proxy;
pub use rabbitmq::RabbitMq;
pub use redis::Redis;
pub use redis_cluster::RedisCluster;
pub use redis_sentinel::Sentinel;
