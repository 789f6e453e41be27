//! A server, writers that are real processes, and the one course of events: a paused owner wakes up
//! late and writes.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::{io::Write as _, net::SocketAddr, path::PathBuf, process::ChildStdin, time::Duration};

use leasehold_client::{Client, Options};
use leasehold_testkit::{Binary, Child, Dir, Program, port};

/// Long enough for anything on a busy machine.
const SOON: Duration = Duration::from_secs(30);
/// Short, since the owner sleeps past it.
const TTL_MS: &str = "1500";

/// A real server in a folder of its own.
pub struct Server {
    dir: Dir,
    address: SocketAddr,
    _child: Child,
}

impl Server {
    pub async fn start() -> Self {
        let dir = Dir::new("fences");
        let address = SocketAddr::from(([127, 0, 0, 1], port::free()));
        let mut child = Binary::leasehold()
            .args(["serve", "--log", "warn", "--listen", &address.to_string()])
            .arg("--data-dir")
            .arg(dir.join("data"))
            .env_clear()
            .spawn();
        child.wait_for_line("listening on", SOON).await;
        Self {
            dir,
            address,
            _child: child,
        }
    }

    fn token_file(&self) -> PathBuf {
        self.dir.join("data").join("admin.token")
    }

    #[allow(dead_code, reason = "only some receivers ask the server")]
    pub fn client(&self) -> Client {
        let token = std::fs::read_to_string(self.token_file()).unwrap();
        Client::new(Options::new(format!("http://{}", self.address)).token(token.trim())).unwrap()
    }
}

/// The example's writer, as a process.
struct Writer {
    child: Child,
    stdin: ChildStdin,
}

impl Writer {
    fn start(server: &Server, name: &str, course: &Course<'_>) -> Self {
        let mut program = Program::new(env!("CARGO_BIN_EXE_fenced-writer"))
            .args(["--server", &format!("http://{}", server.address)])
            .arg("--token-file")
            .arg(server.token_file())
            .args(["--name", name, "--key", course.key])
            .args(["--ttl-ms", TTL_MS, "--sink", course.sink]);
        if !course.fenced {
            program = program.arg("--no-fence");
        }
        let mut child = program.with_stdin().spawn();
        let stdin = child.take_stdin().unwrap();
        Self { child, stdin }
    }

    async fn granted(&mut self) -> u64 {
        let line = self.child.wait_for_line("granted ", SOON).await;
        line["granted ".len()..].parse().unwrap()
    }

    fn say(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").unwrap();
    }

    async fn asked(&mut self, line: &str) -> String {
        let position = self.child.position();
        self.say(line);
        self.child.wait_for_line_from(position, "", SOON).await
    }
}

/// What is written where, and how.
pub struct Course<'a> {
    pub key: &'a str,
    pub sink: &'a str,
    pub fenced: bool,
}

impl Course<'_> {
    /// The owner looks at its lease and is paused. Its lease lapses, a successor gets the key with a
    /// larger token and writes `second`. The owner wakes up and writes `late`: what it is told is
    /// returned.
    pub async fn late_write(&self, server: &Server) -> String {
        let mut old = Writer::start(server, "old", self);
        let old_token = old.granted().await;
        // A table that only takes fenced writes is filled by somebody who keeps to it.
        if self.fenced {
            assert_eq!(old.asked("write first").await, "written first");
        }
        assert_eq!(old.asked("check").await, format!("owned {old_token}"));
        old.child.sigstop();

        let successor = Course {
            fenced: true,
            ..*self
        };
        let mut new = Writer::start(server, "new", &successor);
        let new_token = new.granted().await;
        assert!(new_token > old_token, "{new_token} after {old_token}");
        assert_eq!(new.asked("write second").await, "written second");

        let position = old.child.position();
        old.say("write late");
        old.child.sigcont();
        let answer = old.child.wait_for_line_from(position, "", SOON).await;
        // Afterwards it knows by itself; that was not what kept its write out.
        assert_eq!(old.asked("check").await, format!("lost {old_token}"));
        answer
    }
}
