//! A private RabbitMQ broker.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::{Child, Dir, Error, Program, port, wait};

/// Debian's wrapper in `/usr/sbin` insists on its own user and folders; the script behind does not.
const SERVER: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";
/// Ten seconds are usual on two cores; a busy machine takes several times that.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// How long an orderly stop may take.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);
/// How long Erlang's port mapper may take to listen.
const MAPPER_TIMEOUT: Duration = Duration::from_secs(20);
/// How many sets of ports are tried when other processes keep being faster.
const PORT_ATTEMPTS: usize = 3;

/// A RabbitMQ broker on a free port of 127.0.0.1, with its data in a temporary folder and the user
/// `guest`. It ends on drop, its port mapper with it.
#[derive(Debug)]
pub struct RabbitMq {
    broker: Option<Child>,
    // A child of ours, because the broker would otherwise start one that outlives everybody.
    _mapper: Child,
    ports: Ports,
    dir: Dir,
}

#[derive(Clone, Copy, Debug)]
struct Ports {
    amqp: u16,
    mapper: u16,
    distribution: u16,
}

impl RabbitMq {
    /// Starts a broker; this takes about ten seconds.
    ///
    /// # Panics
    ///
    /// When it does not start; the message says why.
    pub async fn start() -> Self {
        match Self::try_start().await {
            Ok(broker) => broker,
            Err(error) => panic!("{error}"),
        }
    }

    /// As [`RabbitMq::start`], with the error returned.
    pub async fn try_start() -> Result<Self, Error> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            let ports = Ports {
                amqp: port::free(),
                mapper: port::free(),
                distribution: port::free(),
            };
            let dir = Dir::try_new("rabbitmq")?;
            let outcome = async {
                let mapper = launch_mapper(&dir, ports.mapper).await?;
                let broker = launch_broker(&dir, ports).await?;
                Ok((mapper, broker))
            };
            match outcome.await {
                Ok((mapper, broker)) => {
                    return Ok(Self {
                        broker: Some(broker),
                        _mapper: mapper,
                        ports,
                        dir,
                    });
                }
                Err(Error::Ended { output, .. })
                    if attempt < PORT_ATTEMPTS && output.contains("eaddrinuse") => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Its address for clients.
    pub fn url(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}/%2f", self.ports.amqp)
    }

    /// Its socket address, for a proxy.
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.ports.amqp).into()
    }

    /// The folder of its data.
    pub fn dir(&self) -> &Dir {
        &self.dir
    }

    /// Ends the broker gracefully; durable queues keep their persistent messages. Does nothing
    /// when it is stopped already.
    ///
    /// # Panics
    ///
    /// When it does not end in time.
    pub async fn stop(&mut self) {
        if let Some(mut broker) = self.broker.take() {
            broker.sigcont();
            broker.sigterm();
            broker.wait(STOP_TIMEOUT).await;
        }
    }

    /// Ends the broker without any warning. Does nothing when it is stopped already.
    pub fn kill9(&mut self) {
        if let Some(mut broker) = self.broker.take() {
            broker.kill9();
        }
    }

    /// Starts the broker again, same port and same data; stops it first when it runs.
    ///
    /// # Panics
    ///
    /// When it does not start.
    pub async fn restart(&mut self) {
        self.stop().await;
        match launch_broker(&self.dir, self.ports).await {
            Ok(broker) => self.broker = Some(broker),
            Err(error) => panic!("{error}"),
        }
    }

    /// Freezes the broker: connections stay open and nobody answers.
    ///
    /// # Panics
    ///
    /// When the broker is stopped.
    pub fn pause(&self) {
        self.broker.as_ref().expect("the broker runs").sigstop();
    }

    /// Lets a frozen broker go on.
    ///
    /// # Panics
    ///
    /// When the broker is stopped.
    pub fn resume(&self) {
        self.broker.as_ref().expect("the broker runs").sigcont();
    }
}

async fn launch_mapper(dir: &Dir, port: u16) -> Result<Child, Error> {
    let mut mapper = Program::new("epmd")
        .args(["-port", &port.to_string(), "-address", "127.0.0.1"])
        .current_dir(dir)
        .try_spawn()?;
    let listens = wait::within(MAPPER_TIMEOUT, async || {
        if !mapper.is_running() {
            return Some(false);
        }
        let connected = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await;
        connected.is_ok().then_some(true)
    })
    .await;
    match listens {
        Some(true) => Ok(mapper),
        _ => Err(mapper.ended()),
    }
}

async fn launch_broker(dir: &Dir, ports: Ports) -> Result<Child, Error> {
    let home = dir.make("home")?;
    let settings = dir.write(
        "rabbitmq.conf",
        &format!(
            "listeners.tcp.1 = 127.0.0.1:{}\n\
             log.console = true\n\
             log.console.level = info\n\
             log.file = false\n",
            ports.amqp
        ),
    )?;
    let plugins = dir.write("enabled_plugins", "[].\n")?;
    let overrides = dir.write("rabbitmq-env.conf", "")?;
    let mut broker = Program::new(SERVER)
        .env("HOME", &home)
        .env("RABBITMQ_NODENAME", format!("leasehold{}@localhost", ports.amqp))
        .env("RABBITMQ_MNESIA_BASE", dir.make("mnesia")?)
        .env("RABBITMQ_LOG_BASE", dir.make("log")?)
        .env("RABBITMQ_PID_FILE", dir.join("pid"))
        .env("RABBITMQ_CONFIG_FILE", settings)
        .env("RABBITMQ_CONF_ENV_FILE", overrides)
        .env("RABBITMQ_ENABLED_PLUGINS_FILE", plugins)
        .env("RABBITMQ_DIST_PORT", ports.distribution.to_string())
        .env("ERL_EPMD_PORT", ports.mapper.to_string())
        .env("ERL_EPMD_ADDRESS", "127.0.0.1")
        .env("ERL_CRASH_DUMP_SECONDS", "0")
        // Idle schedulers that spin take the processor away from what is tested.
        .env(
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
            "-kernel inet_dist_use_interface {127,0,0,1} +sbwt none +sbwtdcpu none +sbwtdio none",
        )
        .current_dir(dir)
        .try_spawn()?;
    let outcome = wait::within(START_TIMEOUT, async || {
        if !broker.is_running() {
            return Some(false);
        }
        speaks_amqp(ports.amqp).await.then_some(true)
    })
    .await;
    match outcome {
        Some(true) => Ok(broker),
        Some(false) => {
            broker.wait_within(Duration::from_secs(1)).await;
            Err(broker.ended())
        }
        None => Err(Error::Timeout {
            what: "RabbitMQ to greet".into(),
            timeout: START_TIMEOUT,
            output: broker.tail(),
        }),
    }
}

/// Whether a broker answers a protocol header with a method frame: the port is open some time
/// before that.
async fn speaks_amqp(port: u16) -> bool {
    const METHOD_FRAME: u8 = 1;
    let exchange = async {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        stream.write_all(b"AMQP\x00\x00\x09\x01").await?;
        stream.read_u8().await
    };
    exchange.await.is_ok_and(|first| first == METHOD_FRAME)
}
