//! Two network namespaces with a cable between them, which can be cut.
//!
//! A namespace has no name and no file: it exists as long as the process that holds it open, and
//! that process dies with the test. So nothing can be left behind.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use crate::{Child, Error, Program, wait};

/// Documentation range: no real network uses it.
const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)];
/// Locally administered, fixed, so that neighbours need not be discovered.
const HARDWARE: [&str; 2] = ["02:00:00:00:00:01", "02:00:00:00:00:02"];
/// Nobody has this one: frames to it are received and ignored.
const NOBODY: &str = "02:00:00:00:00:ff";
const LINKS: [&str; 2] = ["lease-a", "lease-b"];
/// How long the kernel may take to make a namespace.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// A network namespace, alive as long as this value.
#[derive(Debug)]
pub struct Namespace {
    holder: Child,
    address: Ipv4Addr,
}

impl Namespace {
    /// Its address on the cable.
    pub fn address(&self) -> IpAddr {
        self.address.into()
    }

    /// A program that will run inside of it.
    pub fn program(&self, path: &str) -> Program {
        Program::new(path).in_namespace(self)
    }

    /// The file through which it can be entered.
    pub(crate) fn path(&self) -> PathBuf {
        format!("/proc/{}/ns/net", self.holder.pid()).into()
    }

    async fn ip(&self, arguments: &[&str]) -> Result<(), Error> {
        self.program("ip").args(arguments).run().await.map(|_| ())
    }
}

/// Two namespaces, connected.
#[derive(Debug)]
pub struct Namespaces {
    sides: [Namespace; 2],
}

impl Namespaces {
    /// Makes two namespaces and connects them.
    ///
    /// An [`Error::Unsupported`] says that this machine or this user cannot do so.
    pub async fn create() -> Result<Self, Error> {
        let first = open(ADDRESSES[0]).await?;
        let second = open(ADDRESSES[1]).await?;
        let both = Self {
            sides: [first, second],
        };
        both.connect().await.map_err(unsupported)?;
        Ok(both)
    }

    /// One end.
    pub fn a(&self) -> &Namespace {
        &self.sides[0]
    }

    /// The other end.
    pub fn b(&self) -> &Namespace {
        &self.sides[1]
    }

    /// Loses every packet in both directions, silently: connections stay open and hear nothing.
    pub async fn cut(&self) -> Result<(), Error> {
        self.send_to(0, NOBODY).await?;
        self.send_to(1, NOBODY).await
    }

    /// Loses every packet from [`Namespaces::a`] to [`Namespaces::b`]; the way back works.
    pub async fn cut_a_to_b(&self) -> Result<(), Error> {
        self.send_to(0, NOBODY).await
    }

    /// Loses every packet from [`Namespaces::b`] to [`Namespaces::a`]; the way back works.
    pub async fn cut_b_to_a(&self) -> Result<(), Error> {
        self.send_to(1, NOBODY).await
    }

    /// Ends every cut.
    pub async fn heal(&self) -> Result<(), Error> {
        self.send_to(0, HARDWARE[1]).await?;
        self.send_to(1, HARDWARE[0]).await
    }

    /// Lets every packet arrive `delay` later, in each direction; zero ends it.
    ///
    /// An [`Error::Unsupported`] says that this machine's kernel cannot do so.
    pub async fn delay(&self, delay: Duration) -> Result<(), Error> {
        let delay_us = format!("{}us", delay.as_micros());
        for (side, link) in self.sides.iter().zip(LINKS) {
            side.program("tc")
                .args(["qdisc", "replace", "dev", link, "root", "netem"])
                .args(["delay", &delay_us])
                .run()
                .await
                .map_err(|error| Error::Unsupported {
                    what: "delay packets",
                    why: error.to_string(),
                })?;
        }
        Ok(())
    }

    async fn connect(&self) -> Result<(), Error> {
        // Made right inside the namespaces: the names never exist outside, so they cannot clash.
        let holders = self
            .sides
            .each_ref()
            .map(|side| side.holder.pid().to_string());
        Program::new("ip")
            .args(["link", "add", LINKS[0], "netns", &holders[0]])
            .args(["address", HARDWARE[0], "type", "veth"])
            .args(["peer", "name", LINKS[1], "netns", &holders[1]])
            .args(["address", HARDWARE[1]])
            .run()
            .await?;
        for (side, link) in self.sides.iter().zip(LINKS) {
            let address = format!("{}/30", side.address);
            side.ip(&["address", "add", &address, "dev", link]).await?;
            side.ip(&["link", "set", "lo", "up"]).await?;
            side.ip(&["link", "set", link, "up"]).await?;
        }
        self.heal().await
    }

    /// Sets the hardware address to which one side sends: the other's, or nobody's. A fixed entry,
    /// unlike a link that is down, changes no route: packets leave and never arrive.
    async fn send_to(&self, from: usize, hardware: &str) -> Result<(), Error> {
        let other = ADDRESSES[1 - from].to_string();
        let side = &self.sides[from];
        let entry = ["lladdr", hardware, "dev", LINKS[from], "nud", "permanent"];
        side.program("ip")
            .args(["neighbour", "replace", &other])
            .args(entry)
            .run()
            .await
            .map(|_| ())
    }
}

async fn open(address: Ipv4Addr) -> Result<Namespace, Error> {
    let mut holder = Program::new("unshare")
        .args(["--net", "--", "sleep", "infinity"])
        .try_spawn()?;
    let ours = std::fs::read_link("/proc/self/ns/net").map_err(Error::io("read /proc/self/ns"))?;
    let theirs = format!("/proc/{}/ns/net", holder.pid());
    let outcome = wait::within(START_TIMEOUT, async || {
        if !holder.is_running() {
            return Some(false);
        }
        let link = std::fs::read_link(&theirs).ok()?;
        (link != ours).then_some(true)
    })
    .await;
    match outcome {
        Some(true) => Ok(Namespace { holder, address }),
        Some(false) => {
            holder.wait_within(START_TIMEOUT).await;
            Err(unsupported(holder.ended()))
        }
        None => Err(unsupported(Error::Timeout {
            what: "a network namespace".into(),
            timeout: START_TIMEOUT,
            output: holder.tail(),
        })),
    }
}

/// What the system said, as a statement about the machine. A missing program stays what it is.
fn unsupported(error: Error) -> Error {
    match error {
        Error::Missing { .. } => error,
        other => Error::Unsupported {
            what: "make network namespaces",
            why: other.to_string(),
        },
    }
}
