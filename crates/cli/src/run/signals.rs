//! Signals that are passed on to the program.

use nix::sys::signal::Signal;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
};

use crate::exit::{Exit, Failure};

/// Everything that people and service managers send to make a program do something.
const PASSED_ON: [Signal; 6] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];
/// Signals of one kind merge anyway.
const WAITING: usize = 16;

/// The signals that arrived.
pub struct Signals {
    received: mpsc::Receiver<i32>,
}

impl Signals {
    /// From here on they no longer end this process.
    pub fn listen() -> Result<Self, Failure> {
        let (sender, received) = mpsc::channel(WAITING);
        for kind in PASSED_ON {
            let number = kind as i32;
            let mut stream = signal(SignalKind::from_raw(number)).map_err(|error| {
                Failure::new(Exit::Failed, format!("cannot listen for {kind}: {error}"))
            })?;
            let sender = sender.clone();
            tokio::spawn(async move {
                while stream.recv().await.is_some() {
                    if sender.send(number).await.is_err() {
                        return;
                    }
                }
            });
        }
        Ok(Self { received })
    }

    /// The next one.
    pub async fn next(&mut self) -> i32 {
        match self.received.recv().await {
            Some(number) => number,
            None => std::future::pending().await,
        }
    }
}
