//! PgBouncer in front of a private PostgreSQL.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::net::TcpStream;

use crate::postgres::{SUPERUSER, as_service_user, give_to_service_user};
use crate::{Child, Dir, Error, Postgres, Program, port, wait};

/// How long it may take to listen.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// A proxy that lends a connection of the server per transaction. It ends on drop.
#[derive(Debug)]
pub struct PgBouncer {
    port: u16,
    _child: Child,
    _dir: Dir,
}

impl PgBouncer {
    /// Starts one before `server`. `ignored` are the settings of a session that it swallows instead
    /// of refusing them, as many installations tell it to.
    ///
    /// # Panics
    ///
    /// When it does not start; the message says why.
    pub async fn start(server: &Postgres, ignored: &str) -> Self {
        match Self::try_start(server, ignored).await {
            Ok(proxy) => proxy,
            Err(error) => panic!("{error}"),
        }
    }

    async fn try_start(server: &Postgres, ignored: &str) -> Result<Self, Error> {
        let dir = Dir::try_new("pgbouncer")?;
        let port = port::free();
        let users = dir.write("users.txt", &format!("\"{SUPERUSER}\" \"\"\n"))?;
        let settings = format!(
            "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir =\nauth_type = trust\nauth_file = {}\n\
             pool_mode = transaction\nignore_startup_parameters = {ignored}\n",
            server.port(),
            users.display()
        );
        let settings = dir.write("pgbouncer.ini", &settings)?;
        give_to_service_user(&[dir.path(), &users, &settings])?;
        let mut child = as_service_user(Program::new("/usr/sbin/pgbouncer"))
            .arg(&settings)
            .current_dir(&dir)
            .try_spawn()?;
        let listens = wait::within(START_TIMEOUT, async || {
            if !child.is_running() {
                return Some(false);
            }
            let there = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await;
            there.is_ok().then_some(true)
        })
        .await;
        if listens != Some(true) {
            return Err(child.ended());
        }
        Ok(Self {
            port,
            _child: child,
            _dir: dir,
        })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }

    /// The address of the server's first database through it.
    pub fn url(&self) -> String {
        format!("postgres://{SUPERUSER}@{}/postgres", self.addr())
    }
}
