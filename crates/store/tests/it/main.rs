//! Every store: the suite of rules, and what each store promises beyond it.

mod conformance_broken;
mod conformance_disk;
mod conformance_memory;
mod conformance_system_clock;
mod embedded_crash;
mod embedded_damage;
mod embedded_index;
mod embedded_kit;
mod embedded_memory;
mod embedded_restart;
mod history_seals;
mod migrate;
mod postgres_batches;
mod postgres_conformance;
mod postgres_faults;
mod postgres_oracle;
mod postgres_replicas;
mod postgres_startup;
mod redis_batches;
mod redis_cluster;
mod redis_conformance;
mod redis_keys;
mod redis_replicas;
mod seal_kit;
mod storm;
mod tls;
