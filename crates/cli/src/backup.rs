//! `leasehold backup` and `leasehold restore`.

use std::{path::PathBuf, process::ExitCode};

use leasehold_clock::System;
use leasehold_store::{
    StoreUrl,
    embedded::{self, OpenError},
};

use crate::{
    config::{Config, Period},
    data_dir,
    exit::{Exit, Failure, Outcome},
    print::{self, Format},
    serve,
};

/// Copy the embedded store while the server runs
///
/// Run it on the server's machine, as the server's user. The copy is a consistent snapshot and is
/// verified; it holds leases, tokens, records, history, and the digests of credentials that were created.
/// The file admin.token and certificates are not part of it: copy them from the data folder.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  leasehold backup /backup/monday
  leasehold backup /backup/monday --store embedded:/srv/leases

PostgreSQL and Redis are backed up with their own tools: see docs/backup.md.")]
pub struct BackupArguments {
    /// The folder to copy into; created if it does not exist
    #[arg(value_name = "DIR")]
    to: PathBuf,
    /// The store [env: LEASEHOLD_STORE] [default: embedded, in the data folder]
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    #[command(flatten)]
    format: Format,
}

/// Replace the embedded store with a copy
///
/// Stop the server first. The restored store continues beyond every revision and token that may have
/// been issued since the copy was made, so that no token goes backwards and no message id is used twice. Its
/// history starts anew; earlier history is in the copy.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  leasehold restore /backup/monday
  leasehold restore /backup/monday --replace    # sets the store aside

A holder whose lease was granted after the copy was made learns at its next renewal that it is
lost. Start the server only when such holders have stopped: after the longest ttl, which is printed.")]
pub struct RestoreArguments {
    /// The folder with the copy
    #[arg(value_name = "DIR")]
    from: PathBuf,
    /// The store [env: LEASEHOLD_STORE] [default: embedded, in the data folder]
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Set aside the store that is there
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    format: Format,
}

/// Copies.
pub async fn backup(arguments: BackupArguments, config: Config) -> Outcome {
    let dir = folder(arguments.store, config)?;
    let to = arguments.to.clone();
    let copied = blocking(move || embedded::backup(&dir, &to)).await?;
    if arguments.format.json {
        print::json(&serde_json::json!({
            "path": arguments.to,
            "revision": copied.revision.get(),
            "leases": copied.leases,
            "records": copied.records,
            "events": copied.events,
        }))?;
    } else {
        print::line(&format!(
            "{}: {} live leases, {} records, {} events, up to revision {}",
            arguments.to.display(),
            copied.leases,
            copied.records,
            copied.events,
            copied.revision
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Restores.
pub async fn restore(arguments: RestoreArguments, config: Config) -> Outcome {
    let dir = folder(arguments.store, config)?;
    let (from, to, replace) = (arguments.from, dir.clone(), arguments.replace);
    let restored = blocking(move || embedded::restore(&from, &to, replace, &System)).await?;
    if arguments.format.json {
        print::json(&serde_json::json!({
            "path": dir,
            "copied_revision": restored.copied.revision.get(),
            "revision": restored.revision.get(),
            "token_floor": restored.floor.get(),
            "leases": restored.copied.leases,
            "records": restored.copied.records,
            "longest_ttl_ms": restored.longest_ttl_ms,
            "set_aside": restored.set_aside,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    print::line(&format!(
        "{}: {} live leases and {} records as of revision {}; goes on after revision {} and token {}",
        dir.display(),
        restored.copied.leases,
        restored.copied.records,
        restored.copied.revision,
        restored.revision,
        restored.floor,
    ))?;
    if let Some(aside) = &restored.set_aside {
        eprintln!("the store that was there is in {}", aside.display());
    }
    if restored.longest_ttl_ms > 0 {
        eprintln!(
            "hint: holders that got a lease after the copy was made may work on for up to {}: start the server when they have stopped",
            Period::from_millis(restored.longest_ttl_ms)
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// The folder of the store that is meant.
fn folder(store: Option<String>, mut config: Config) -> Result<PathBuf, Failure> {
    config.server.store = store.or(config.server.store.take());
    let url = serve::store_url(&config, data_dir::find(&config).as_ref())?;
    let advice = match url {
        StoreUrl::Embedded(dir) => return Ok(dir),
        StoreUrl::Memory => "a store in memory is gone with its server",
        StoreUrl::Postgres(_) => {
            "use pg_dump, or the base backups of your installation, and after a restore `SELECT leasehold_restored();`: docs/postgresql.md"
        }
        StoreUrl::Redis(_) => {
            "use an append-only file or BGSAVE, and copy its files: docs/backup.md"
        }
    };
    Err(Failure::new(Exit::Usage, format!("{url} is not embedded")).hint(advice))
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, OpenError> + Send + 'static,
) -> Result<T, Failure> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result.map_err(|error| Failure::new(Exit::Failed, error)),
        Err(error) => Err(Failure::new(Exit::Failed, error)),
    }
}
