//! An authority with a bad network in front of it.

use std::{
    future::pending,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use lease::{
    Answer, Authority, Capabilities, Clock, Command, Error, Outcome, Query, Renewals, View, Watch,
    Watching,
};
use leasehold_clock::Manual;

/// What happens to a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Network {
    /// It goes through.
    Fine,
    /// It does not get there.
    Refused,
    /// It gets there, and the answer is lost.
    AnswerLost,
    /// It does not get there, and nobody says so.
    Hangs,
    /// It gets there, and no answer ever comes.
    HangsAfter,
    /// It takes this many milliseconds to get there.
    Slow(u64),
    /// It gets there, and the answer takes this many milliseconds.
    Late(u64),
}

/// Wraps an authority.
pub struct Faulty {
    inner: Arc<dyn Authority>,
    clock: Manual,
    network: Mutex<Network>,
    pub renewals: AtomicUsize,
    pub renewed_leases: AtomicUsize,
    pub releases: AtomicUsize,
    pub acquires: AtomicUsize,
}

impl Faulty {
    pub fn new(inner: Arc<dyn Authority>, clock: Manual) -> Arc<Self> {
        Arc::new(Self {
            inner,
            clock,
            network: Mutex::new(Network::Fine),
            renewals: AtomicUsize::default(),
            renewed_leases: AtomicUsize::default(),
            releases: AtomicUsize::default(),
            acquires: AtomicUsize::default(),
        })
    }

    pub fn set(&self, network: Network) {
        *self.network.lock().unwrap() = network;
    }

    pub fn renewals(&self) -> usize {
        self.renewals.load(Ordering::SeqCst)
    }

    pub fn releases(&self) -> usize {
        self.releases.load(Ordering::SeqCst)
    }

    async fn through<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let network = *self.network.lock().unwrap();
        match network {
            Network::Fine => call.await,
            Network::Refused => Err(Error::Unavailable("refused".into())),
            Network::AnswerLost => {
                let _ = call.await;
                Err(Error::Unknown("the answer was lost".into()))
            }
            Network::Hangs => pending().await,
            Network::HangsAfter => {
                let _ = call.await;
                pending().await
            }
            Network::Slow(millis) => {
                let at = self.clock.boot().plus(millis);
                self.clock.sleep_until(at).await;
                call.await
            }
            Network::Late(millis) => {
                let answer = call.await;
                let at = self.clock.boot().plus(millis);
                self.clock.sleep_until(at).await;
                answer
            }
        }
    }
}

/// Calls that the store has not answered yet and will without anybody's doing.
static ON_THEIR_WAY: AtomicUsize = AtomicUsize::new(0);

/// How many calls the store has not answered yet. Those that wait for a key do not count.
pub fn calls_on_their_way() -> usize {
    ON_THEIR_WAY.load(Ordering::SeqCst)
}

async fn on_its_way<T>(call: impl Future<Output = T>) -> T {
    struct OnItsWay;
    impl Drop for OnItsWay {
        fn drop(&mut self) {
            ON_THEIR_WAY.fetch_sub(1, Ordering::SeqCst);
        }
    }
    ON_THEIR_WAY.fetch_add(1, Ordering::SeqCst);
    let _counted = OnItsWay;
    call.await
}

impl Authority for Faulty {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn decide(&self, command: Command) -> Answer<'_, Outcome> {
        let may_wait = matches!(&command, Command::Acquire(request) if request.wait_ms > 0);
        match &command {
            Command::Acquire(_) => {
                self.acquires.fetch_add(1, Ordering::SeqCst);
            }
            Command::Release(_) => {
                self.releases.fetch_add(1, Ordering::SeqCst);
            }
            Command::Renew(request) => {
                self.renewals.fetch_add(1, Ordering::SeqCst);
                if let Renewals::These(leases) = &request.leases {
                    self.renewed_leases.store(leases.len(), Ordering::SeqCst);
                }
            }
            _ => {}
        }
        let call = self.inner.decide(command);
        if may_wait {
            return Box::pin(self.through(call));
        }
        Box::pin(self.through(on_its_way(call)))
    }

    fn look(&self, query: Query) -> Answer<'_, View> {
        Box::pin(self.through(self.inner.look(query)))
    }

    fn watch(&self, watching: Watching) -> Answer<'_, Watch> {
        Box::pin(self.through(self.inner.watch(watching)))
    }
}
