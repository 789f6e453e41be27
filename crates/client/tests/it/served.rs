//! A real server on a loopback socket, over the store of a [`World`].

use std::sync::Arc;

use leasehold_client::{Client, HolderStream, Options, Remote, stream::Link};
use leasehold_server::{Server, auth};
use tokio::{sync::oneshot, task::JoinHandle};

use crate::world::World;

pub const TOKEN: &str = "test-token-of-the-client";

pub struct Served {
    pub url: String,
    pub address: std::net::SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    done: JoinHandle<()>,
}

impl Served {
    pub async fn start(world: &World) -> Self {
        Self::at(world, ([127, 0, 0, 1], 0).into()).await
    }

    pub async fn at(world: &World, listen: std::net::SocketAddr) -> Self {
        let options = leasehold_server::Options {
            listen,
            ..leasehold_server::Options::default()
        };
        Self::with(world, options).await
    }

    /// That refuses every stream.
    pub async fn without_room_for_holder_streams(world: &World) -> Self {
        let mut options = leasehold_server::Options {
            listen: ([127, 0, 0, 1], 0).into(),
            ..leasehold_server::Options::default()
        };
        options.limits.streams = 0;
        Self::with(world, options).await
    }

    /// With a certificate for development, kept in `dir`.
    pub async fn encrypted(world: &World, dir: &std::path::Path) -> Self {
        let options = leasehold_server::Options {
            listen: ([127, 0, 0, 1], 0).into(),
            data_dir: Some(dir.to_owned()),
            tls: Some(leasehold_server::TlsOptions {
                self_signed: true,
                ..leasehold_server::TlsOptions::default()
            }),
            ..leasehold_server::Options::default()
        };
        Self::with(world, options).await
    }

    async fn with(world: &World, options: leasehold_server::Options) -> Self {
        let tokens = format!(r#"[{{"token":"{TOKEN}","scopes":["leases:admin"]}}]"#);
        let options = leasehold_server::Options {
            tokens: auth::parse_tokens("the test", &tokens).unwrap(),
            ..options
        };
        let server = Server::builder()
            .options(options)
            .authority(world.store.clone())
            .clock(Arc::new(world.clock.clone()))
            .bind()
            .await
            .unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let (url, address) = (server.url(), server.local_addr());
        let done = tokio::spawn(async move {
            let stopped = async {
                let _ = stopped.await;
            };
            server.run(stopped).await.unwrap();
        });
        Self {
            url,
            address,
            stop: Some(stop),
            done,
        }
    }

    pub fn client(&self) -> Client {
        client(&self.url)
    }

    pub async fn remote(&self) -> Remote {
        Remote::connect(self.client()).await.unwrap()
    }

    /// Gracefully.
    pub async fn stop(mut self) {
        drop(self.stop.take());
        self.done.await.unwrap();
    }
}

pub fn client(url: &str) -> Client {
    Client::new(Options::new(url).token(TOKEN)).unwrap()
}

pub async fn up(stream: &HolderStream) {
    let mut link = stream.link();
    let waiting = link.wait_for(|link| *link != Link::Down);
    let waited = tokio::time::timeout(crate::world::PATIENCE, waiting).await;
    assert!(waited.is_ok(), "never up: {:?}", stream.last_failure());
}
