//! Supervised programs end when they must, with everything they started.

use std::{fs, path::Path, time::Duration};

use leasehold_agents::supervise::{Cause, Child, Command, End, Exit, Launcher, Output, Stream};
use leasehold_clock::{Clock, System};
use leasehold_testkit::{Binary, Dir, wait};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

const SOON: Duration = Duration::from_secs(30);

fn shell(script: &str) -> Command {
    Command::new("sh").args(["-c", script])
}

fn start(command: Command) -> Child {
    let launcher = Launcher::at(Binary::leasehold_path());
    command.spawn(&launcher).expect("a guardian can be started")
}

async fn ended(child: &mut Child) -> Exit {
    let exit = tokio::time::timeout(SOON, child.wait()).await;
    exit.expect("the program ends in time")
}

fn is_alive(pid: i32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return false;
    };
    !stat
        .rsplit_once(") ")
        .is_some_and(|(_, rest)| rest.starts_with(['Z', 'X']))
}

/// A script whose grandchild leaves the session, ignores SIGTERM, and notes its process id.
fn escaping(dir: &Dir) -> String {
    let file = dir.join("grandchild");
    format!(
        "setsid sh -c 'trap \"\" TERM HUP INT; (trap \"\" TERM; exec sh -c \"echo \\$\\$ > {0}.new; mv {0}.new {0}; while :; do sleep 0.05; done\") & exit 0' & while :; do sleep 0.05; done",
        file.display()
    )
}

async fn noted(file: &Path) -> i32 {
    wait::until_some(SOON, "the grandchild notes its process id", async || {
        fs::read_to_string(file).ok()?.trim().parse().ok()
    })
    .await
}

#[tokio::test]
async fn tells_how_a_program_ended() {
    let own = |end| Exit {
        end,
        cause: Cause::Own,
    };
    let mut child = start(shell("exit 7"));
    assert_eq!(ended(&mut child).await, own(End::Code(7)));
    let mut child = start(shell("kill -USR1 $$"));
    assert_eq!(ended(&mut child).await, own(End::Signal(10)));
    assert_eq!(End::Signal(10).shell_code(), 138);
    let mut child = start(Command::new("/no/such/program"));
    assert_eq!(ended(&mut child).await, own(End::Code(127)));
    let mut child = start(Command::new("/etc/passwd"));
    assert_eq!(ended(&mut child).await, own(End::Code(126)));
}

#[tokio::test]
async fn reads_both_streams_side_by_side() {
    // More than a pipe holds on each stream, in turns: whoever reads one after the other hangs.
    let script = "i=0; while [ $i -lt 4000 ]; do echo out-$i-................................................; \
                  echo err-$i-................................................ >&2; i=$((i+1)); done";
    let mut child = start(shell(script));
    let (mut out, mut err) = (0, 0);
    while let Some(line) = tokio::time::timeout(SOON, child.line()).await.unwrap() {
        match line.stream {
            Stream::Out => out += 1,
            Stream::Err => err += 1,
        }
    }
    assert_eq!((out, err), (4000, 4000));
    assert!(ended(&mut child).await.end.is_success());
}

#[tokio::test]
async fn passes_signals_on_and_lets_the_program_answer() {
    let mut child = start(shell(
        "trap 'exit 3' USR2; echo ready; while :; do sleep 0.05; done",
    ));
    assert_eq!(child.line().await.unwrap().text, "ready");
    child.signal(Signal::SIGUSR2 as i32).unwrap();
    let exit = ended(&mut child).await;
    assert_eq!((exit.end, exit.cause), (End::Code(3), Cause::Own));
}

#[tokio::test]
async fn stops_politely_then_for_certain() {
    let mut child = start(shell(
        "trap 'exit 4' TERM; echo ready; while :; do sleep 0.05; done",
    ));
    child.line().await.unwrap();
    child.stop(SOON).unwrap();
    let exit = ended(&mut child).await;
    assert_eq!((exit.end, exit.cause), (End::Code(4), Cause::Stopped));

    let mut child = start(shell(
        "trap '' TERM; echo ready; while :; do sleep 0.05; done",
    ));
    child.line().await.unwrap();
    child.stop(Duration::from_millis(100)).unwrap();
    let exit = ended(&mut child).await;
    assert_eq!((exit.end, exit.cause), (End::Signal(9), Cause::Stopped));
}

