//! A private PostgreSQL server.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::{User, chown, geteuid};
use tokio::sync::OnceCell;

use crate::{Child, Dir, Error, Issued, Program, port, template, wait};

/// Where Debian puts the programs of each version.
const VERSIONS: &str = "/usr/lib/postgresql";
/// The user that runs the server when the test itself runs as root, which PostgreSQL refuses.
const SERVICE_USER: &str = "postgres";
/// The database's superuser.
pub(crate) const SUPERUSER: &str = "postgres";
/// How long a server may take to accept connections, recovery after a crash included.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// How long an orderly stop may take.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
/// How long an immediate stop may take before it becomes a kill.
const DROP_TIMEOUT: Duration = Duration::from_secs(5);
/// What a server writes once it accepts connections.
const READY: &str = "database system is ready to accept connections";
/// How many ports are tried when other processes keep being faster.
const PORT_ATTEMPTS: usize = 5;

/// How a server is set up.
#[derive(Clone, Debug)]
pub struct Options {
    fsync: bool,
    tls: Option<Issued>,
    settings: Vec<(String, String)>,
}

impl Options {
    /// Whether commits reach the disk before they are answered. On by default, because what is
    /// measured and killed in tests should be the real thing.
    pub fn fsync(mut self, on: bool) -> Self {
        self.fsync = on;
        self
    }

    /// Lets clients connect with TLS, and shows them this certificate.
    pub fn tls(mut self, certificate: Issued) -> Self {
        self.tls = Some(certificate);
        self
    }

