//! A private Redis server.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::{Child, Dir, Error, Program, port, wait};

/// How long a server may take to answer its first PING, also on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// How long it may take to end when asked to; it may have to write its data.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// How many ports are tried when other processes keep being faster.
const PORT_ATTEMPTS: usize = 5;

/// How a server is set up.
#[derive(Clone, Debug, Default)]
pub struct Options {
    persistent: bool,
    bus: bool,
    settings: Vec<(String, String)>,
}

impl Options {
    /// Keeps every write in an append-only file, synced before the answer; without it everything
    /// is lost when the server ends.
    pub fn persistent(mut self) -> Self {
        self.persistent = true;
        self
    }

    /// Adds a setting of `redis.conf`.
    pub fn set(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// Also keeps the port of the cluster bus free.
    pub(crate) fn with_bus(mut self) -> Self {
        self.bus = true;
        self
    }

    /// Starts a server set up like this.
    ///
    /// # Panics
    ///
    /// When it does not start; the message says why.
    pub async fn start(self) -> Redis {
        match self.try_start().await {
            Ok(redis) => redis,
            Err(error) => panic!("{error}"),
        }
    }

    /// As [`Options::start`], with the error returned.
    pub async fn try_start(self) -> Result<Redis, Error> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            let port = if self.bus {
                port::free_with_bus()
            } else {
                port::free()
            };
            let dir = Dir::try_new("redis")?;
            match launch(&self, &dir, port).await {
                Ok(child) => {
                    return Ok(Redis {
                        child: Some(child),
                        options: self,
                        port,
                        dir,
                    });
                }
                Err(error) if attempt < PORT_ATTEMPTS && port_was_taken(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// A Redis server on a free port of 127.0.0.1, with its data in a temporary folder. It ends on
/// drop.
#[derive(Debug)]
pub struct Redis {
    // Declared before the folder: fields are dropped in order, and the server must be gone first.
    child: Option<Child>,
    options: Options,
    port: u16,
    dir: Dir,
}

impl Redis {
    /// Starts a server that keeps nothing on disk.
    ///
    /// # Panics
    ///
    /// When it does not start; the message says why.
    pub async fn start() -> Self {
        Self::options().start().await
    }

    /// To start a server with other settings.
    pub fn options() -> Options {
        Options::default()
    }

    /// Its address for clients.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its socket address, for a proxy.
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// The folder of its data.
    pub fn dir(&self) -> &Dir {
        &self.dir
    }

    /// The running server's process.
    ///
    /// # Panics
    ///
    /// When the server is stopped.
    pub fn child(&mut self) -> &mut Child {
        self.child.as_mut().expect("the server runs")
    }

    /// Runs a command with `redis-cli` and returns what it printed, trimmed.
    ///
    /// # Panics
    ///
    /// When the server cannot be reached or answers with an error.
    pub async fn cli(&self, arguments: &[&str]) -> String {
        match cli(self.port, arguments).await {
            Ok(answer) => answer,
            Err(error) => panic!("{error}"),
        }
    }

    /// Ends the server gracefully: what is persistent is written. Does nothing when it is
    /// stopped already.
    ///
    /// # Panics
    ///
    /// When it does not end in time.
    pub async fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.sigcont();
            child.sigterm();
            child.wait(STOP_TIMEOUT).await;
        }
    }

    /// Ends the server without any warning. Does nothing when it is stopped already.
    pub fn kill9(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill9();
        }
    }

    /// Starts the server again, same port and same folder; stops it first when it runs.
    ///
    /// # Panics
    ///
    /// When it does not start.
    pub async fn restart(&mut self) {
        self.stop().await;
        // Another process may hold the port for a moment (a connection that ends); the port cannot
        // be changed, since clients know it.
        let mut last = None;
        for _ in 0..PORT_ATTEMPTS {
            match launch(&self.options, &self.dir, self.port).await {
                Ok(child) => {
                    self.child = Some(child);
                    return;
                }
                Err(error) => last = Some(error),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        if let Some(error) = last {
            panic!("{error}");
        }
    }

    /// Starts the server again on the same port, without any of its data: what happens when a
    /// cache without persistence is restarted, or its disk replaced.
    ///
    /// # Panics
    ///
    /// When it does not start.
    pub async fn restart_empty(&mut self) {
        self.kill9();
        if let Err(error) = empty(&self.dir) {
            panic!("{error}");
        }
        self.restart().await;
    }

    /// Freezes the server: connections stay open and nobody answers.
    ///
    /// # Panics
    ///
    /// When the server is stopped.
    pub fn pause(&self) {
        self.child.as_ref().expect("the server runs").sigstop();
    }

    /// Lets a frozen server go on.
    ///
    /// # Panics
    ///
    /// When the server is stopped.
    pub fn resume(&self) {
        self.child.as_ref().expect("the server runs").sigcont();
    }
}

/// Runs `redis-cli` against a port.
pub(crate) async fn cli(port: u16, arguments: &[&str]) -> Result<String, Error> {
    let answer = Program::new("redis-cli")
        .args(["-e", "-p", &port.to_string()])
        .args(arguments)
        .run()
        .await?;
    Ok(answer.trim_end().to_owned())
}

/// Whether somebody answers PING on a port.
pub(crate) async fn answers(port: u16) -> bool {
    let exchange = async {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        stream.write_all(b"PING\r\n").await?;
        let mut answer = [0; 5];
        stream.read_exact(&mut answer).await?;
        Ok::<_, std::io::Error>(answer == *b"+PONG")
    };
    exchange.await.unwrap_or(false)
}

/// Waits until a child answers PING; its end is an error.
pub(crate) async fn ready(child: &mut Child, port: u16) -> Result<(), Error> {
    let outcome = wait::within(START_TIMEOUT, async || {
        if !child.is_running() {
            return Some(false);
        }
        answers(port).await.then_some(true)
    })
    .await;
    match outcome {
        Some(true) if child.is_running() => Ok(()),
        Some(_) => {
            child.wait_within(STOP_TIMEOUT).await;
            Err(child.ended())
        }
        None => Err(Error::Timeout {
            what: "Redis to answer PING".into(),
            timeout: START_TIMEOUT,
            output: child.tail(),
        }),
    }
}

/// Whether a start failed only because somebody else listens on the port.
pub(crate) fn port_was_taken(error: &Error) -> bool {
    matches!(error, Error::Ended { output, .. } if output.contains("Address already in use"))
}

async fn launch(options: &Options, dir: &Dir, port: u16) -> Result<Child, Error> {
    let mut program = Program::new("redis-server")
        .args(["--port", &port.to_string()])
        .args(["--bind", "127.0.0.1"])
        .args(["--daemonize", "no"])
        .args(["--save", ""])
        .arg("--dir")
        .arg(dir.path());
    if options.persistent {
        program = program.args(["--appendonly", "yes", "--appendfsync", "always"]);
    }
    for (name, value) in &options.settings {
        program = program.arg(format!("--{name}")).arg(value);
    }
    let mut child = program.current_dir(dir).try_spawn()?;
    ready(&mut child, port).await?;
    Ok(child)
}

fn empty(dir: &Dir) -> Result<(), Error> {
    let entries = fs::read_dir(dir).map_err(Error::io("list the server's folder"))?;
    for entry in entries.flatten() {
        let path = entry.path();
        let removed = if path.is_dir() {
            fs::remove_dir_all(&path)
        } else {
            fs::remove_file(&path)
        };
        removed.map_err(Error::io(format!("remove {}", path.display())))?;
    }
    Ok(())
}