#[tokio::test]
async fn grandchildren_in_sessions_of_their_own_end_too() {
    let dir = Dir::new("supervise");
    let mut child = start(shell(&escaping(&dir)));
    let grandchild = noted(&dir.join("grandchild")).await;
    assert!(is_alive(grandchild));
    child.stop(Duration::from_millis(50)).unwrap();
    ended(&mut child).await;
    assert!(
        !is_alive(grandchild),
        "nothing is left when the end is told"
    );
}

#[tokio::test]
async fn what_a_program_left_behind_ends_with_it() {
    let dir = Dir::new("supervise");
    let file = dir.join("grandchild");
    let script = format!(
        "setsid sh -c 'echo $$ > {0}; exec sleep 60' & while [ ! -s {0} ]; do sleep 0.01; done; exit 5",
        file.display()
    );
    let mut child = start(shell(&script));
    let exit = ended(&mut child).await;
    assert_eq!((exit.end, exit.cause), (End::Code(5), Cause::Own));
    assert!(!is_alive(noted(&file).await));
}

#[tokio::test]
async fn the_deadline_moves_forward_with_orders_and_then_holds() {
    let start_at = System.boot();
    let command = shell("trap '' TERM; echo ready; while :; do sleep 0.01; done")
        .deadline(start_at.plus(2_000), start_at.plus(2_500));
    let mut child = start(command);
    child.line().await.unwrap();
    let (ask_at, kill_at) = (start_at.plus(3_000), start_at.plus(3_200));
    child.deadline(ask_at, kill_at).unwrap();
    let exit = ended(&mut child).await;
    let now = System.boot();
    assert_eq!((exit.end, exit.cause), (End::Signal(9), Cause::Deadline));
    assert!(now >= kill_at, "not before its time");
    assert!(now.since(kill_at) < 1_000, "{} ms late", now.since(kill_at));
}

#[tokio::test]
async fn the_tree_ends_with_its_supervisor() {
    let dir = Dir::new("supervise");
    let child = start(shell(&escaping(&dir)));
    let grandchild = noted(&dir.join("grandchild")).await;
    // Closes the guardian's pipe, as the kernel does when the supervisor dies.
    drop(child);
    wait::until(SOON, "the grandchild is gone", async || {
        !is_alive(grandchild)
    })
    .await;
}

#[tokio::test]
async fn a_killed_guardian_takes_the_program_with_it() {
    let mut child = start(shell("while :; do sleep 0.05; done"));
    let pid = child.started().await.unwrap().cast_signed();
    kill(
        Pid::from_raw(child.guardian_pid().cast_signed()),
        Signal::SIGKILL,
    )
    .unwrap();
    let exit = ended(&mut child).await;
    assert_eq!(exit.cause, Cause::GuardianLost);
    wait::until(SOON, "the program is gone", async || !is_alive(pid)).await;
}

#[tokio::test]
async fn what_a_killed_guardian_leaves_behind_ends_with_its_cgroup() {
    let dir = Dir::new("supervise");
    let mut child = start(shell(&escaping(&dir)));
    let grandchild = noted(&dir.join("grandchild")).await;
    let cgroup = fs::read_to_string(format!("/proc/{grandchild}/cgroup")).unwrap();
    if !cgroup.contains("/leasehold-") {
        eprintln!("no cgroup can be made here: nothing is claimed");
        kill(Pid::from_raw(grandchild), Signal::SIGKILL).unwrap();
        return;
    }
    kill(
        Pid::from_raw(child.guardian_pid().cast_signed()),
        Signal::SIGKILL,
    )
    .unwrap();
    assert_eq!(ended(&mut child).await.cause, Cause::GuardianLost);
    wait::until(SOON, "the grandchild is gone", async || {
        !is_alive(grandchild)
    })
    .await;
}

#[tokio::test]
async fn bytes_come_as_they_are_beside_lines_of_the_other_stream() {
    use tokio::io::AsyncReadExt as _;
    let script = "printf 'a\\000\\377\\nb'; echo note >&2";
    let mut child = start(shell(script).output(Output::Bytes));
    let mut stdout = child.take_stdout().expect("bytes were asked for");
    assert!(child.take_stdout().is_none(), "only once");
    let mut bytes = Vec::new();
    stdout.read_to_end(&mut bytes).await.expect("readable");
    assert_eq!(bytes, b"a\0\xff\nb");
    let line = child.line().await.expect("a line");
    assert_eq!((line.stream, line.text.as_str()), (Stream::Err, "note"));
    assert_eq!(child.line().await, None);
    assert_eq!(ended(&mut child).await.end, End::Code(0));
}
