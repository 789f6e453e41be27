//! One thread that starts every child.
//!
//! The kernel sends the parent-death signal when the *thread* that started a child ends, not when
//! its process does. Test threads and blocking-pool threads come and go; this one stays.

use std::io;
use std::process::{Child, Command};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;

type Request = (Command, SyncSender<io::Result<Child>>);

static REQUESTS: OnceLock<Mutex<SyncSender<Request>>> = OnceLock::new();

/// Starts `command` from the thread that lives as long as the process.
pub(crate) fn spawn(command: Command) -> io::Result<Child> {
    let gone = || io::Error::other("the spawner thread is gone");
    let (answer, answered) = sync_channel(1);
    REQUESTS
        .get_or_init(start)
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .send((command, answer))
        .map_err(|_| gone())?;
    answered.recv().map_err(|_| gone())?
}

fn start() -> Mutex<SyncSender<Request>> {
    let (requests, received) = sync_channel::<Request>(1);
    thread::Builder::new()
        .name("spawner".into())
        .spawn(move || {
            for (mut command, answer) in received {
                // A caller that went away has nobody to hand the child to.
                if let Err(unclaimed) = answer.send(command.spawn())
                    && let Ok(mut child) = unclaimed.0
                {
                    let _ = child.kill();
                    let _ = child.wait();
                }
            }
        })
        .expect("a thread can be started");
    Mutex::new(requests)
}
