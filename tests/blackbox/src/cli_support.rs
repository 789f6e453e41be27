//! A server of one's own, the command line that talks to it, and programs that write down when they
//! ran.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use leasehold_client::{Client, Options};
use leasehold_testkit::{Binary, Child, Dir, Namespace, Program, port, wait};
use nix::time::{ClockId, clock_gettime};

/// Long enough for anything on a busy machine.
pub const SOON: Duration = Duration::from_secs(60);

/// Milliseconds on the clock that deadlines count on.
pub fn boot_ms() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("Linux has this clock");
    u64::try_from(Duration::from(now).as_millis()).expect("no machine runs that long")
}

/// A server in a folder of its own.
#[derive(Debug)]
pub struct Server {
    /// Its own folder.
    pub dir: Dir,
    /// Where it listens.
    pub address: SocketAddr,
    /// Its process.
    pub child: Child,
}

impl Server {
    /// Starts one from an empty folder.
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// As [`Server::start`], with further arguments.
    pub async fn start_with(arguments: &[&str]) -> Self {
        let dir = Dir::new("serve");
        let address = SocketAddr::from(([127, 0, 0, 1], port::free()));
        let child = spawn(&dir.join("data"), address, arguments).await;
        Self {
            dir,
            address,
            child,
        }
    }

    /// Starts one in a network of its own, for whoever reaches it there.
    pub async fn start_in(network: &Namespace) -> Self {
        let dir = Dir::new("serve");
        let address = SocketAddr::from((network.address(), port::free()));
        let program = server(&dir.join("data"), address, &["--insecure-listen"]);
        let child = listening(program.in_namespace(network)).await;
        Self {
            dir,
            address,
            child,
        }
    }

    /// Starts it again on the same folder and address, after it ended.
    pub async fn restart(&mut self) {
        self.child = spawn(&self.data(), self.address, &[]).await;
    }

    /// Its data folder.
    pub fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// A client with the administrator's credential.
    pub fn client(&self) -> Client {
        let secret = fs::read_to_string(self.data().join("admin.token")).expect("made");
        let mut options = Options::new(format!("http://{}", self.address)).token(secret.trim());
        options.limit = SOON;
        Client::new(options).expect("a client")
    }

    /// The command line, as used on the server's own machine.
    pub fn cli(&self, arguments: &[&str]) -> Program {
        self.cli_at(self.address, arguments)
    }

    /// The same through another address, such as a proxy's.
    pub fn cli_at(&self, address: SocketAddr, arguments: &[&str]) -> Program {
        let mut program = plain(arguments);
        for (name, value) in self.environment(address) {
            program = program.env(name, value);
        }
        program
    }

