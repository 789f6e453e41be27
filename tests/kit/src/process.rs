//! Programs under test: started, watched, signalled and ended for certain.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{fmt, thread};

use nix::sys::signal::Signal;

use crate::{Error, Namespace, janitor, spawner, tree, wait};

/// Lines kept per child; older ones are dropped. Enough for a talkative service's start-up, and a
/// bound for one that never stops talking.
const LINES_KEPT: usize = 20_000;
/// Bytes of one line that are read before it is broken in two.
const LINE_BYTES: u64 = 64 * 1024;
/// Lines shown when something failed.
const LINES_SHOWN: usize = 60;
/// How long an ended child's output may take to be read to its end.
const OUTPUT_GRACE: Duration = Duration::from_millis(500);

/// A program that can be started: its command line, environment, user and network.
#[derive(Clone, Debug)]
pub struct Program {
    path: OsString,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    clear_environment: bool,
    directory: Option<PathBuf>,
    user: Option<String>,
    network: Option<PathBuf>,
    with_stdin: bool,
}

impl Program {
    /// A program by its path, or by its name when it is in `PATH`.
    pub fn new(path: impl Into<OsString>) -> Self {
        Self {
            path: path.into(),
            arguments: Vec::new(),
            environment: Vec::new(),
            clear_environment: false,
            directory: None,
            user: None,
            network: None,
            with_stdin: false,
        }
    }

    /// Adds an argument.
    pub fn arg(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Adds arguments.
    pub fn args(mut self, arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Sets a variable of its environment.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Starts from an empty environment, but for `PATH`.
    pub fn env_clear(mut self) -> Self {
        self.clear_environment = true;
        self
    }

    /// Sets its working folder.
    pub fn current_dir(mut self, directory: impl AsRef<Path>) -> Self {
        self.directory = Some(directory.as_ref().to_path_buf());
        self
    }

    /// Runs it as another user, which only root can.
    pub fn user(mut self, name: impl Into<String>) -> Self {
        self.user = Some(name.into());
        self
    }

    /// Runs it inside a network namespace.
    pub fn in_namespace(mut self, namespace: &Namespace) -> Self {
        self.network = Some(namespace.path());
        self
    }

    /// Gives it a pipe as standard input, which [`Child::take_stdin`] returns; otherwise it reads
    /// from nothing.
    pub fn with_stdin(mut self) -> Self {
        self.with_stdin = true;
        self
    }

    /// Starts it.
    ///
    /// # Panics
    ///
    /// When it cannot be started.
    pub fn spawn(self) -> Child {
        match self.try_spawn() {
            Ok(child) => child,
            Err(error) => panic!("{error}"),
        }
    }

    /// As [`Program::spawn`], with the error returned.
    pub fn try_spawn(self) -> Result<Child, Error> {
        let name = self.path.to_string_lossy().into_owned();
        let found = find_program(&self.path);
        if found.is_none() {
            return Err(Error::Missing { program: name });
        }
        let with_stdin = self.with_stdin;
        let mark = janitor::new_mark();
        let mut command = self.command(&mark);
        command
            .stdin(if with_stdin { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A group of its own, so that a signal to it does not reach the test.
            .process_group(0);
        let mut inner = spawner::spawn(command).map_err(Error::io(format!("start {name}")))?;
        janitor::watch_child(inner.id());
        let output = Arc::new(Output::default());
        let stdout = inner.stdout.take().map(|pipe| read_lines(pipe, &output));
        let stderr = inner.stderr.take().map(|pipe| read_lines(pipe, &output));
        Ok(Child {
            name,
            mark,
            inner,
            output,
            readers: stdout.into_iter().chain(stderr).collect(),
            status: None,
        })
    }

    /// Runs it to its end and returns what it wrote to standard output.
    ///
    /// Failure, with everything it printed, is an [`Error::Command`].
    pub async fn run(self) -> Result<String, Error> {
        let shown = self.to_string();
        if find_program(&self.path).is_none() {
            return Err(Error::Missing {
                program: self.path.to_string_lossy().into_owned(),
            });
        }
        let mut command = tokio::process::Command::from(self.command(&janitor::new_mark()));
        let output = command
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .map_err(Error::io(format!("run {shown}")))?;
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(stdout);
        }
        Err(Error::Command {
            command: shown,
            status: describe(output.status),
            output: stdout + &String::from_utf8_lossy(&output.stderr),
        })
    }

    /// The command, wrapped so that it dies with this process. The wrappers replace themselves by
    /// the program, so its process id is the one that was started.
    fn command(self, mark: &str) -> Command {
        let mut line: Vec<OsString> = Vec::new();
        if let Some(network) = &self.network {
            let mut option = OsString::from("--net=");
            option.push(network);
            line.extend(["nsenter".into(), option, "--".into()]);
        }
        line.extend(["setpriv", "--pdeathsig", "KILL"].map(OsString::from));
        if let Some(user) = &self.user {
            line.push(format!("--reuid={user}").into());
            line.push(format!("--regid={user}").into());
            line.push("--clear-groups".into());
        }
        line.push("--".into());
        line.push(find_program(&self.path).map_or(self.path, PathBuf::into_os_string));
        line.extend(self.arguments);

        let mut words = line.into_iter();
        let mut command = Command::new(words.next().expect("the line begins with a wrapper"));
        command.args(words);
        if self.clear_environment {
            command.env_clear();
            command.env("PATH", search_path());
        }
        command.envs(self.environment).env(janitor::MARK, mark);
        if let Some(directory) = self.directory {
            command.current_dir(directory);
        }
        command
    }
}

impl fmt::Display for Program {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.path.to_string_lossy())?;
        for argument in &self.arguments {
            write!(formatter, " {}", argument.to_string_lossy())?;
        }
        Ok(())
    }
}

/// A running program. Dropping it kills it with everything below it.
#[derive(Debug)]
pub struct Child {
    name: String,
    mark: String,
    inner: std::process::Child,
    output: Arc<Output>,
    readers: Vec<thread::JoinHandle<()>>,
    status: Option<ExitStatus>,
}

impl Child {
    /// The id of its process.
    pub fn pid(&self) -> u32 {
        self.inner.id()
    }

