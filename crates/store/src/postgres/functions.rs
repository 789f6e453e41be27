//! The functions that decide, as a set. Every name of a set ends with the set's version, the checksum of
//! its text, so that servers of two versions work on one database while it is upgraded: each calls its
//! own. A server says every minute that it uses its set. Sets that nobody used for a day are dropped when
//! a server starts, and of those that nobody used for an hour all but the newest [`SPARE`].

use std::{collections::HashSet, sync::Arc, time::Duration};

use lease::{
    Error,
    planted::{Bug, planted},
};
use tokio_postgres::Transaction;
use tokio_util::sync::CancellationToken;

use super::{
    Options,
    connect::{Database, Tls, direct},
    migrate::{checksum, migrate},
};
use crate::page;

/// One file per verb. They may be changed at will.
const FILES: &[&str] = &[
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

/// How many sets that nobody uses are kept for a server that is started again.
const SPARE: u32 = 8;
/// How often a server says that it uses its set.
const USE_INTERVAL: Duration = Duration::from_mins(1);

/// Where the sets are listed.
pub(super) const TABLE: &str = "
CREATE TABLE IF NOT EXISTS leasehold_functions (
    version text PRIMARY KEY,
    installed_at timestamptz NOT NULL DEFAULT now(),
    used_at timestamptz NOT NULL DEFAULT now()
)";

const USE: &str =
    "UPDATE leasehold_functions SET used_at = now() WHERE version = $1 RETURNING version";

/// What every function begins with.
const PREFIX: &str = "lh_";

/// The functions under the names of their version.
#[derive(Clone, Debug)]
pub(super) struct FunctionSet {
    version: String,
    text: String,
}

impl FunctionSet {
    /// This program's own set.
    pub fn of(options: &Options) -> Self {
        let text = text();
        #[cfg(feature = "conformance")]
        let text = match &options.flip {
            Some(flip) => flip.plant(&text),
            None => text,
        };
        #[cfg(not(feature = "conformance"))]
        let _ = options;
        let version = checksum(&text);
        Self {
            text: versioned(&text, &version),
            version,
        }
    }

    /// The one function that is called from outside.
    pub fn entry_point(&self) -> String {
        format!("{PREFIX}apply_{}", self.version)
    }

    /// Creates the set unless it is there, and drops sets that nobody uses.
    pub async fn install(
        &self,
        transaction: &Transaction<'_>,
    ) -> Result<(), tokio_postgres::Error> {
        if transaction.execute(USE, &[&self.version]).await? == 0 {
            transaction.batch_execute(&self.text).await?;
            transaction
                .execute(
                    "INSERT INTO leasehold_functions (version) VALUES ($1)",
                    &[&self.version],
                )
                .await?;
        }
        transaction.batch_execute(&drop_unused()).await
    }
}

/// Keeps the set of a server that works.
pub(super) struct Keeper {
    pub functions: FunctionSet,
    pub database: Database,
    pub options: Options,
    pub tls: Tls,
}

impl Keeper {
    /// Records every minute that the set is used, until the store is closed.
    pub async fn run(self: Arc<Self>, closed: CancellationToken) {
        let keeping = async {
            loop {
                tokio::time::sleep(USE_INTERVAL).await;
                if let Err(error) = self.keep().await {
                    tracing::debug!(%error, "use of functions not recorded");
                }
            }
        };
        closed.run_until_cancelled(keeping).await;
    }

    /// Records that the set is used. One that was dropped meanwhile, because this server was away for long,
    /// is installed again.
    pub async fn keep(&self) -> Result<(), Error> {
        let version = &self.functions.version;
        if self.database.change(USE, &[version]).await?.is_empty() {
            let (mut client, _notifications) = direct(&self.options, &self.tls).await?;
            migrate(&mut client, &self.options).await?;
            tracing::info!(version, "functions installed again");
        }
        Ok(())
    }
}

/// Drops what nobody uses any more.
fn drop_unused() -> String {
    format!(
        "DO $$
         DECLARE
             old text;
             each regprocedure;
         BEGIN
             FOR old IN
                 DELETE FROM leasehold_functions
                 WHERE used_at < now() - interval '1 day' OR version IN (
                     SELECT version FROM leasehold_functions
                     WHERE used_at < now() - interval '1 hour' ORDER BY used_at DESC OFFSET {SPARE})
                 RETURNING version
             LOOP
                 FOR each IN
                     SELECT oid::regprocedure FROM pg_proc
                     WHERE pronamespace = current_schema()::regnamespace
                         AND starts_with(proname, '{PREFIX}')
                         AND right(proname, length(old) + 1) = '_' || old
                 LOOP
                     EXECUTE 'DROP FUNCTION ' || each;
                 END LOOP;
             END LOOP;
         END $$"
    )
}

/// After how much silence a replica's waiters are passed over.
fn stale_ms() -> u64 {
    if planted(Bug::DeadReplicaServedByPostgres) {
        1_000_000_000
    } else {
        STALE_MS
    }
}

/// The text of all functions, with what [`page`] says in it.
fn text() -> String {
    let numbers = page::numbers()
        .into_iter()
        .chain([("STALE_MS", stale_ms())]);
    let text = FILES.concat().replace("{LEASE_ID}", page::LEASE_ID_SQL);
    numbers.fold(text, |text, (name, number)| {
        text.replace(&format!("{{{name}}}"), &number.to_string())
    })
}

/// The text with the version behind the name of every function that it creates.
fn versioned(text: &str, version: &str) -> String {
    let created: HashSet<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("CREATE FUNCTION "))
        .map(name_in)
        .collect();
    let mut renamed = String::with_capacity(text.len() * 5 / 4);
    let mut rest = text;
    while let Some(place) = rest.find(PREFIX) {
        let (before, from) = rest.split_at(place);
        let name = name_in(from);
        renamed.push_str(before);
        renamed.push_str(name);
        if created.contains(name) {
            renamed.push('_');
            renamed.push_str(version);
        }
        rest = &from[name.len()..];
    }
    renamed + rest
}

/// The name that a text begins with.
fn name_in(text: &str) -> &str {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    &text[..text.bytes().take_while(is_part).count()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_of_a_set_has_its_version_and_those_of_the_tables_have_none() {
        let set = versioned(&text(), "v1");
        let created = set.matches("CREATE FUNCTION ").count();
        assert!(created > 40, "{created}");
        for line in set
            .lines()
            .filter(|line| line.starts_with("CREATE FUNCTION"))
        {
            assert!(line.contains("_v1("), "{line}");
        }
        assert!(set.contains("lh_document(new_value)"));
        assert!(set.contains("RETURN lh_decide_any_v1(") || set.contains("FROM lh_decide_any_v1("));
        assert!(!set.contains("_v1_v1"));
        // Nothing is left to put in.
        let open = set
            .lines()
            .find(|line| line.contains('{') && line.contains("_MS}"));
        assert_eq!(open, None);
        assert!(!set.contains("{LEASE_ID}") && !set.contains("{MAX_"));
    }
}
