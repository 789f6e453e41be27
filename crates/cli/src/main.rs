//! The binary `leasehold`.

mod cli;
mod completions;
mod config;
mod connect;
mod data_dir;
mod doctor;
mod exit;
mod explain;
mod holder;
mod lease;
mod logging;
mod man;
mod migrate;
mod nodes;
mod plan;
mod poll;
mod print;
mod run;
mod serve;
mod sessions;
mod settings;
mod token;
mod worker;

fn main() -> std::process::ExitCode {
    match leasehold_agents::supervise::entry(std::env::args_os()) {
        Some(code) => code,
        None => cli::main(),
    }
}