    /// Its standard input, if [`Program::with_stdin`] asked for it and nobody took it yet.
    pub fn take_stdin(&mut self) -> Option<std::process::ChildStdin> {
        self.inner.stdin.take()
    }

    /// How it ended, if it has.
    pub fn status(&mut self) -> Option<ExitStatus> {
        if self.status.is_none()
            && let Ok(Some(status)) = self.inner.try_wait()
        {
            self.status = Some(status);
            janitor::forget_child(self.inner.id());
        }
        self.status
    }

    /// Whether it still runs (or is paused).
    pub fn is_running(&mut self) -> bool {
        self.status().is_none()
    }

    /// Waits for its end.
    ///
    /// # Panics
    ///
    /// When it still runs after `timeout`.
    pub async fn wait(&mut self, timeout: Duration) -> ExitStatus {
        match self.wait_within(timeout).await {
            Some(status) => status,
            None => panic!(
                "{} still runs after {timeout:?}; it last said:\n{}",
                self.name,
                self.tail()
            ),
        }
    }

    /// Waits for its end; `None` when it still runs after `timeout`.
    pub async fn wait_within(&mut self, timeout: Duration) -> Option<ExitStatus> {
        let status = wait::within(timeout, async || self.status()).await?;
        // What it said last may still be on its way through the pipes.
        wait::within(OUTPUT_GRACE, async || {
            self.readers
                .iter()
                .all(thread::JoinHandle::is_finished)
                .then_some(())
        })
        .await;
        Some(status)
    }

    /// Waits until it printed a line that contains `pattern`, on either stream, now or at any time
    /// since it was started, and returns that line.
    ///
    /// # Panics
    ///
    /// When that does not happen within `timeout`, or when it ends before.
    pub async fn wait_for_line(&mut self, pattern: &str, timeout: Duration) -> String {
        self.wait_for_line_from(0, pattern, timeout).await
    }

    /// As [`Child::wait_for_line`], for lines printed at or after a [`Child::position`].
    pub async fn wait_for_line_from(
        &mut self,
        position: usize,
        pattern: &str,
        timeout: Duration,
    ) -> String {
        match self.try_wait_for_line(position, pattern, timeout).await {
            Ok(line) => line,
            Err(error) => panic!("{error}"),
        }
    }

    /// As [`Child::wait_for_line_from`], with the error returned.
    pub async fn try_wait_for_line(
        &mut self,
        position: usize,
        pattern: &str,
        timeout: Duration,
    ) -> Result<String, Error> {
        let found = wait::within(timeout, async || {
            // The order matters: what an ended child said is complete only when it was seen to
            // have ended before its output was searched.
            let ended =
                self.status().is_some() && self.readers.iter().all(thread::JoinHandle::is_finished);
            match self.output.find(position, pattern) {
                Some(line) => Some(Some(line)),
                None => ended.then_some(None),
            }
        })
        .await;
        match found {
            Some(Some(line)) => Ok(line),
            Some(None) => Err(self.ended()),
            None => Err(Error::Timeout {
                what: format!("{} to print {pattern:?}", self.name),
                timeout,
                output: self.tail(),
            }),
        }
    }

