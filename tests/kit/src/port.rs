//! Free loopback ports.
//!
//! They are taken from below the range that the kernel uses for outgoing connections: a service
//! that is restarted must find its port free again, and a client's connection must not have
//! borrowed it meanwhile. A port that was handed out is kept by a lock until this process ends, so
//! that no other test gets it while its service is not up yet, or down. Whoever starts a service
//! still has to expect that a program of somebody else was faster, and try again with another port.

use std::collections::BTreeMap;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// First port that is handed out.
const LOWEST: u16 = 10_000;
/// How many there are; with [`BUS_OFFSET`] added they still end below 32768, where Linux begins to
/// number outgoing connections.
const COUNT: u16 = 10_000;
/// Distance between a Redis cluster node's port and the port of its bus.
pub(crate) const BUS_OFFSET: u16 = 10_000;

/// Ports given away by this process, and the locks that tell other tests.
static TAKEN: Mutex<BTreeMap<u16, File>> = Mutex::new(BTreeMap::new());

/// A port of 127.0.0.1 on which nobody listens, and that no test process that still runs was given.
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
    let locks = locks();
    // Starting at a random place keeps processes that run side by side apart.
    let start = (RandomState::new().hash_one(std::process::id()) % u64::from(COUNT)) as u16;
    for step in 0..COUNT {
        let port = LOWEST + (start + step) % COUNT;
        if taken.contains_key(&port) {
            continue;
        }
        let lock = File::create(locks.join(port.to_string())).expect("a lock for the port");
        if lock.try_lock().is_ok() && usable(port) {
            taken.insert(port, lock);
            return port;
        }
    }
    panic!("no free port between {LOWEST} and {}", LOWEST + COUNT);
}

/// The folder of the locks, one for each user, since users cannot write each other's files.
fn locks() -> PathBuf {
    let user = nix::unistd::getuid();
    let folder = std::env::temp_dir().join(format!("leasehold-ports-{user}"));
    std::fs::create_dir_all(&folder).expect("a folder for the locks of ports");
    folder
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}
