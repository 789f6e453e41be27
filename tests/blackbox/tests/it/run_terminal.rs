//! `leasehold run` as a job of a real shell on a real terminal: Ctrl-Z, fg, bg, the terminal's modes, and a
//! terminal that hangs up.

use std::{io::Write as _, process::ChildStdin};

use leasehold_testkit::{Binary, Child, Program, wait};

use crate::cli_support::{SOON, Server};

/// A terminal: what it is told it types, what the shell prints it prints, and when it is told nothing more it
/// closes.
const TERMINAL: &str = r"
import os, pty, select, sys
shell, master = pty.fork()
if shell == 0:
    os.execvp(sys.argv[1], sys.argv[1:])
while True:
    ready, _, _ = select.select([master, 0], [], [])
    if 0 in ready:
        typed = os.read(0, 4096)
        if not typed:
            os.close(master)
            break
        os.write(master, typed)
    if master in ready:
        try:
            os.write(1, os.read(master, 4096))
        except OSError:
            break
os.waitpid(shell, 0)
";

const SHELLS: [&[&str]; 2] = [&["bash", "--norc", "-i"], &["dash", "-i"]];
const CTRL_C: &str = "\x03";
const CTRL_Z: &str = "\x1a";

struct Terminal {
    child: Child,
    keyboard: Option<ChildStdin>,
    seen: usize,
}

impl Terminal {
    fn open(server: &Server, shell: &[&str]) -> Self {
        let mut child = Program::new("python3")
            .args(["-c", TERMINAL])
            .args(shell.iter().copied())
            .env("LEASEHOLD_DATA_DIR", server.data())
            .env("LEASEHOLD_URL", format!("http://{}", server.address))
            .env("LEASEHOLD", Binary::leasehold_path())
            .env("PS1", "$ ")
            .env("TERM", "dumb")
            .with_stdin()
            .spawn();
        Self {
            keyboard: child.take_stdin(),
            child,
            seen: 0,
        }
    }

    fn types(&mut self, text: &str) {
        let keyboard = self.keyboard.as_mut().expect("it is open");
        let typed = keyboard.write_all(text.as_bytes());
        typed.expect("the terminal takes it");
    }

    /// The next line that has this text. What was typed is shown too, so the text must not be in that.
    async fn shows(&mut self, text: &str) -> String {
        let line = self.child.wait_for_line_from(self.seen, text, SOON).await;
        self.seen = self.child.position();
        line
    }

    /// Runs a program under a lease, which prepares itself and prints its process id. It forks nothing: a shell
    /// whose child is stopped between vfork and exec does not stop.
    async fn run(&mut self, options: &str, prepares: &str, end: &str) -> u32 {
        let script = format!("{prepares} echo program-$$; exec sleep 1000");
        self.types(&format!(
            "\"$LEASEHOLD\" run {options} job:tty -- sh -c '{script}'{end}\n"
        ));
        let program = wait::within(SOON, async || {
            let shown = self.child.tail();
            let number = shown.rsplit_once("program-")?.1;
            let digits: String = number.chars().take_while(char::is_ascii_digit).collect();
            digits.parse().ok()
        })
        .await;
        program.unwrap_or_else(|| panic!("the program does not run: {}", self.child.tail()))
    }

    /// The shell has the terminal and does what is typed.
    async fn answers(&mut self) {
        self.types("echo shell-$((40+2))\n");
        self.shows("shell-42").await;
    }
}

/// The state of a process as the kernel shows it: S sleeps, T is stopped; `None` when it is gone.
fn state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let state = stat.rsplit_once(") ")?.1.chars().next()?;
    (!matches!(state, 'Z' | 'X')).then_some(state)
}

async fn becomes(pid: u32, expected: Option<char>) {
    let what = format!("process {pid} is {expected:?}");
    wait::until(SOON, &what, async || match (state(pid), expected) {
        // One that waits in the kernel sleeps, too.
        (Some('S' | 'R' | 'D'), Some('S')) => true,
        (state, expected) => state == expected,
    })
    .await;
}

/// The terminal listens to the program's group.
async fn gets_the_terminal(program: u32) {
    wait::until(SOON, "the program has the terminal", async || {
        let stat = std::fs::read_to_string(format!("/proc/{program}/stat")).unwrap_or_default();
        let fields = stat.rsplit_once(") ").map(|(_, fields)| fields.split(' '));
        let foreground = fields.and_then(|mut fields| fields.nth(5)?.parse::<u32>().ok());
        foreground == Some(program)
    })
    .await;
}

async fn is_held(server: &Server) -> bool {
    let list = server.run(&["lease", "ls", "--kind", "job"]).await;
    list.stdout.contains("job:tty")
}

async fn is_released(server: &Server) {
    wait::until(SOON, "the lease is released", async || {
        !is_held(server).await
    })
    .await;
}

#[tokio::test]
async fn ctrl_z_stops_the_job_and_fg_and_bg_continue_it() {
    for shell in SHELLS {
        let server = Server::start().await;
        let mut terminal = Terminal::open(&server, shell);
        let program = terminal.run("--ttl 60s", "", "").await;
        gets_the_terminal(program).await;
        for _ in 0..2 {
            terminal.types(CTRL_Z);
            becomes(program, Some('T')).await;
            terminal.answers().await;
            terminal.types("bg\n");
            becomes(program, Some('S')).await;
            terminal.answers().await;
            terminal.types("fg\n");
            gets_the_terminal(program).await;
        }
        terminal.types(CTRL_Z);
        becomes(program, Some('T')).await;
        terminal.answers().await;
        assert!(is_held(&server).await, "{shell:?}");
        terminal.types("fg\n");
        gets_the_terminal(program).await;
        becomes(program, Some('S')).await;
        terminal.types(CTRL_C);
        becomes(program, None).await;
        is_released(&server).await;
        terminal.types("echo code-$?\n");
        terminal.shows("code-130").await;
    }
}

