//! The schema: tables in numbered steps, and this program's set of functions. All of it runs in one
//! transaction under a lock, so that replicas that start together migrate once.

use lease::Error;
use tokio_postgres::Client;

use super::{
    Options, error,
    functions::{self, FunctionSet},
};

/// The steps in their order. One that was released is never changed: the database keeps its checksum.
const STEPS: &[(&str, &str)] = &[
    ("V1__tables", include_str!("migrations/V1__tables.sql")),
    ("V2__views", include_str!("migrations/V2__views.sql")),
    (
        "V3__runners_of_tenants",
        include_str!("migrations/V3__runners_of_tenants.sql"),
    ),
];

/// Who migrates waits here for whoever was first, and then finds nothing to do.
const LOCK: &str = "SELECT pg_advisory_xact_lock(hashtextextended('leasehold:' || $1, 0))";

/// Brings the schema up to date and says how many steps that took.
pub(super) async fn migrate(client: &mut Client, options: &Options) -> Result<usize, Error> {
    let failed = |error: tokio_postgres::Error| match error::reading(&error) {
        Error::Broken(why) => {
            Error::Broken(format!("the schema could not be brought up to date: {why}"))
        }
        other => other,
    };
    let transaction = client.transaction().await.map_err(failed)?;
    transaction
        .batch_execute("SET LOCAL statement_timeout = '5min'")
        .await
        .map_err(failed)?;
    transaction
        .execute(LOCK, &[&options.schema])
        .await
        .map_err(failed)?;
    let schema = &options.schema;
    let exists = transaction
        .query_opt("SELECT FROM pg_namespace WHERE nspname = $1", &[schema])
        .await
        .map_err(failed)?;
    // Asked first, since a user that may not create schemas may still use one that is there.
    if exists.is_none() {
        transaction
            .batch_execute(&format!("CREATE SCHEMA {schema}"))
            .await
            .map_err(failed)?;
    }
    transaction
        .batch_execute(
            "CREATE TABLE IF NOT EXISTS leasehold_migrations (
                 step integer PRIMARY KEY,
                 name text NOT NULL,
                 checksum text NOT NULL,
                 applied_at timestamptz NOT NULL DEFAULT now()
             )",
        )
        .await
        .map_err(failed)?;
    transaction
        .batch_execute(functions::TABLE)
        .await
        .map_err(failed)?;
    let rows = transaction
        .query(
            "SELECT name, checksum FROM leasehold_migrations ORDER BY step",
            &[],
        )
        .await
        .map_err(failed)?;
    let done: Vec<(String, String)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    compare(&done)?;
    for (step, (name, sql)) in STEPS.iter().enumerate().skip(done.len()) {
        transaction.batch_execute(sql).await.map_err(failed)?;
        let number = i32::try_from(step + 1).unwrap_or(i32::MAX);
        transaction
            .execute(
                "INSERT INTO leasehold_migrations (step, name, checksum) VALUES ($1, $2, $3)",
                &[&number, name, &checksum(sql)],
            )
            .await
            .map_err(failed)?;
    }
    let functions = FunctionSet::of(options);
    functions.install(&transaction).await.map_err(failed)?;
    transaction.commit().await.map_err(failed)?;
    Ok(STEPS.len() - done.len())
}

/// What the database has must be the beginning of what this program knows.
fn compare(done: &[(String, String)]) -> Result<(), Error> {
    if done.len() > STEPS.len() {
        return Err(Error::Broken(format!(
            "the schema was brought up to {} by a newer version: use that one",
            done[done.len() - 1].0
        )));
    }
    for ((name, sum), (known, sql)) in done.iter().zip(STEPS) {
        if name != known || *sum != checksum(sql) {
            return Err(Error::Broken(format!(
                "step {name} of the schema is not the one this version knows: another program's tables?"
            )));
        }
    }
    Ok(())
}

/// FNV-1a: it recognises a changed file, and needs to do no more.
pub(super) fn checksum(text: &str) -> String {
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}
