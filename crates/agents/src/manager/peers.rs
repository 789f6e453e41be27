//! The other managers, asked whether they reach the control plane before cameras go on without it (L13,
//! `continue`): one *yes* means that this manager is the one cut off.

use std::{
    collections::BTreeSet,
    future::Future,
    pin::Pin,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use http::{Method, StatusCode};
use leasehold_client::keeper::Peers;

use super::link::Link;

/// How long one of them may take.
const LIMIT: Duration = Duration::from_secs(1);
/// How many are asked: all of them concurrently.
const MAX_PEERS: usize = 256;

#[derive(Default)]
struct Known {
    configured: Vec<String>,
    discovered: BTreeSet<String>,
}

pub(super) struct PeerManagers {
    link: Link,
    known: Mutex<Known>,
}

impl PeerManagers {
    pub fn new(link: Link) -> Self {
        Self {
            link,
            known: Mutex::default(),
        }
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those that the settings name.
    pub fn configured(&self, urls: Vec<String>) {
        self.known().configured = urls;
    }

    /// Those that the control plane named last.
    pub fn discovered(&self, urls: impl Iterator<Item = String>) {
        self.known().discovered = urls.take(MAX_PEERS).collect();
    }

    async fn ask(&self, url: String) -> bool {
        let url = format!("{}/reachable", url.trim_end_matches('/'));
        let answer = self.link.call(Method::GET, &url, None, LIMIT).await;
        matches!(answer, Ok((StatusCode::OK, _)))
    }
}

impl Peers for PeerManagers {
    fn any_reaches_authority(&self) -> Pin<Box<dyn Future<Output = bool> + Send + '_>> {
        let urls: BTreeSet<String> = {
            let known = self.known();
            let all = known.configured.iter().chain(&known.discovered);
            all.take(MAX_PEERS).cloned().collect()
        };
        Box::pin(async move {
            let mut answers: FuturesUnordered<_> =
                urls.into_iter().map(|url| self.ask(url)).collect();
            while let Some(reaches) = answers.next().await {
                if reaches {
                    tracing::warn!(
                        "another manager reaches the control plane: this one is cut off"
                    );
                    return true;
                }
            }
            false
        })
    }
}
