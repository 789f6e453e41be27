//! W4: what a held lease costs in memory, with holder, token, metadata and index.

use anyhow::Result;

use crate::{
    Plan,
    peers::{
        HELD_SECONDS,
        etcd::Etcd,
        leasehold_http::{Leasehold, Store as Where},
        postgres::Postgres,
        redis::{Aof, Redis},
    },
    results::Results,
};

/// What a peer stores with each key, about as long as what Leasehold is given: holder, incarnation,
/// token, tenant and a label.
const VALUE: &str = r#"{"holder":"holder-123","incarnation":"1","token":1800000000000,"tenant":"tenant-1","labels":{"region":"eu-west-1"}}"#;
/// How many holders the leases belong to.
const HOLDERS: usize = 1_000;

pub async fn run(plan: &Plan, results: &mut Results) -> Result<()> {
    let counts = plan.length.pick(
        vec![100_000],
        vec![100_000, 1_000_000],
        vec![100_000, 1_000_000],
    );
    for leases in counts {
        let setting = format!("{leases} leases");
        let mut add = |side: &str, before: u64, after: u64| {
            let numbers = [
                (
                    "bytes_per_lease",
                    after.saturating_sub(before) as f64 / leases as f64,
                ),
                ("resident_bytes", after as f64),
            ];
            results.add("W4", &setting, side, numbers);
        };
        if plan.wants("Leasehold") {
            let mut server = Leasehold::start(Where::Durable).await?;
            let before = server.processes().resident_bytes()?;
            server.fill("held", leases, HOLDERS).await?;
            let after = server.processes().resident_bytes()?;
            add("Leasehold, just filled", before, after);
            // Nothing is left then of the way the leases came in.
            server.restart().await;
            let after = server.processes().resident_bytes()?;
            add("Leasehold", before, after);
        }
        if plan.wants("Redis") {
            let redis = Redis::start(Aof::Off).await?;
            let before = redis.processes().resident_bytes()?;
            redis
                .fill("held", leases, VALUE, HELD_SECONDS * 1000)
                .await?;
            add("Redis", before, redis.processes().resident_bytes()?);
        }
        // It takes its time: at a million a quarter of an hour.
        if plan.wants("etcd") && leases <= plan.length.pick(0, 100_000, 100_000) {
            let etcd = Etcd::start().await?;
            let before = etcd.processes().resident_bytes()?;
            etcd.fill("held", leases, VALUE, HELD_SECONDS).await?;
            add("etcd", before, etcd.processes().resident_bytes()?);
        }
        if plan.wants("PostgreSQL") {
            let postgres = Postgres::start().await?;
            let before = postgres.table_bytes().await?;
            postgres.fill("held", leases, VALUE).await?;
            let after = postgres.table_bytes().await?;
            add("PostgreSQL, table and index", before, after);
        }
    }
    Ok(())
}
