//! Every replica sees the others: which are there, which died, what each leads.

use leasehold_api::overview::{Replica, ReplicaStatus};
use leasehold_client::Client;
use leasehold_testkit::{Postgres, Redis, wait};

use super::fleet::Fleet;
use crate::cli_support::{SOON, Server};

/// The replicas as one of them sees them; none while it cannot be asked.
async fn seen(client: &Client) -> Vec<Replica> {
    match client.overview().await {
        Ok(overview) => overview.replicas.unwrap_or_default(),
        Err(_) => Vec::new(),
    }
}

fn with(replicas: &[Replica], status: ReplicaStatus) -> Vec<&Replica> {
    replicas.iter().filter(|it| it.status == status).collect()
}

/// Whether exactly one of them expires leases, and it is alive.
fn one_leads(replicas: &[Replica]) -> bool {
    let leads = |it: &&Replica| it.leads.iter().any(|task| task == "expiry");
    replicas.iter().filter(leads).count() == 1
}

async fn replicas_come_stop_and_die(store: &str) {
    let mut fleet = Fleet::start(store).await;
    let client = fleet.replicas[0].client();
    wait::until(SOON, "three are listed", async || {
        let replicas = seen(&client).await;
        with(&replicas, ReplicaStatus::Healthy).len() == 3 && one_leads(&replicas)
    })
    .await;
    let replicas = seen(&client).await;
    let names: Vec<&str> = replicas.iter().map(|it| it.name.as_str()).collect();
    for replica in &fleet.replicas {
        let port = format!(":{}", replica.address().port());
        assert!(names.iter().any(|it| it.ends_with(&port)), "{names:?}");
    }
    let version = env!("CARGO_PKG_VERSION");
    assert!(
        replicas
            .iter()
            .all(|it| it.version == version && it.store_writable)
    );
    // A graceful stop ends it immediately: no ttl is waited for.
    fleet.replicas[2].stop().await;
    let replicas = seen(&client).await;
    assert_eq!(replicas.len(), 2, "{replicas:?}");
    // One that is killed is missed after its ttl, and stays listed.
    let victim = format!(":{}", fleet.replicas[1].address().port());
    fleet.replicas[1].child().kill9();
    wait::until(SOON, "it is gone", async || {
        let replicas = seen(&client).await;
        let gone = with(&replicas, ReplicaStatus::Gone);
        gone.len() == 1
            && gone[0].name.ends_with(&victim)
            && gone[0].gone_at.is_some()
            && gone[0].leads.is_empty()
            && one_leads(&replicas)
    })
    .await;
    let doctor = fleet.replicas[0].doctor().await;
    assert!(doctor.contains("ended without a graceful stop"), "{doctor}");
    // Started again, it is one server and not two.
    fleet.replicas[1].start_again(store).await;
    wait::until(SOON, "it is back", async || {
        let replicas = seen(&client).await;
        replicas.len() == 2 && with(&replicas, ReplicaStatus::Healthy).len() == 2
    })
    .await;
    // One that is only frozen is missed too, and announces itself again.
    fleet.replicas[1].child().sigstop();
    wait::until(SOON, "it is missed", async || {
        let replicas = seen(&client).await;
        let gone = with(&replicas, ReplicaStatus::Gone);
        gone.len() == 1 && gone[0].gone_at.is_some()
    })
    .await;
    fleet.replicas[1].child().sigcont();
    wait::until(SOON, "it is healthy again", async || {
        let replicas = seen(&client).await;
        replicas.len() == 2
            && with(&replicas, ReplicaStatus::Healthy).len() == 2
            && replicas.iter().all(|it| it.gone_at.is_none())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_on_postgres_see_each_other_come_stop_and_die() {
    let server = Postgres::shared().await;
    replicas_come_stop_and_die(&server.url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_on_redis_see_each_other_come_stop_and_die() {
    let server = Redis::start().await;
    replicas_come_stop_and_die(&server.url()).await;
}

/// The embedded store has one server; that another one opens it proves that the one before is dead.
#[tokio::test]
async fn an_embedded_store_lists_one_server_also_after_a_crash() {
    let mut server = Server::start().await;
    let one = async |server: &Server| {
        let overview = server.client().overview().await;
        let replicas = overview.expect("it answers").replicas;
        replicas.expect("an administrator sees them")
    };
    let mut first = Vec::new();
    wait::until(SOON, "it is listed", async || {
        first = one(&server).await;
        first.len() == 1 && first[0].status == ReplicaStatus::Healthy
    })
    .await;
    assert_eq!(first[0].leads, ["expiry"]);
    server.child.kill9();
    server.restart().await;
    wait::until(SOON, "the next one is listed alone", async || {
        let replicas = one(&server).await;
        replicas.len() == 1 && replicas[0].started_at > first[0].started_at
    })
    .await;
}
