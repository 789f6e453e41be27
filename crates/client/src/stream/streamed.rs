//! An authority whose renewals take the holder's stream while it is up.

use lease::{
    Answer, Authority, Capabilities, Command, Error, Outcome, Query, View, Watch, Watching,
};

use super::HolderStream;
use crate::Remote;

/// A server as an authority, with one holder's stream as the fast path: its renewals take the stream
/// while it is up, and everything else, or everything while it is down, takes plain calls.
#[derive(Clone, Debug)]
pub struct Streamed {
    remote: Remote,
    stream: HolderStream,
}

impl Streamed {
    /// Both must lead to the same server.
    pub fn new(remote: Remote, stream: HolderStream) -> Self {
        Self { remote, stream }
    }

    /// The stream.
    pub fn stream(&self) -> &HolderStream {
        &self.stream
    }
}

impl Authority for Streamed {
    fn decide(&self, command: Command) -> Answer<'_, Outcome> {
        let Command::Renew(request) = command else {
            return self.remote.decide(command);
        };
        Box::pin(async move {
            match self.stream.renew(&request).await {
                // Nothing was sent, so the other way is free.
                Err(Error::Unavailable(_)) => self.remote.decide(Command::Renew(request)).await,
                renewed => renewed.map(Outcome::Renewed),
            }
        })
    }

    fn look(&self, query: Query) -> Answer<'_, View> {
        self.remote.look(query)
    }

    fn watch(&self, watching: Watching) -> Answer<'_, Watch> {
        self.remote.watch(watching)
    }

    fn capabilities(&self) -> Capabilities {
        self.remote.capabilities()
    }
}
