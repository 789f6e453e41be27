//! Who is compared: each file starts one server, and has callers that do its work.

pub mod echo;
pub mod etcd;
pub mod holder;
pub mod http;
pub mod leasehold_http;
pub mod leasehold_store;
pub mod leasehold_stream;
pub mod lock;
pub mod postgres;
pub mod redis;
pub mod wire;

use std::time::Duration;

/// How many keys the cycles of all callers use.
pub const KEYS: usize = 100_000;
/// The ttl of what is acquired and released.
pub const TTL_MS: u64 = 60_000;
/// The ttl of what is held for the length of a measurement.
pub const HELD_SECONDS: u64 = 3_600;
/// How long a server may take to start or to answer.
pub const SOON: Duration = Duration::from_secs(60);

/// The keys of one caller, in an order that visits all of its share and looks random.
pub struct Keys {
    caller: usize,
    callers: usize,
    turn: usize,
}

impl Keys {
    pub fn new(caller: usize, callers: usize) -> Self {
        Self {
            caller,
            callers,
            turn: 0,
        }
    }

    /// The number of the next key: of no other caller.
    pub fn next(&mut self) -> usize {
        // A prime that divides no share.
        const STEP: usize = 7_919;
        let share = (KEYS / self.callers).max(1);
        self.turn += 1;
        self.caller + self.callers * (self.turn * STEP % share)
    }
}
