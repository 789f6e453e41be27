//! The schema: tables in numbered steps, and the functions that decide, which are replaced as a set
//! whenever they differ from this program's. All of it runs in one transaction under a lock, so that
//! replicas that start together migrate once.

use lease::{
    Error, Token, engine,
    planted::{Bug, planted},
};
use tokio_postgres::{Client, Transaction};

use super::{Options, error};

/// The steps in their order. One that was released is never changed: the database keeps its checksum.
const STEPS: &[(&str, &str)] = &[
    ("V1__tables", include_str!("migrations/V1__tables.sql")),
    ("V2__views", include_str!("migrations/V2__views.sql")),
];

/// The functions, one file per verb. They may be changed at will.
const FUNCTIONS: &[&str] = &[
    include_str!("functions/lease.sql"),
    include_str!("functions/acquire.sql"),
    include_str!("functions/wait.sql"),
    include_str!("functions/renew.sql"),
    include_str!("functions/release.sql"),
    include_str!("functions/revoke.sql"),
    include_str!("functions/depart.sql"),
    include_str!("functions/handoff.sql"),
    include_str!("functions/commit.sql"),
    include_str!("functions/tick.sql"),
    include_str!("functions/forget.sql"),
    include_str!("functions/apply.sql"),
];

/// A replica that has not shown itself for this long gets no grants for its waiters.
const STALE_MS: u64 = 10_000;

/// Removes the functions of another version. Those that tables depend on belong to the tables, and the
/// one behind the maintenance lock comes and goes with it.
const DROP_FUNCTIONS: &str = "
DO $$
DECLARE each regprocedure;
BEGIN
    FOR each IN
        SELECT oid::regprocedure FROM pg_proc
        WHERE pronamespace = current_schema()::regnamespace AND starts_with(proname, 'lh_')
            AND proname NOT IN ('lh_json', 'lh_document', 'lh_moment', 'lh_number', 'lh_bolted')
    LOOP
        EXECUTE 'DROP FUNCTION ' || each;
    END LOOP;
END $$";

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
             );
             CREATE TABLE IF NOT EXISTS leasehold_functions (
                 one boolean PRIMARY KEY DEFAULT true CHECK (one),
                 checksum text NOT NULL,
                 applied_at timestamptz NOT NULL DEFAULT now()
             )",
        )
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
    let functions = functions();
    #[cfg(feature = "conformance")]
    let functions = match &options.flip {
        Some(flip) => flip.plant(&functions),
        None => functions,
    };
    replace_functions(&transaction, &functions)
        .await
        .map_err(failed)?;
    transaction.commit().await.map_err(failed)?;
    Ok(STEPS.len() - done.len())
}

/// Replaces the functions, unless the database has these very ones.
async fn replace_functions(
    transaction: &Transaction<'_>,
    functions: &str,
) -> Result<(), tokio_postgres::Error> {
    let sum = checksum(functions);
    let there = transaction
        .query_opt("SELECT checksum FROM leasehold_functions", &[])
        .await?;
    if there.is_some_and(|row| row.get::<_, String>(0) == sum) {
        return Ok(());
    }
    transaction.batch_execute(DROP_FUNCTIONS).await?;
    transaction.batch_execute(functions).await?;
    transaction
        .execute(
            "INSERT INTO leasehold_functions (checksum) VALUES ($1)
             ON CONFLICT (one) DO UPDATE SET checksum = excluded.checksum, applied_at = now()",
            &[&sum],
        )
        .await?;
    Ok(())
}

/// After how much silence a replica's waiters are passed over.
fn stale_ms() -> u64 {
    if planted(Bug::DeadReplicaServedByPostgres) {
        1_000_000_000
    } else {
        STALE_MS
    }
}

/// The text of all functions, with the kernel's own numbers in it.
fn functions() -> String {
    let mut text = FUNCTIONS.concat();
    for (name, number) in [
        ("{MAX_TOKEN}", Token::MAX.get()),
        ("{MAX_WAITERS}", engine::MAX_WAITERS as u64),
        ("{STALE_MS}", stale_ms()),
    ] {
        text = text.replace(name, &number.to_string());
    }
    text
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
fn checksum(text: &str) -> String {
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}