    /// How many lines it has printed so far.
    pub fn position(&self) -> usize {
        self.output.position()
    }

    /// The lines it printed, on both streams, in the order in which they were read. Only the last
    /// 20,000 are kept.
    pub fn lines(&self) -> Vec<String> {
        self.output.lines()
    }

    /// The last lines, for messages.
    pub fn tail(&self) -> String {
        let lines = self.lines();
        lines[lines.len().saturating_sub(LINES_SHOWN)..].join("\n")
    }

    /// Asks it to end.
    pub fn sigterm(&self) {
        self.signal(Signal::SIGTERM);
    }

    /// Sends a signal to its process alone.
    pub fn signal(&self, signal: Signal) {
        // A reaped child's id may belong to somebody else by now.
        if self.status.is_none() {
            tree::send(self.inner.id(), signal);
        }
    }

    /// Freezes it and everything below it.
    pub fn sigstop(&self) {
        self.signal_tree(Signal::SIGSTOP);
    }

    /// Lets it and everything below it go on.
    pub fn sigcont(&self) {
        self.signal_tree(Signal::SIGCONT);
    }

    /// Kills it and everything below it, and reaps it.
    pub fn kill9(&mut self) {
        if self.status().is_some() {
            return;
        }
        self.signal_tree(Signal::SIGKILL);
        if let Ok(status) = self.inner.wait() {
            self.status = Some(status);
            janitor::forget_child(self.inner.id());
        }
    }

    /// Kills its process alone, as the kernel does when memory runs out; what it had started lives
    /// on.
    pub fn kill9_alone(&mut self) {
        self.signal(Signal::SIGKILL);
        if self.status.is_none()
            && let Ok(status) = self.inner.wait()
        {
            self.status = Some(status);
            janitor::forget_child(self.inner.id());
        }
    }

    /// The error that tells how it ended.
    pub(crate) fn ended(&mut self) -> Error {
        Error::Ended {
            program: self.name.clone(),
            status: self.status().map_or_else(|| "nothing".into(), describe),
            output: self.tail(),
        }
    }

    fn signal_tree(&self, signal: Signal) {
        if self.status.is_none() {
            tree::signal(self.inner.id(), signal);
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill9();
        // Whoever outlived its parent is no longer below it, but still carries the mark.
        tree::kill_marked(&self.mark);
    }
}

/// Where a program is: as given when it names a folder, else from `PATH` and the system's folders,
/// which a user's `PATH` often lacks.
pub(crate) fn find_program(name: &OsStr) -> Option<PathBuf> {
    let path = Path::new(name);
    if path.components().count() > 1 {
        return path.exists().then(|| path.to_path_buf());
    }
    std::env::split_paths(&search_path())
        .map(|folder| folder.join(name))
        .find(|candidate| candidate.is_file())
}

fn search_path() -> OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    path.push(":/usr/sbin:/sbin");
    path
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => status.to_string(),
    }
}

/// The last lines of a child, shared with the threads that read them.
#[derive(Debug, Default)]
struct Output {
    state: Mutex<Lines>,
}

#[derive(Debug, Default)]
struct Lines {
    kept: VecDeque<String>,
    dropped: usize,
}

impl Output {
    fn push(&self, line: String) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.kept.len() == LINES_KEPT {
            state.kept.pop_front();
            state.dropped += 1;
        }
        state.kept.push_back(line);
    }

    fn find(&self, position: usize, pattern: &str) -> Option<String> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let skipped = position.saturating_sub(state.dropped);
        let mut lines = state.kept.iter().skip(skipped);
        lines.find(|line| line.contains(pattern)).cloned()
    }

    fn position(&self) -> usize {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.dropped + state.kept.len()
    }

    fn lines(&self) -> Vec<String> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.kept.iter().cloned().collect()
    }
}

/// Reads one stream to its end on a thread of its own: a child that fills one pipe while only the
/// other is read would block for ever.
fn read_lines(pipe: impl Read + Send + 'static, output: &Arc<Output>) -> thread::JoinHandle<()> {
    let output = Arc::clone(output);
    thread::spawn(move || {
        let mut pipe = BufReader::new(pipe);
        let mut line = Vec::new();
        loop {
            line.clear();
            match pipe.by_ref().take(LINE_BYTES).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) => {
                    let text = String::from_utf8_lossy(&line);
                    output.push(text.trim_end_matches(['\n', '\r']).to_owned());
                }
            }
        }
    })
}