    fn environment(&self, address: SocketAddr) -> [(&'static str, String); 2] {
        [
            ("LEASEHOLD_DATA_DIR", self.data().display().to_string()),
            ("LEASEHOLD_URL", format!("http://{address}")),
        ]
    }

    /// Runs a verb to its end: exit code, standard output, standard error.
    pub async fn run(&self, arguments: &[&str]) -> Ran {
        run(arguments, &self.environment(self.address)).await
    }

    /// The JSON that a verb prints.
    pub async fn json(&self, arguments: &[&str]) -> serde_json::Value {
        let ran = self.run(arguments).await;
        assert_eq!(ran.code, 0, "{arguments:?}: {}", ran.stderr);
        serde_json::from_str(&ran.stdout).expect("JSON was asked for")
    }
}

/// The binary with an environment of its own.
pub fn plain(arguments: &[&str]) -> Program {
    Binary::leasehold()
        .args(arguments.iter().copied())
        .env_clear()
        .env("HOME", home())
        .env("NO_COLOR", "1")
}

async fn spawn(data: &Path, address: SocketAddr, arguments: &[&str]) -> Child {
    listening(server(data, address, arguments)).await
}

fn server(data: &Path, address: SocketAddr, arguments: &[&str]) -> Program {
    let quiet: &[&str] = match arguments {
        ["--log", ..] => &[],
        _ => &["--log", "warn"],
    };
    plain(&["serve"])
        .args(quiet.iter().copied())
        .args(["--listen", &address.to_string(), "--data-dir"])
        .arg(data)
        .args(arguments.iter().copied())
}

async fn listening(server: Program) -> Child {
    let mut child = server.spawn();
    child.wait_for_line("listening on", SOON).await;
    child
}

/// What a verb came to.
#[derive(Debug)]
pub struct Ran {
    /// The exit code; 128 and the signal for a program that a signal ended.
    pub code: i32,
    /// What it wrote to standard output.
    pub stdout: String,
    /// What it wrote to standard error.
    pub stderr: String,
}

/// Runs a verb to its end, with both streams kept apart.
pub async fn run(arguments: &[&str], environment: &[(&str, String)]) -> Ran {
    let mut command = tokio::process::Command::new(Binary::leasehold_path());
    command
        .args(arguments)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", home())
        .env("NO_COLOR", "1")
        .envs(environment.iter().cloned())
        .stdin(std::process::Stdio::null())
        .kill_on_drop(true);
    let output = tokio::time::timeout(SOON, command.output())
        .await
        .unwrap_or_else(|_| panic!("{arguments:?} still runs"))
        .expect("the binary can be started");
    let signal = std::os::unix::process::ExitStatusExt::signal(&output.status);
    Ran {
        code: signal.map_or_else(|| output.status.code().unwrap_or(-1), |signal| 128 + signal),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// A home that is not there, so that nobody's own configuration or data is touched.
fn home() -> PathBuf {
    std::env::temp_dir().join("leasehold-test-no-home")
}

/// One line of a program that wrote down when it ran.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wrote {
    /// The fencing token that it had.
    pub token: u64,
    /// When, on the clock of deadlines.
    pub at_ms: u64,
}

/// A program for `leasehold run` that writes `token boottime_ms` every two milliseconds and does not
/// listen to SIGTERM.
pub fn writer(log: &Path) -> Vec<String> {
    let script = "use Time::HiRes qw(clock_gettime usleep); \
        $SIG{$_} = 'IGNORE' for qw(TERM INT HUP); \
        open(F, '>>', $ARGV[0]) or die; \
        while (1) { \
          my $line = sprintf(\"%s %d\\n\", $ENV{LEASEHOLD_FENCE}, clock_gettime(7) * 1000); \
          syswrite(F, $line); usleep(2000); }";
    ["perl", "-e", script]
        .into_iter()
        .map(str::to_owned)
        .chain([log.display().to_string()])
        .collect()
}

/// A program whose grandchild, in a session of its own and with its parent gone, is such a writer.
pub fn escaping_writer(log: &Path) -> Vec<String> {
    let writer = writer(log);
    let mut words: Vec<String> = [
        "sh",
        "-c",
        "setsid sh -c '\"$@\" & exit 0' sh \"$@\" & wait; trap '' TERM; while :; do sleep 0.05; done",
        "sh",
    ]
    .map(str::to_owned)
    .into();
    words.extend(writer);
    words
}

/// Reads what writers wrote.
pub fn read_log(log: &Path) -> Vec<Wrote> {
    let text = fs::read_to_string(log).unwrap_or_default();
    text.lines()
        .filter_map(|line| {
            let (token, at_ms) = line.split_once(' ')?;
            Some(Wrote {
                token: token.parse().ok()?,
                at_ms: at_ms.parse().ok()?,
            })
        })
        .collect()
}

/// Waits until a writer has written, and returns its token.
pub async fn writing(log: &Path) -> u64 {
    let wrote = wait::until_some(SOON, "the program writes", async || {
        read_log(log).last().copied()
    });
    wrote.await.token
}

/// Waits until nothing has been written for a while, and returns the last line.
pub async fn silent(log: &Path, limit: Duration) -> Wrote {
    const QUIET_MS: u64 = 300;
    wait::until_some(limit, "the program falls silent", async || {
        let last = read_log(log).last().copied()?;
        (boot_ms() > last.at_ms + QUIET_MS).then_some(last)
    })
    .await
}