    /// Adds a setting of `postgresql.conf`.
    pub fn set(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// Starts a server set up like this.
    ///
    /// # Panics
    ///
    /// When it does not start; the message says why.
    pub async fn start(self) -> Postgres {
        match self.try_start().await {
            Ok(postgres) => postgres,
            Err(error) => panic!("{error}"),
        }
    }

    /// As [`Options::start`], with the error returned.
    pub async fn try_start(self) -> Result<Postgres, Error> {
        let programs = newest_version()?;
        let dir = Dir::try_new("postgres")?;
        let socket = dir.make("socket")?;
        give_to_service_user(&[&socket])?;
        let data = dir.join("data");
        template::copy(&programs, &data).await?;
        if let Some(issued) = &self.tls {
            let (certificate, key) = issued.write(&data)?;
            give_to_service_user(&[&certificate, &key])?;
        }
        let mut postgres = Postgres {
            child: None,
            options: self,
            programs,
            port: 0,
            dir,
            is_paused: false,
        };
        let mut attempt = 0;
        loop {
            attempt += 1;
            postgres.port = port::free();
            match postgres.launch().await {
                Ok(()) => return Ok(postgres),
                Err(error) if attempt < PORT_ATTEMPTS && port_was_taken(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// A PostgreSQL server on a free port of 127.0.0.1, with its data in a temporary folder. Anyone on
/// this machine may connect. It ends on drop.
#[derive(Debug)]
pub struct Postgres {
    child: Option<Child>,
    options: Options,
    programs: PathBuf,
    port: u16,
    dir: Dir,
    is_paused: bool,
}

impl Postgres {
    /// Starts a server.
    ///
    /// # Panics
    ///
    /// When it does not start; the message says why.
    pub async fn start() -> Self {
        Self::options().start().await
    }

    /// To start a server with other settings.
    pub fn options() -> Options {
        Options {
            fsync: true,
            tls: None,
            settings: Vec::new(),
        }
    }

    /// A fresh database on a server that all tests of this process share. It lives as long as the
    /// process, so it must not be stopped or paused; whoever wants that starts a server.
    ///
    /// # Panics
    ///
    /// When the server does not start.
    pub async fn shared() -> Database {
        static SERVER: OnceCell<Postgres> = OnceCell::const_new();
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let server = SERVER.get_or_init(Self::start).await;
        let name = format!("test_{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        server.create_database(&name).await;
        Database { server, name }
    }

    /// The address of the database `postgres`.
    pub fn url(&self) -> String {
        self.url_of(SUPERUSER)
    }

    /// The address of a database.
    pub fn url_of(&self, database: &str) -> String {
        format!("postgres://{SUPERUSER}@127.0.0.1:{}/{database}", self.port)
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its socket address, for a proxy.
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// The folder of its data and its socket.
    pub fn dir(&self) -> &Dir {
        &self.dir
    }

    /// The running server's first process.
    ///
    /// # Panics
    ///
    /// When the server is stopped.
    pub fn child(&mut self) -> &mut Child {
        self.child.as_mut().expect("the server runs")
    }

    /// Makes a database and returns its address.
    ///
    /// # Panics
    ///
    /// When the server refuses.
    pub async fn create_database(&self, name: &str) -> String {
        let name_quoted = name.replace('"', "\"\"");
        self.psql(&format!("CREATE DATABASE \"{name_quoted}\""))
            .await;
        self.url_of(name)
    }

    /// Runs SQL in the database `postgres` and returns the rows: one per line, columns separated by
    /// `|`.
    ///
    /// # Panics
    ///
    /// When the server cannot be reached or refuses.
    pub async fn psql(&self, sql: &str) -> String {
        self.psql_in(SUPERUSER, sql).await
    }

    /// As [`Postgres::psql`], in another database.
    ///
    /// # Panics
    ///
    /// When the server cannot be reached or refuses.
    pub async fn psql_in(&self, database: &str, sql: &str) -> String {
        match self.try_psql(database, sql).await {
            Ok(rows) => rows,
            Err(error) => panic!("{error}"),
        }
    }

    /// As [`Postgres::psql_in`], with the error returned.
    pub async fn try_psql(&self, database: &str, sql: &str) -> Result<String, Error> {
        let rows = Program::new(self.programs.join("psql"))
            .args(["--no-psqlrc", "--quiet", "--no-align", "--tuples-only"])
            .args(["--set", "ON_ERROR_STOP=1", "--no-password"])
            .arg(self.url_of(database))
            .args(["--command", sql])
            .run()
            .await?;
        Ok(rows.trim_end().to_owned())
    }

    /// Ends the server gracefully; connections are broken off. Does nothing when it is stopped
    /// already.
    ///
    /// # Panics
    ///
    /// When it does not end in time.
    pub async fn stop(&mut self) {
        if self.is_paused {
            self.resume();
        }
        if let Some(mut child) = self.child.take() {
            child.signal(Signal::SIGINT);
            child.wait(STOP_TIMEOUT).await;
        }
    }

    /// Kills all processes of the server together, as a loss of power would. Does nothing when it
    /// is stopped already.
    pub fn kill9(&mut self) {
        self.is_paused = false;
        if let Some(mut child) = self.child.take() {
            child.kill9();
        }
    }

    /// Starts the server again, same port and same data; stops it first when it runs.
    ///
    /// # Panics
    ///
    /// When it does not start.
    pub async fn restart(&mut self) {
        self.stop().await;
        if let Err(error) = self.launch().await {
            panic!("{error}");
        }
    }

    /// Freezes all processes of the server: connections stay open and nobody answers.
    ///
    /// # Panics
    ///
    /// When the server is stopped.
    pub fn pause(&mut self) {
        self.child.as_ref().expect("the server runs").sigstop();
        self.is_paused = true;
    }

    /// Lets a frozen server go on.
    ///
    /// # Panics
    ///
    /// When the server is stopped.
    pub fn resume(&mut self) {
        self.child.as_ref().expect("the server runs").sigcont();
        self.is_paused = false;
    }

    async fn launch(&mut self) -> Result<(), Error> {
        let data = self.dir.join("data");
        let mut program = as_service_user(Program::new(self.programs.join("postgres")))
            .arg("-D")
            .arg(&data)
            .args(["-p", &self.port.to_string()]);
        let fsync = if self.options.fsync { "on" } else { "off" };
        let socket = self.dir.join("socket").display().to_string();
        let fixed = [
            ("listen_addresses", "127.0.0.1"),
            ("unix_socket_directories", socket.as_str()),
            ("max_connections", "200"),
            ("fsync", fsync),
            // What a server has by default; the template's small segments would make it small too.
            ("max_wal_size", "1GB"),
            // Shared memory as files of the data folder: nothing is left when it is killed.
            ("dynamic_shared_memory_type", "mmap"),
            ("logging_collector", "off"),
        ];
        for (name, value) in fixed {
            program = program.arg("-c").arg(format!("{name}={value}"));
        }
        if self.options.tls.is_some() {
            for setting in ["ssl=on", "ssl_cert_file=tls.pem", "ssl_key_file=tls.key"] {
                program = program.arg("-c").arg(setting);
            }
        }
        for (name, value) in &self.options.settings {
            program = program.arg("-c").arg(format!("{name}={value}"));
        }
        let mut child = program.current_dir(&data).try_spawn()?;
        let outcome = wait::within(START_TIMEOUT, async || {
            if !child.is_running() {
                return Some(false);
            }
            let is_ready = child.lines().iter().any(|line| line.contains(READY));
            is_ready.then_some(true)
        })
        .await;
        match outcome {
            Some(true) if child.is_running() => {
                self.child = Some(child);
                Ok(())
            }
            Some(_) => {
                child.wait_within(DROP_TIMEOUT).await;
                Err(child.ended())
            }
            None => Err(Error::Timeout {
                what: "PostgreSQL to accept connections".into(),
                timeout: START_TIMEOUT,
                output: child.tail(),
            }),
        }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // An immediate stop is as quick as a kill, and tidier.
        if let Some(child) = &mut self.child
            && !self.is_paused
            && child.is_running()
        {
            child.signal(Signal::SIGQUIT);
            let step = Duration::from_millis(5);
            let mut waited = Duration::ZERO;
            while child.is_running() && waited < DROP_TIMEOUT {
                std::thread::sleep(step);
                waited += step;
            }
        }
        self.kill9();
        release_segment(&self.dir);
    }
}

/// Gives the System V segment back that marks the data as in use: a killed server leaves it, and
/// it would stay until the machine is restarted.
fn release_segment(dir: &Dir) {
    let Ok(notes) = fs::read_to_string(dir.join("data/postmaster.pid")) else {
        return;
    };
    // The seventh line of the server's notes holds the segment's key and id.
    let segment = notes
        .lines()
        .nth(6)
        .and_then(|line| line.split_whitespace().nth(1));
    if let Some(segment) = segment {
        let _ = std::process::Command::new("ipcrm")
            .args(["-m", segment])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
    }
}

/// A fresh database on the server of [`Postgres::shared`].
#[derive(Clone, Debug)]
pub struct Database {
    server: &'static Postgres,
    name: String,
}

impl Database {
    /// Its address.
    pub fn url(&self) -> String {
        self.server.url_of(&self.name)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The socket address of the server, for a proxy.
    pub fn addr(&self) -> SocketAddr {
        self.server.addr()
    }

    /// Runs SQL in it; see [`Postgres::psql`].
    ///
    /// # Panics
    ///
    /// When the server refuses.
    pub async fn psql(&self, sql: &str) -> String {
        self.server.psql_in(&self.name, sql).await
    }
}

fn port_was_taken(error: &Error) -> bool {
    matches!(error, Error::Ended { output, .. } if output.contains("Address already in use"))
}

fn newest_version() -> Result<PathBuf, Error> {
    let version_of = |path: &Path| path.file_name()?.to_str()?.parse::<u32>().ok();
    fs::read_dir(VERSIONS)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.join("bin/postgres").exists())
        .filter_map(|path| Some((version_of(&path)?, path.join("bin"))))
        .max()
        .map(|(_, programs)| programs)
        .ok_or_else(|| Error::Missing {
            program: format!("{VERSIONS}/*/bin/postgres"),
        })
}

pub(crate) fn as_service_user(program: Program) -> Program {
    if geteuid().is_root() {
        program.user(SERVICE_USER)
    } else {
        program
    }
}

pub(crate) fn give_to_service_user(folders: &[&Path]) -> Result<(), Error> {
    if !geteuid().is_root() {
        return Ok(());
    }
    let user = User::from_name(SERVICE_USER)
        .ok()
        .flatten()
        .ok_or_else(|| Error::Unsupported {
            what: "run PostgreSQL as root",
            why: format!("there is no user {SERVICE_USER}"),
        })?;
    for folder in folders {
        chown(*folder, Some(user.uid), Some(user.gid))
            .map_err(|errno| Error::io(format!("give {} away", folder.display()))(errno.into()))?;
    }
    Ok(())
}
