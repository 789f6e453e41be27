//! Three servers on one database, while servers are killed and the database is restarted, paused and
//! made slow. Clients write down what they believed; afterwards nothing of it may contradict.

mod clients;
mod course;
mod fleet;
mod listed;

use leasehold_testkit::{Postgres, Proxy, Redis};

use course::Database;
use fleet::Fleet;

/// No two holders at once, tokens only grow, nothing that was acknowledged is lost, and clients
/// recover by themselves (L1, L2, L3, L11).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heavy_three_replicas_on_postgres_survive_every_fault() {
    let server = Postgres::start().await;
    let proxy = Proxy::start(server.addr()).await;
    let url = format!("postgres://postgres@{}/postgres", proxy.addr());
    let fleet = Fleet::start(&url).await;
    course::run(fleet, Database::Postgres(Box::new(server)), proxy).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heavy_three_replicas_on_redis_survive_every_fault() {
    // Every write is on its disk before it answers, so that a restart forgets nothing.
    let server = Redis::options().persistent().start().await;
    let proxy = Proxy::start(server.addr()).await;
    let url = format!("redis://{}", proxy.addr());
    let fleet = Fleet::start(&url).await;
    course::run(fleet, Database::Redis(Box::new(server)), proxy).await;
}
