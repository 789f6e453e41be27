//! A private etcd server.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::{Child, Dir, Error, Program, port, wait};

/// How long a server may take to say that it is healthy, also on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// How long it may take to end after it failed.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// How many pairs of ports are tried when other processes keep being faster.
const PORT_ATTEMPTS: usize = 5;
/// Room for a million leases; etcd's default of 2 GB is little for that.
const QUOTA_BYTES: &str = "8589934592";

/// An etcd cluster of one on a free port of 127.0.0.1, with its data in a temporary folder. It ends on
/// drop.
#[derive(Debug)]
pub struct Etcd {
    // Declared before the folder: fields are dropped in order, and the server must be gone first.
    child: Child,
    port: u16,
    _dir: Dir,
}

impl Etcd {
    /// Starts a server whose writes reach the disk before they are answered, as etcd's always do.
    ///
    /// # Panics
    ///
    /// When it does not start; the message says why.
    pub async fn start() -> Self {
        match Self::try_start().await {
            Ok(etcd) => etcd,
            Err(error) => panic!("{error}"),
        }
    }

    /// As [`Etcd::start`], with the error returned.
    pub async fn try_start() -> Result<Self, Error> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            let (port, peer_port) = (port::free(), port::free());
            let dir = Dir::try_new("etcd")?;
            match launch(&dir, port, peer_port).await {
                Ok(child) => {
                    return Ok(Self {
                        child,
                        port,
                        _dir: dir,
                    });
                }
                Err(error) if attempt < PORT_ATTEMPTS && port_was_taken(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Its socket address for clients: gRPC, and JSON below `/v3/`.
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// The running server's process.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }
}

fn port_was_taken(error: &Error) -> bool {
    matches!(error, Error::Ended { output, .. } if output.contains("address already in use"))
}

async fn launch(dir: &Dir, port: u16, peer_port: u16) -> Result<Child, Error> {
    let (clients, peers) = (
        format!("http://127.0.0.1:{port}"),
        format!("http://127.0.0.1:{peer_port}"),
    );
    let mut child = Program::new("etcd")
        .args(["--name", "one", "--logger", "zap", "--log-level", "warn"])
        .args(["--quota-backend-bytes", QUOTA_BYTES])
        .args(["--listen-client-urls", &clients])
        .args(["--advertise-client-urls", &clients])
        .args(["--listen-peer-urls", &peers])
        .args(["--initial-advertise-peer-urls", &peers])
        .args(["--initial-cluster", &format!("one={peers}")])
        .arg("--data-dir")
        .arg(dir.join("data"))
        .current_dir(dir)
        .try_spawn()?;
    let outcome = wait::within(START_TIMEOUT, async || {
        if !child.is_running() {
            return Some(false);
        }
        is_healthy(port).await.then_some(true)
    })
    .await;
    match outcome {
        Some(true) if child.is_running() => Ok(child),
        Some(_) => {
            child.wait_within(STOP_TIMEOUT).await;
            Err(child.ended())
        }
        None => Err(Error::Timeout {
            what: "etcd to be healthy".into(),
            timeout: START_TIMEOUT,
            output: child.tail(),
        }),
    }
}

async fn is_healthy(port: u16) -> bool {
    let exchange = async {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        stream
            .write_all(b"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n")
            .await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(answer.contains(r#""health":"true""#))
    };
    exchange.await.unwrap_or(false)
}