#[tokio::test]
async fn a_stop_that_is_sent_to_leasehold_stops_the_program_too() {
    for shell in SHELLS {
        let server = Server::start().await;
        let mut terminal = Terminal::open(&server, shell);
        let program = terminal.run("--ttl 60s", "", " &").await;
        for _ in 0..2 {
            terminal.types("kill -TSTP %1\n");
            becomes(program, Some('T')).await;
            terminal.answers().await;
            terminal.types("bg %1\n");
            becomes(program, Some('S')).await;
            terminal.answers().await;
        }
        terminal.types("fg %1\n");
        gets_the_terminal(program).await;
        terminal.types(CTRL_Z);
        becomes(program, Some('T')).await;
        terminal.answers().await;
        terminal.types("fg %1\n");
        gets_the_terminal(program).await;
        terminal.types(CTRL_C);
        becomes(program, None).await;
        is_released(&server).await;
    }
}

#[tokio::test]
async fn a_program_that_is_stopped_until_its_deadline_is_ended() {
    for shell in SHELLS {
        let server = Server::start().await;
        let mut terminal = Terminal::open(&server, shell);
        let program = terminal.run("--ttl 2s", "", "").await;
        gets_the_terminal(program).await;
        terminal.types(CTRL_Z);
        becomes(program, None).await;
        terminal.answers().await;
        is_released(&server).await;
        terminal.types("fg\n");
        terminal.types("echo code-$?\n");
        terminal.shows("code-79").await;
    }
}

#[tokio::test]
async fn after_a_loss_the_terminal_is_as_it_was() {
    for shell in SHELLS {
        let server = Server::start().await;
        let mut terminal = Terminal::open(&server, shell);
        let program = terminal.run("--ttl 60s", "stty raw -echo;", "").await;
        let revoked = server
            .run(&["lease", "revoke", "job:tty", "--reason", "a test"])
            .await;
        assert_eq!(revoked.code, 0, "{}", revoked.stderr);
        becomes(program, None).await;
        terminal.types("echo code-$?\n");
        terminal.shows("code-79").await;
        terminal.types("stty -a\n");
        terminal.shows("isig icanon iexten echo ").await;
    }
}

#[tokio::test]
async fn a_terminal_that_hangs_up_ends_the_program_and_releases() {
    // In the foreground, deaf to the hang-up, stopped, and in the background.
    let deaf = "trap \"\" HUP;";
    let ways = [
        ("", "", ""),
        (deaf, "", ""),
        (deaf, "", CTRL_Z),
        (deaf, " &", ""),
    ];
    for shell in SHELLS {
        for (prepares, end, then) in ways {
            let server = Server::start().await;
            let mut terminal = Terminal::open(&server, shell);
            let program = terminal.run("--ttl 60s", prepares, end).await;
            if then == CTRL_Z {
                gets_the_terminal(program).await;
                terminal.types(then);
                becomes(program, Some('T')).await;
                terminal.answers().await;
            }
            terminal.keyboard = None;
            becomes(program, None).await;
            is_released(&server).await;
            terminal.child.wait(SOON).await;
        }
    }
}

#[tokio::test]
async fn under_nohup_a_program_outlives_its_terminal() {
    let server = Server::start().await;
    let mut terminal = Terminal::open(&server, SHELLS[0]);
    terminal.types("cd \"$LEASEHOLD_DATA_DIR\"; trap '' HUP\n");
    let program = terminal.run("--ttl 3s", "", " &").await;
    terminal.types("trap - HUP\n");
    terminal.answers().await;
    terminal.keyboard = None;
    terminal.child.wait(SOON).await;
    let list = ["lease", "ls", "--kind", "job", "--json"];
    let time = |lease: &serde_json::Value, name: &str| lease[name].as_str().map(str::to_owned);
    let expires = time(&server.json(&list).await, "expires_at");
    wait::until(SOON, "it is renewed past that", async || {
        time(&server.json(&list).await, "last_heartbeat") > expires
    })
    .await;
    assert!(state(program).is_some());
}

#[tokio::test]
async fn what_is_waited_for_is_shown_on_a_terminal() {
    let mut server = Server::start().await;
    let granted = server
        .json(&[
            "lease", "acquire", "job:tty", "--holder", "night", "--ttl", "1h", "--json",
        ])
        .await;
    let token = granted["token"].to_string();
    let mut terminal = Terminal::open(&server, SHELLS[0]);
    terminal.types("\"$LEASEHOLD\" run --wait 5m job:tty -- echo it-r''uns\n");
    terminal.shows("waiting for job:tty, held by night").await;
    let ran = server
        .run(&["lease", "release", "job:tty", "--token", &token])
        .await;
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    terminal.shows("it-runs").await;
    terminal.answers().await;

    // Nobody answers, and the reader sees who.
    server.child.kill9();
    terminal.types("\"$LEASEHOLD\" run --wait 5m job:tty -- true\n");
    let line = terminal.shows("waiting for job:tty: no answer from").await;
    assert!(line.contains(&server.address.to_string()), "{line}");
    terminal.types(CTRL_C);
    terminal.answers().await;

    // Elsewhere nothing is written that nobody would read.
    server.restart().await;
    server
        .json(&["lease", "acquire", "job:pipe", "--ttl", "1h", "--json"])
        .await;
    let ran = server
        .run(&["lease", "acquire", "job:pipe", "--wait", "2s"])
        .await;
    assert_eq!(ran.code, 75);
    assert!(!ran.stderr.contains("waiting"), "{}", ran.stderr);
}
