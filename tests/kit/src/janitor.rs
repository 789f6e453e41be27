//! The watcher that cleans up after a test process that could not do so itself.
//!
//! A shell waits on a pipe whose other end only this process holds. When the pipe closes, the test
//! process is gone (finished, aborted or killed), and whatever it had not yet given back is
//! removed: processes by the mark in their environment or by their working folder, then folders.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The environment variable that marks every process of a test: the test process's own id, a dot
/// and a number per child. Programs that overwrite their environment are found by their working
/// folder instead.
pub(crate) const MARK: &str = "LEASEHOLD_TESTKIT_OWNER";

/// Reads `+ what` and `- what` lines. At the end of the pipe nothing is done unless something was
/// not given back, because most test processes clean up after themselves.
const SCRIPT: &str = r#"
trap '' INT TERM HUP
mark=$1
base=$2
open=0
dirs=""
while read -r sign what; do
  case "$sign" in
    +) open=$((open + 1)); case "$what" in "$base"*) dirs="$dirs $what" ;; esac ;;
    -) open=$((open - 1)) ;;
  esac
done
[ "$open" -gt 0 ] || exit 0
for round in 1 2 3; do
  found=""
  for file in $(grep -lsaF "$mark" /proc/[0-9]*/environ); do
    pid=${file#/proc/}
    pid=${pid%/environ}
    [ "$pid" = "$$" ] || found="$found $pid"
  done
  for dir in $dirs; do
    for link in $(find /proc -maxdepth 2 -name cwd -lname "$dir*" 2>/dev/null); do
      pid=${link#/proc/}
      found="$found ${pid%/cwd}"
    done
  done
  [ -n "$found" ] || break
  kill -KILL $found 2>/dev/null
  sleep 0.1
done
for dir in $dirs; do
  # A killed PostgreSQL leaves a System V segment, whose id is on line 7 of its notes.
  segment=$(sed -n '7s/.*[^0-9]//p' "$dir/data/postmaster.pid" 2>/dev/null)
  [ -z "$segment" ] || ipcrm -m "$segment" 2>/dev/null
  rm -rf -- "$dir"
done
"#;

static CHILDREN: AtomicU64 = AtomicU64::new(0);
static PIPE: OnceLock<Option<Mutex<ChildStdin>>> = OnceLock::new();

/// A value of [`MARK`] for one more child.
pub(crate) fn new_mark() -> String {
    let number = CHILDREN.fetch_add(1, Ordering::Relaxed);
    format!("{}.{number}", std::process::id())
}

/// Notes a folder that must not outlive this process.
pub(crate) fn watch_dir(path: &Path) {
    tell('+', &path.display().to_string());
}

/// The folder has been removed.
pub(crate) fn forget_dir(path: &Path) {
    tell('-', &path.display().to_string());
}

/// Notes a child that must not outlive this process.
pub(crate) fn watch_child(pid: u32) {
    tell('+', &pid.to_string());
}

/// The child has been reaped.
pub(crate) fn forget_child(pid: u32) {
    tell('-', &pid.to_string());
}

fn tell(sign: char, what: &str) {
    // Without a shell there is no janitor; the two other layers of cleaning still work.
    if let Some(pipe) = PIPE.get_or_init(start) {
        let mut pipe = pipe.lock().unwrap_or_else(PoisonError::into_inner);
        // A janitor that somebody killed must not fail the test.
        let _ = writeln!(pipe, "{sign} {what}");
    }
}

fn start() -> Option<Mutex<ChildStdin>> {
    let base = std::env::temp_dir().join(crate::dir::PREFIX);
    let mut child = Command::new("sh")
        .args(["-c", SCRIPT, "janitor"])
        .arg(format!("{MARK}={}.", std::process::id()))
        .arg(base)
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // Its own group: a signal to the test's group must not reach it.
        .process_group(0)
        .spawn()
        .ok()?;
    child.stdin.take().map(Mutex::new)
}
