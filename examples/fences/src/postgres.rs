//! The fence in PostgreSQL.

use lease::{Key, Token};
use tokio_postgres::{Client, error::SqlState};

use crate::WriteError;

/// The table, the function and the trigger function.
pub const FENCE_SQL: &str = include_str!("../postgres/fence.sql");
/// A table that can only be written through the fence.
pub const DOCUMENTS_SQL: &str = include_str!("../postgres/documents.sql");
/// The fence's own error code for a stale token.
const STALE: &str = "LH001";

/// Writes a document as the owner of its key under this token.
pub async fn write(
    client: &mut Client,
    key: &Key,
    token: Token,
    value: &str,
) -> Result<(), WriteError> {
    let key = key.as_str();
    let token = i64::try_from(token.get()).map_err(WriteError::failed)?;
    let transaction = client.transaction().await.map_err(reported)?;
    transaction
        .execute("SELECT fence_pass($1, $2)", &[&key, &token])
        .await
        .map_err(reported)?;
    transaction
        .execute(
            "INSERT INTO documents VALUES ($1, $2)
             ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            &[&key, &value],
        )
        .await
        .map_err(reported)?;
    transaction.commit().await.map_err(reported)
}

fn reported(error: tokio_postgres::Error) -> WriteError {
    match error.as_db_error() {
        Some(refusal) if *refusal.code() == SqlState::from_code(STALE) => {
            WriteError::Stale(refusal.message().to_owned())
        }
        _ => WriteError::failed(error),
    }
}
