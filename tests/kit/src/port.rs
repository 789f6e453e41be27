//! Free loopback ports.
//!
//! They are taken from below the range that the kernel uses for outgoing connections: a service
//! that is restarted must find its port free again, and a client's connection must not have
//! borrowed it meanwhile. Whoever starts a service still has to expect that another process was
//! faster, and try again with another port.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Mutex, PoisonError};

/// First port that is handed out.
const LOWEST: u16 = 10_000;
/// How many there are; with [`BUS_OFFSET`] added they still end below 32768, where Linux begins to
/// number outgoing connections.
const COUNT: u16 = 10_000;
/// Distance between a Redis cluster node's port and the port of its bus.
pub(crate) const BUS_OFFSET: u16 = 10_000;

/// Ports given away by this process: two services of one test must not get the same.
static TAKEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// A port of 127.0.0.1 on which nobody listens, and that this process never handed out before.
///
/// # Panics
///
/// When all ports are in use.
pub fn free() -> u16 {
    find(is_free)
}

/// A free port whose neighbour at [`BUS_OFFSET`] is free too.
pub(crate) fn free_with_bus() -> u16 {
    find(|port| is_free(port) && is_free(port + BUS_OFFSET))
}

fn find(usable: impl Fn(u16) -> bool) -> u16 {
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    // Starting at a random place keeps processes that run side by side apart.
    let start = (RandomState::new().hash_one(std::process::id()) % u64::from(COUNT)) as u16;
    for step in 0..COUNT {
        let port = LOWEST + (start + step) % COUNT;
        if !taken.contains(&port) && usable(port) {
            taken.insert(port);
            return port;
        }
    }
    panic!("no free port between {LOWEST} and {}", LOWEST + COUNT);
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}
