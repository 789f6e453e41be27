//! `leasehold run` in a network of its own that is cut from its server: the program never writes a
//! moment past its holder's deadline. The program itself writes down when it ran.

use std::path::PathBuf;

use leasehold_testkit::{Child, Dir, Namespace, Namespaces, Program, wait};

use crate::cli_support::{
    SOON, boot_ms, escaping_writer, plain, read_log, silent, writer, writing,
};

const PORT: u16 = 8740;
/// Short enough for a test, long enough for a busy machine.
const TTL_MS: u64 = 5_000;
/// A tenth of the ttl: how much earlier than the authority the holder stops (L10).
const MARGIN_MS: u64 = 500;

/// The server on one side, the program on the other.
struct Case {
    network: Namespaces,
    dir: Dir,
    _server: Child,
}

impl Case {
    async fn start() -> Self {
        let network = Namespaces::create().await.expect("network namespaces");
        let dir = Dir::new("run-network");
        let listen = format!("0.0.0.0:{PORT}");
        let mut server = plain(&["serve", "--log", "warn", "--insecure-listen"])
            .args(["--listen", &listen, "--data-dir"])
            .arg(dir.join("data"))
            .in_namespace(network.a())
            .spawn();
        server.wait_for_line("listening on", SOON).await;
        Self {
            network,
            dir,
            _server: server,
        }
    }

    fn log(&self) -> PathBuf {
        self.dir.join("log")
    }

    /// The command line on one side.
    fn cli(&self, side: &Namespace, arguments: &[&str]) -> Program {
        let server = format!("http://{}:{PORT}", self.network.a().address());
        plain(arguments)
            .env("LEASEHOLD_URL", server)
            .env("LEASEHOLD_DATA_DIR", self.dir.join("data"))
            .in_namespace(side)
    }

    /// Starts a program on the far side and lets its lease be renewed at least twice.
    async fn run(&self, program: Vec<String>) -> Child {
        let words = [
            "run",
            "--log",
            "leasehold=debug,error",
            "--ttl",
            "5s",
            "job:x",
            "--",
        ];
        let mut run = self.cli(self.network.b(), &words).args(program).spawn();
        writing(&self.log()).await;
        for _ in 0..2 {
            let position = run.position();
            run.wait_for_line_from(position, "stops_at_boot_ms", SOON)
                .await;
        }
        run
    }

    /// When the authority lets others have the key, on the machine's clock of deadlines.
    async fn expires_at_boot_ms(&self) -> u64 {
        let get = self.cli(self.network.a(), &["lease", "get", "job:x", "--json"]);
        let lease = get.run().await.expect("it is held");
        let lease: leasehold_api::Lease = serde_json::from_str(&lease).expect("a lease");
        let now = std::time::UNIX_EPOCH.elapsed().expect("after 1970");
        let unix_ms = u64::try_from(now.as_millis()).expect("fits");
        lease.expires_at.0.get() - (unix_ms - boot_ms())
    }
}

/// The holder's own deadline, as the client last told it.
fn deadline_ms(run: &Child) -> u64 {
    let lines = run.lines();
    let reported = lines.iter().rev().find_map(|line| {
        let (_, after) = line.split_once("stops_at_boot_ms=")?;
        after.split_whitespace().next()?.parse().ok()
    });
    reported.expect("the client tells its deadline")
}

#[tokio::test]
async fn l10_a_program_that_is_cut_off_ends_before_its_deadline_and_before_its_successor_begins() {
    let case = Case::start().await;
    let mut run = case.run(escaping_writer(&case.log())).await;
    case.network.cut().await.expect("cut");
    let expires_ms = case.expires_at_boot_ms().await;
    // Somebody on the server's side waits for the key.
    let next = [
        "run", "--ttl", "5s", "--wait", "20s", "job:x", "--", "timeout", "-s", "KILL", "0.3",
    ];
    let next = self_ended(case.cli(case.network.a(), &next).args(writer(&case.log()))).await;
    assert_eq!(next, Some(137));
    assert_eq!(run.wait(SOON).await.code(), Some(79), "{}", run.tail());

    let wrote = read_log(&case.log());
    let (first, second) = (wrote[0].token, wrote[wrote.len() - 1].token);
    assert!(second > first, "a new token");
    let last_ms = |token| {
        let lines = wrote.iter().filter(|line| line.token == token);
        lines.map(|line| line.at_ms).max().expect("it wrote")
    };
    let deadline_ms = deadline_ms(&run);
    let stopped_ms = last_ms(first);
    println!(
        "stopped {} ms before its deadline",
        deadline_ms.saturating_sub(stopped_ms)
    );
    assert!(
        stopped_ms < deadline_ms,
        "{} ms too late",
        stopped_ms - deadline_ms
    );
    assert!(
        stopped_ms + MARGIN_MS <= expires_ms,
        "the authority saw it end first"
    );
    assert!(
        wrote.is_sorted_by_key(|line| line.token),
        "never two at once"
    );
    assert!(wrote.is_sorted_by_key(|line| line.at_ms));
}

async fn self_ended(program: Program) -> Option<i32> {
    program.spawn().wait(SOON).await.code()
}

#[tokio::test]
async fn l10_a_program_whose_answers_are_lost_ends_before_its_deadline() {
    let case = Case::start().await;
    let mut run = case.run(writer(&case.log())).await;
    // Requests still arrive, so the authority believes that all is well for longer than the holder.
    case.network.cut_a_to_b().await.expect("cut");
    assert_eq!(run.wait(SOON).await.code(), Some(79), "{}", run.tail());
    let last_ms = silent(&case.log(), SOON).await.at_ms;
    let deadline_ms = deadline_ms(&run);
    assert!(
        last_ms < deadline_ms,
        "{} ms too late",
        last_ms - deadline_ms
    );
}

#[tokio::test]
async fn l11_a_program_that_is_cut_off_for_a_moment_goes_on_under_the_same_token() {
    let case = Case::start().await;
    let mut run = case.run(writer(&case.log())).await;
    case.network.cut().await.expect("cut");
    let from = boot_ms();
    wait::until(SOON, "a part of the ttl passes", async || {
        boot_ms() > from + TTL_MS / 4
    })
    .await;
    case.network.heal().await.expect("healed");
    wait::until(SOON, "it still writes two ttls later", async || {
        let last = read_log(&case.log()).last().copied();
        last.is_some_and(|line| line.at_ms > from + 2 * TTL_MS)
    })
    .await;
    let mut tokens: Vec<u64> = read_log(&case.log())
        .iter()
        .map(|line| line.token)
        .collect();
    tokens.dedup();
    assert_eq!(tokens.len(), 1, "under the same token");
    run.sigterm();
    run.kill9();
}
