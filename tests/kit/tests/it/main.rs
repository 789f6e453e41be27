//! The kit itself: services, faults, processes and what is left behind.

mod basics;
mod length;
mod netns;
mod postgres;
mod process;
mod proxy;
mod rabbitmq;
mod redis;
