//! What goes to standard error: standard output is for data.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

use crate::{
    config::{LogFormat, wrong},
    exit::Failure,
};

/// Starts logging. A client is silent unless something is wrong or a filter was asked for.
pub fn start(log: &crate::config::Log, is_server: bool) -> Result<(), Failure> {
    let level = if !is_server && log.level == "info" {
        "error"
    } else {
        log.level.as_str()
    };
    let filter = EnvFilter::try_new(level).map_err(|error| {
        wrong(format!("log.level: {error}"))
            .hint("for example info, or leasehold_server=debug,warn")
    })?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        // A terminal that is gone must not end what goes on without it.
        .log_internal_errors(false)
        // In a file or a manager's log, colours are only noise.
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    match log.format {
        // Without the module: lines about polling have a field of the same name.
        LogFormat::Json => builder.json().flatten_event(true).with_target(false).init(),
        LogFormat::Text => builder.with_target(false).init(),
    }
    Ok(())
}
