//! The fence in Redis.

use lease::{Key, Token};
use redis::{AsyncConnectionConfig, Script};

use crate::WriteError;

/// The script: compares and writes in one step.
pub const WRITE_LUA: &str = include_str!("../redis/write.lua");

/// Writes a document as the owner of its key under this token.
pub async fn write(
    client: &redis::Client,
    key: &Key,
    token: Token,
    value: &str,
) -> Result<(), WriteError> {
    let settings = AsyncConnectionConfig::new();
    let mut connection = client
        .get_multiplexed_async_connection_with_config(&settings)
        .await
        .map_err(WriteError::failed)?;
    let outcome: Result<(), redis::RedisError> = Script::new(WRITE_LUA)
        .key(format!("fence:{{{key}}}"))
        .key(format!("document:{{{key}}}"))
        .arg(token.get())
        .arg(value)
        .invoke_async(&mut connection)
        .await;
    outcome.map_err(|error| {
        if error.code() == Some("STALE") {
            WriteError::Stale(error.detail().unwrap_or_default().to_owned())
        } else {
            WriteError::failed(error)
        }
    })
}
