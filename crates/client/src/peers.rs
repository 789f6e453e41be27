//! Holders that ask each other whether the authority can be reached (L13, `continue`).
//!
//! A connection is the question, and one line, `yes` or `no`, is the answer; then it is closed. Nobody
//! proves who it is, and nobody has to: a false `yes` makes the asker stop at its deadline, as every
//! holder does that asks nobody, and a false `no` says no more than silence.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use lease::{Authority, Invalid};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::timeout,
};

use crate::keeper::Peers;

const YES: &[u8] = b"yes\n";
const NO: &[u8] = b"no\n";
/// How long the authority may take to answer, and an asker to read: askers wait less than that.
const LIMIT: Duration = Duration::from_secs(1);
/// How many are answered concurrently; each is a call to the authority.
const ASKERS: usize = 64;
/// How many others one holder may know: all are asked concurrently.
const MAX_PEERS: usize = 256;

/// The other holders that this one knows, by their addresses.
#[derive(Clone, Debug)]
pub struct PeerList {
    addresses: Vec<String>,
}

impl PeerList {
    /// Addresses are `HOST:PORT`; names are looked up when they are asked.
    pub fn new(addresses: Vec<String>) -> Result<Self, Invalid> {
        let fits = |address: &String| {
            let parts = address.rsplit_once(':');
            parts.is_some_and(|(host, port)| {
                !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)
            })
        };
        if addresses.len() > MAX_PEERS || !addresses.iter().all(fits) {
            return Err(Invalid::new("peers", "at most 256 addresses HOST:PORT"));
        }
        Ok(Self { addresses })
    }
}

impl Peers for PeerList {
    fn any_reaches_authority(&self) -> Pin<Box<dyn Future<Output = bool> + Send + '_>> {
        Box::pin(async move {
            let mut answers: FuturesUnordered<_> =
                self.addresses.iter().map(|address| ask(address)).collect();
            while let Some(reaches) = answers.next().await {
                if reaches {
                    return true;
                }
            }
            false
        })
    }
}

/// Whoever cannot be asked, or says anything else, does not say yes.
async fn ask(address: &str) -> bool {
    let answer = async {
        let stream = TcpStream::connect(address).await?;
        let mut said = Vec::with_capacity(YES.len());
        stream.take(YES.len() as u64).read_to_end(&mut said).await?;
        std::io::Result::Ok(said == YES)
    };
    matches!(timeout(LIMIT, answer).await, Ok(Ok(true)))
}

/// Answers others whether the authority can be reached from here, until it is dropped.
pub async fn answer_peers(listener: TcpListener, authority: Arc<dyn Authority>) {
    let permits = Arc::new(Semaphore::new(ASKERS));
    loop {
        // Never closed.
        let Ok(permit) = permits.clone().acquire_owned().await else {
            return;
        };
        let Ok((mut stream, _)) = listener.accept().await else {
            // No descriptor left, for instance: it passes.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let authority = authority.clone();
        tokio::spawn(async move {
            let reached = timeout(LIMIT, authority.now()).await;
            let line = match reached {
                Ok(Ok(_)) => YES,
                Ok(Err(_)) | Err(_) => NO,
            };
            // An asker that is gone needs no answer.
            let _ = timeout(LIMIT, stream.write_all(line)).await;
            drop(permit);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_checked() {
        let list = |addresses: &[&str]| {
            PeerList::new(addresses.iter().map(|it| (*it).to_owned()).collect())
        };
        assert!(list(&[]).is_ok());
        assert!(list(&["host:1", "[::1]:7421", "192.0.2.1:65535"]).is_ok());
        for wrong in ["host", ":1", "host:0", "host:65536", "host:x"] {
            assert!(list(&[wrong]).is_err(), "{wrong}");
        }
        assert!(PeerList::new(vec!["a:1".to_owned(); 257]).is_err());
    }

    #[tokio::test]
    async fn only_a_plain_yes_is_a_yes() {
        for (line, expected) in [
            (&b"yes\n"[..], true),
            (b"no\n", false),
            (b"yes", false),
            (b"", false),
            (b"HTTP/1.1 200 OK\r\n", false),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap().to_string();
            tokio::spawn(async move {
                let (mut stream, _) = listener.accept().await.unwrap();
                stream.write_all(line).await.unwrap();
            });
            // One that nobody listens at does not hinder the others.
            let peers = PeerList::new(vec!["127.0.0.1:1".to_owned(), address]).unwrap();
            assert_eq!(peers.any_reaches_authority().await, expected, "{line:?}");
        }
    }
}
