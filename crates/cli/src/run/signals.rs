//! Signals: those that are passed on to the program, and the one that continues this process.

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
    /// Whether a hang-up is ignored, as under `nohup`.
    pub ignores_hang_up: bool,
}

impl Signals {
    /// From here on they no longer end this process. A hang-up that whoever started it ignores stays ignored.
    pub fn listen() -> Result<Self, Failure> {
        let (sender, received) = mpsc::channel(WAITING);
        let ignores_hang_up = is_ignored(Signal::SIGHUP);
        for kind in PASSED_ON.into_iter().chain([Signal::SIGCONT]) {
            if kind == Signal::SIGHUP && ignores_hang_up {
                continue;
            }
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
        Ok(Self {
            received,
            ignores_hang_up,
        })
    }

    /// The next one.
    pub async fn next(&mut self) -> i32 {
        match self.received.recv().await {
            Some(number) => number,
            None => std::future::pending().await,
        }
    }

    /// The next one that would be passed on.
    pub async fn next_to_pass_on(&mut self) -> i32 {
        loop {
            let number = self.next().await;
            if number != Signal::SIGCONT as i32 {
                return number;
            }
        }
    }
}

/// Requests to stop this process (`kill -TSTP`; Ctrl-Z goes to the program). While nobody listens, it stops as
/// any other.
pub struct Stops(Option<tokio::signal::unix::Signal>);

impl Stops {
    /// From here on it is not stopped by them.
    pub fn listen() -> Self {
        let kind = SignalKind::from_raw(Signal::SIGTSTP as i32);
        Self(
            (!is_ignored(Signal::SIGTSTP))
                .then(|| signal(kind).ok())
                .flatten(),
        )
    }

    /// The next one.
    pub async fn next(&mut self) {
        let received = match &mut self.0 {
            Some(stream) => stream.recv().await,
            None => None,
        };
        if received.is_none() {
            std::future::pending::<()>().await;
        }
    }
}

/// Whether this process was started with the signal ignored.
fn is_ignored(signal: Signal) -> bool {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else {
        return false;
    };
    status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & (1 << (signal as i32 - 1)) != 0)
}
