//! Looks at the server before it is trusted: a store that silently forgets grants is worse than none.

use lease::Error;
use tokio_postgres::Client;

use super::{
    Options, Unsafe,
    connect::{Tls, direct},
    error,
};

/// The oldest version that has what the schema uses.
const OLDEST_VERSION: i32 = 130_000;

/// How often two connections are made to change places; a pooling proxy gives itself away immediately.
const PROBES: usize = 3;

/// Refuses what is unsafe and not accepted by the operator. Returns the accepted dangers that are there.
pub(super) async fn check(
    client: &Client,
    options: &Options,
    tls: &Tls,
) -> Result<Vec<Unsafe>, Error> {
    // First, and with plain queries only: what comes after prepares statements, which a pooling proxy
    // mixes up with those of others.
    let pooled = is_pooled(client, options, tls).await?;
    if pooled {
        accepted(Unsafe::PoolingProxy, options)?;
    }
    let row = client
        .query_one(
            "SELECT current_setting('server_version_num')::int, current_setting('fsync'), \
             current_setting('synchronous_commit'), pg_is_in_recovery(), \
             current_setting('server_encoding')",
            &[],
        )
        .await
        .map_err(|failed| error::reading(&failed))?;
    if row.get::<_, i32>(0) < OLDEST_VERSION {
        return Err(Error::Unsupported("PostgreSQL before version 13"));
    }
    if row.get::<_, bool>(3) {
        return Err(Error::Unavailable(
            "the server is a standby; name the primary, or several hosts with \
             target_session_attrs=read-write"
                .to_owned(),
        ));
    }
    if row.get::<_, &str>(4) != "UTF8" {
        return Err(Error::Unsupported("a database whose encoding is not UTF8"));
    }
    let mut found = Vec::new();
    if row.get::<_, &str>(1) == "off" {
        found.push(Unsafe::FsyncOff);
    }
    if row.get::<_, &str>(2) == "off" {
        found.push(Unsafe::SynchronousCommitOff);
    }
    if pooled {
        found.push(Unsafe::PoolingProxy);
    }
    for danger in &found {
        accepted(*danger, options)?;
    }
    Ok(found)
}

/// Refuses a danger that the operator did not name.
fn accepted(danger: Unsafe, options: &Options) -> Result<(), Error> {
    if options.allow_unsafe.contains(&danger) {
        return Ok(());
    }
    Err(Error::Broken(format!(
        "{}; to accept that, add leasehold_allow={} to the URL",
        sentence(danger),
        danger.as_str()
    )))
}

/// What a danger means, for a person.
pub(super) fn sentence(danger: Unsafe) -> &'static str {
    match danger {
        Unsafe::FsyncOff => "fsync is off: a crash of its machine may lose or damage anything",
        Unsafe::SynchronousCommitOff => {
            "synchronous_commit is off: a crash may lose grants that were acknowledged"
        }
        Unsafe::PoolingProxy => {
            "a proxy that pools by transaction stands before the server: connect to the server itself, \
             or let the proxy pool by session"
        }
    }
}

/// Whether statements of one connection reach different server processes. While a second connection is
/// inside a transaction, a pooling proxy has lent it a process, and the first gets another one.
async fn is_pooled(client: &Client, options: &Options, tls: &Tls) -> Result<bool, Error> {
    let failed = |error: tokio_postgres::Error| error::reading(&error);
    let (other, _hears) = direct(options, tls).await?;
    let pid = async |client: &Client| {
        // Simple queries, which need no prepared statement to survive.
        let messages = client.simple_query("SELECT pg_backend_pid()").await;
        messages.map_err(failed).map(|messages| {
            messages.into_iter().find_map(|message| match message {
                tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
                _ => None,
            })
        })
    };
    let first = pid(client).await?;
    let mut moved = false;
    for _ in 0..PROBES {
        other.batch_execute("BEGIN").await.map_err(failed)?;
        let inside = pid(&other).await?;
        moved |= pid(client).await? != first || inside == first;
        other.batch_execute("COMMIT").await.map_err(failed)?;
    }
    Ok(moved)
}
