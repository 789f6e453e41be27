//! Real processes and real services, from outside.

mod backup;
mod camera;
mod cli;
mod completions;
mod control_plane;
mod demo;
mod doctor;
mod lessons_page;
mod logs;
mod manager;
mod metrics;
mod migrate_command;
mod openapi;
mod operator;
mod outbox;
mod poll;
mod proven_death;
mod replicas;
mod run;
mod run_faults;
mod run_network;
mod run_peers;
mod run_terminal;
mod schemathesis;
mod serve;
mod serve_crash;
mod serve_outage;
mod serve_tls;
mod sessions;
mod setup;
mod tour;

use leasehold_blackbox::cli_support;
