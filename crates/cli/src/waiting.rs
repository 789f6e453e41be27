//! What a command waits for, shown on a terminal.

use std::{io::IsTerminal as _, pin::pin, time::Duration};

use lease::{Authority, Key};
use tokio::time::timeout;

/// What is done within this time needs no explanation.
const MOMENT: Duration = Duration::from_millis(700);
/// How often to look whether something else is waited for now, and how long that look may take.
const LOOK: Duration = Duration::from_secs(1);

/// Waits until a key is acquired, or is not. On a terminal, shows after a moment who has it, or that the
/// server does not answer, and whenever that changes.
pub async fn shown<T>(
    authority: &dyn Authority,
    key: &Key,
    server: &str,
    acquired: impl Future<Output = T>,
) -> T {
    if !std::io::stderr().is_terminal() {
        return acquired.await;
    }
    let mut acquired = pin!(acquired);
    let mut said = String::new();
    let mut pause = MOMENT;
    loop {
        if let Ok(done) = timeout(pause, acquired.as_mut()).await {
            return done;
        }
        pause = LOOK;
        let reason = tokio::select! {
            done = acquired.as_mut() => return done,
            reason = reason(authority, key, server) => reason,
        };
        if reason != said {
            eprintln!("{reason}");
            said = reason;
        }
    }
}

async fn reason(authority: &dyn Authority, key: &Key, server: &str) -> String {
    let server = lease::redact::url(server);
    match timeout(LOOK, authority.lease(key.clone())).await {
        Ok(Ok(Some(lease))) => format!("waiting for {key}, held by {}", lease.holder.name),
        Ok(Ok(None)) => format!("waiting for {key}"),
        Ok(Err(error)) if !error.is_retryable() => format!("waiting for {key}"),
        Ok(Err(_)) | Err(_) => format!("waiting for {key}: no answer from {server}, retrying"),
    }
}
