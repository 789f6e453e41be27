//! The binary `leasehold`.

mod backup;
mod camera;
mod camera_worker;
mod cli;
mod complete;
mod completions;
mod config;
mod connect;
mod data_dir;
mod deploy;
mod doctor;
mod exit;
mod explain;
mod guard;
mod holder;
mod lease;
mod logging;
mod man;
mod manager;
mod metrics;
mod migrate;
mod nodes;
mod plan;
mod poll;
mod print;
mod progress;
mod run;
mod runner;
mod serve;
mod sessions;
mod settings;
mod target;
mod token;
mod waiting;
mod worker;

/// What one thread makes another frees: the request by the writer, its answer by whoever asked. The
/// system's allocator takes a lock for each of these.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    match leasehold_agents::supervise::entry(std::env::args_os()) {
        Some(code) => code,
        None => cli::main(),
    }
}
