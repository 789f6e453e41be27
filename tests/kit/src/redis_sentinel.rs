//! A Redis primary with a replica, watched by sentinels.

use std::time::Duration;

use crate::redis::{cli, port_was_taken, ready};
use crate::{Child, Dir, Error, Program, Redis, port, wait};

/// The name under which the sentinels watch the primary.
const SERVICE: &str = "leasehold";
/// Sentinels find each other and the replica by asking the primary, every two to ten seconds.
const FORM_TIMEOUT: Duration = Duration::from_secs(60);
/// How many ports are tried when other processes keep being faster.
const PORT_ATTEMPTS: usize = 5;

/// One primary, one replica and any number of sentinels that agree by majority.
#[derive(Debug)]
pub struct Sentinel {
    sentinels: Vec<Watcher>,
    servers: [Redis; 2],
}

#[derive(Debug)]
struct Watcher {
    _child: Child,
    port: u16,
    _dir: Dir,
}

impl Sentinel {
    /// Starts the servers and `sentinels` sentinels. Ready when every sentinel knows the replica
    /// and all other sentinels.
    ///
    /// # Panics
    ///
    /// When they do not find each other.
    pub async fn start(sentinels: usize) -> Self {
        match Self::try_start(sentinels).await {
            Ok(sentinel) => sentinel,
            Err(error) => panic!("{error}"),
        }
    }

    /// As [`Sentinel::start`], with the error returned.
    pub async fn try_start(sentinels: usize) -> Result<Self, Error> {
        let primary = Redis::options().try_start().await?;
        let replica = Redis::options()
            .set("replicaof", format!("127.0.0.1 {}", primary.port()))
            // A replica that waits for companions makes the test wait too.
            .set("repl-diskless-sync-delay", "0")
            .try_start()
            .await?;
        wait_for(async || {
            let info = cli(primary.port(), &["INFO", "replication"]).await.ok()?;
            info.contains("state=online").then_some(())
        })
        .await?;
        let mut watchers = Vec::with_capacity(sentinels);
        for _ in 0..sentinels {
            watchers.push(watch(primary.port(), sentinels / 2 + 1).await?);
        }
        let all = Self {
            sentinels: watchers,
            servers: [primary, replica],
        };
        all.wait_until_known().await?;
        Ok(all)
    }

    /// The addresses of the sentinels, for clients.
    pub fn urls(&self) -> Vec<String> {
        let ports = self.sentinels.iter().map(|watcher| watcher.port);
        ports
            .map(|port| format!("redis://127.0.0.1:{port}/"))
            .collect()
    }

    /// The name to ask the sentinels for.
    pub fn service_name(&self) -> &'static str {
        SERVICE
    }

    /// The port of the primary, as the first sentinel sees it.
    ///
    /// # Panics
    ///
    /// When that sentinel does not answer.
    pub async fn primary_port(&self) -> u16 {
        let port = self.sentinels[0].port;
        wait::until_some(FORM_TIMEOUT, "a sentinel names the primary", async || {
            primary_of(port).await
        })
        .await
    }

    /// The address of the primary, as the first sentinel sees it.
    ///
    /// # Panics
    ///
    /// When that sentinel does not answer.
    pub async fn primary_url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.primary_port().await)
    }

    /// Kills the primary without warning and returns its port.
    ///
    /// # Panics
    ///
    /// When the primary is none of ours, or dead already.
    pub async fn kill_primary(&mut self) -> u16 {
        let port = self.primary_port().await;
        let primary = self
            .servers
            .iter_mut()
            .find(|server| server.port() == port)
            .expect("the primary is one of the two servers");
        primary.kill9();
        port
    }

    /// Waits until the sentinels name another primary than `old`, and that one takes writes;
    /// returns its address.
    ///
    /// # Panics
    ///
    /// When that does not happen.
    pub async fn wait_for_failover(&self, old: u16) -> String {
        let port = self.sentinels[0].port;
        let new = wait::until_some(FORM_TIMEOUT, "the replica becomes primary", async || {
            let now = primary_of(port).await.filter(|now| *now != old)?;
            let role = cli(now, &["ROLE"]).await.ok()?;
            role.starts_with("master").then_some(now)
        })
        .await;
        format!("redis://127.0.0.1:{new}/")
    }

    /// Both servers: the first began as primary.
    pub fn servers(&mut self) -> &mut [Redis; 2] {
        &mut self.servers
    }

    async fn wait_until_known(&self) -> Result<(), Error> {
        let others = self.sentinels.len() - 1;
        let wanted = format!("num-other-sentinels\n{others}\n");
        wait_for(async || {
            for watcher in &self.sentinels {
                let state = cli(watcher.port, &["SENTINEL", "MASTER", SERVICE]).await;
                let state = state.ok()? + "\n";
                if !state.contains(&wanted) || !state.contains("num-slaves\n1\n") {
                    return None;
                }
            }
            Some(())
        })
        .await
    }
}

async fn watch(primary: u16, quorum: usize) -> Result<Watcher, Error> {
    let mut attempt = 0;
    loop {
        attempt += 1;
        let port = port::free();
        let dir = Dir::try_new("sentinel")?;
        // The numbers are small so that tests need not wait: dead after one second of silence.
        let settings = format!(
            "port {port}\n\
             bind 127.0.0.1\n\
             dir {}\n\
             sentinel monitor {SERVICE} 127.0.0.1 {primary} {quorum}\n\
             sentinel down-after-milliseconds {SERVICE} 1000\n\
             sentinel failover-timeout {SERVICE} 6000\n",
            dir.path().display(),
        );
        let file = dir.write("sentinel.conf", &settings)?;
        let mut child = Program::new("redis-sentinel")
            .arg(file)
            .current_dir(&dir)
            .try_spawn()?;
        match ready(&mut child, port).await {
            Ok(()) => {
                return Ok(Watcher {
                    _child: child,
                    port,
                    _dir: dir,
                });
            }
            Err(error) if attempt < PORT_ATTEMPTS && port_was_taken(&error) => {}
            Err(error) => return Err(error),
        }
    }
}

async fn primary_of(sentinel: u16) -> Option<u16> {
    let answer = cli(sentinel, &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE])
        .await
        .ok()?;
    answer.lines().nth(1)?.trim().parse().ok()
}

async fn wait_for(probe: impl AsyncFnMut() -> Option<()>) -> Result<(), Error> {
    wait::within(FORM_TIMEOUT, probe)
        .await
        .ok_or_else(|| Error::Timeout {
            what: "the replica and the sentinels to find each other".into(),
            timeout: FORM_TIMEOUT,
            output: String::new(),
        })
}
