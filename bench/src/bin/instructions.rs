//! How many instructions an operation takes, counted by callgrind: the same on an idle machine and on a busy
//! one, so that what became more expensive shows on either.
//!
//! Each part runs twice, the second time with twice as many operations; the difference is what they cost
//! without the start and the end. Beside it stands what is noted in `bench/instructions.tsv`.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::Path,
    process::{Command as Process, Stdio},
    sync::Arc,
};

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Parser, ValueEnum};
use comfy_table::Table;
use lease::{
    Acquire, Acquired, Authority, Clock as _, Command, Holder, Key, LeaseRef, Outcome, Renew,
    Renewal, Renewals, Ttl,
    engine::{self, Decision, Effects, Engine},
};
use leasehold_api::{
    paths,
    stream::{Batch, Down, Encoding, Held, Payload, Up, read_down, read_up},
};
// Its allocator.
use leasehold_bench as _;
use leasehold_clock::System;
use leasehold_store::embedded::{Embedded, Options};
use leasehold_testkit::{Dir, port};

/// Where the noted figures are.
const NOTED: &str = "bench/instructions.tsv";
/// What differs by less is not worth a word: hash tables grow at other moments, threads meet elsewhere.
const TOLERANCE: f64 = 0.05;
const TOKEN: &str = "a-token-for-the-length-of-this-measurement";

/// Counts instructions per operation and compares them with the noted ones.
#[derive(Parser)]
struct Arguments {
    /// Only these parts.
    #[arg(long, value_delimiter = ',')]
    only: Vec<Part>,
    /// Note the figures instead of comparing them.
    #[arg(long)]
    write: bool,
    /// Do one part's operations instead of counting.
    #[arg(long, hide = true, requires = "count")]
    part: Option<Part>,
    #[arg(long, hide = true)]
    count: Option<usize>,
}

/// What is counted. One operation of a cycle is an acquire and a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    EngineCycle,
    EngineRenew,
    EngineKeep,
    StreamFrames,
    MemoryCycle,
    DurableCycle,
    HttpMemoryCycle,
    HttpDurableCycle,
}

impl Part {
    fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    fn operations(self) -> usize {
        match self {
            Self::EngineCycle | Self::EngineRenew | Self::StreamFrames => 20_000,
            Self::EngineKeep => 200,
            Self::MemoryCycle | Self::DurableCycle => 2_000,
            Self::HttpMemoryCycle | Self::HttpDurableCycle => 1_000,
        }
    }
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if let (Some(part), Some(count)) = (arguments.part, arguments.count) {
        return perform(part, count);
    }
    let noted = noted()?;
    let mut counted = noted.clone();
    let mut table = Table::new();
    table.set_header(["operation", "instructions", "noted", "change"]);
    let mut is_worse = false;
    for part in Part::value_variants() {
        if !arguments.only.is_empty() && !arguments.only.contains(part) {
            continue;
        }
        let name = part.name();
        eprintln!("{name} …");
        let now = measure(*part).with_context(|| name.clone())?;
        let before = noted.get(&name).copied();
        let change = before.map(|before| now as f64 / before as f64 - 1.0);
        is_worse |= change.is_some_and(|change| change > TOLERANCE);
        table.add_row([
            name.clone(),
            now.to_string(),
            before.map_or_else(String::new, |before| before.to_string()),
            change.map_or_else(String::new, |change| format!("{:+.1} %", change * 100.0)),
        ]);
        counted.insert(name, now);
    }
    println!("{table}");
    if arguments.write {
        let lines = counted
            .iter()
            .map(|(name, count)| format!("{name}\t{count}\n"));
        std::fs::write(NOTED, lines.collect::<String>())?;
    } else {
        ensure!(
            !is_worse,
            "more instructions than noted: mend it, or note them with --write and say why"
        );
    }
    Ok(())
}

fn noted() -> Result<BTreeMap<String, u64>> {
    let text = match std::fs::read_to_string(NOTED) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error).context(NOTED),
    };
    text.lines()
        .map(|line| {
            let (name, count) = line.split_once('\t').context("a line without a tab")?;
            Ok((name.to_owned(), count.parse()?))
        })
        .collect::<Result<_>>()
        .context(NOTED)
}

/// Instructions per operation.
fn measure(part: Part) -> Result<u64> {
    let operations = part.operations();
    let store = match part {
        Part::HttpMemoryCycle => Some("memory:"),
        Part::HttpDurableCycle => Some(""),
        _ => None,
    };
    let count = |operations: usize| match store {
        Some(store) => served(store, operations),
        None => inside(part, operations),
    };
    let (once, twice) = (count(operations)?, count(2 * operations)?);
    Ok(twice.saturating_sub(once) / operations as u64)
}

fn callgrind(program: &Path) -> Process {
    let mut process = Process::new("valgrind");
    process
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .stderr(Stdio::piped());
    process
}

/// What callgrind says at its end.
fn collected(report: &str) -> Result<u64> {
    let line = report
        .lines()
        .find_map(|line| line.split_once("Collected :"));
    let (_, count) = line.with_context(|| format!("callgrind counted nothing: {report}"))?;
    Ok(count.trim().parse()?)
}

/// The instructions of this program doing a part.
fn inside(part: Part, operations: usize) -> Result<u64> {
    let output = callgrind(&std::env::current_exe()?)
        .args(["--part", &part.name(), "--count", &operations.to_string()])
        .output()
        .context("valgrind")?;
    let report = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{report}");
    collected(&report)
}

/// The instructions of the server while somebody acquires and releases over HTTP.
fn served(store: &str, operations: usize) -> Result<u64> {
    let binary = std::env::current_exe()?.with_file_name("leasehold");
    ensure!(
        binary.is_file(),
        "build the server first: cargo build --release -p leasehold"
    );
    let dir = Dir::new("bench-instructions");
    let address = SocketAddr::from(([127, 0, 0, 1], port::free()));
    let mut process = callgrind(&binary);
    process
        .args(["serve", "--log", "warn", "--listen", &address.to_string()])
        .arg("--data-dir")
        .arg(dir.join("data"))
        .env(
            "LEASEHOLD_TOKENS",
            format!(r#"[{{"token":"{TOKEN}","scopes":["leases:admin"]}}]"#),
        )
        .env("LEASEHOLD_SESSIONS_WORKER", "false")
        .stdout(Stdio::piped());
    if !store.is_empty() {
        process.args(["--store", store]);
    }
    let mut server = process.spawn().context("valgrind")?;
    let mut report = server.stderr.take().context("no stderr")?;
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        report.read_to_string(&mut text).map(|_| text)
    });
    let mut lines = BufReader::new(server.stdout.take().context("no stdout")?).lines();
    let is_up = lines.any(|line| line.is_ok_and(|line| line.contains("listening on")));
    // Whatever else it says must not fill the pipe.
    std::thread::spawn(move || lines.for_each(drop));
    let driven = if is_up {
        drive(address, operations)
    } else {
        Ok(())
    };
    let id = server.id().to_string();
    Process::new("kill").args(["-TERM", &id]).status()?;
    server.wait()?;
    let report = reader.join().ok().context("the report was not read")??;
    ensure!(is_up, "the server did not start: {report}");
    driven?;
    collected(&report)
}

fn drive(address: SocketAddr, operations: usize) -> Result<()> {
    let mut http = Http {
        stream: BufReader::new(TcpStream::connect(address)?),
    };
    http.stream.get_ref().set_nodelay(true)?;
    for number in 0..operations {
        let body = format!(
            r#"{{"kind":"job","id":"{}","holder":"client","incarnation":"1","ttl_seconds":60}}"#,
            number % 1_000
        );
        let answer = http.call("POST", paths::ACQUIRE, &body)?;
        let answer: serde_json::Value = serde_json::from_str(&answer)?;
        let id = answer["lease_id"].as_str().context("no lease")?;
        http.call("DELETE", &format!("{}/{id}/release", paths::LEASES), "")?;
    }
    Ok(())
}

/// One kept connection.
struct Http {
    stream: BufReader<TcpStream>,
}

impl Http {
    fn call(&mut self, method: &str, path: &str, body: &str) -> Result<String> {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {TOKEN}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        self.stream.get_mut().write_all(request.as_bytes())?;
        let (mut head, mut length) = (String::new(), 0);
        loop {
            let start = head.len();
            self.stream.read_line(&mut head)?;
            let line = head[start..].trim_end();
            if line.is_empty() {
                break;
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse()?;
            }
        }
        let mut answer = vec![0; length];
        self.stream.read_exact(&mut answer)?;
        let answer = String::from_utf8(answer)?;
        ensure!(head.starts_with("HTTP/1.1 200"), "{head}{answer}");
        Ok(answer)
    }
}

/// A part's operations, in this process.
fn perform(part: Part, count: usize) -> Result<()> {
    match part {
        Part::EngineCycle => engine_cycles(count),
        Part::EngineRenew => engine_renewals(count, 1),
        Part::EngineKeep => engine_renewals(count, 1_000),
        Part::StreamFrames => stream_frames(count),
        Part::MemoryCycle | Part::DurableCycle => {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            runtime.block_on(store_cycles(part, count))
        }
        Part::HttpMemoryCycle | Part::HttpDurableCycle => bail!("that is the server's"),
    }
}

fn keys() -> Result<Vec<Key>> {
    let keys = (0..1_000).map(|number: usize| Key::new("job", &number.to_string()));
    Ok(keys.collect::<Result<_, _>>()?)
}

fn request(key: &Key, holder: &Holder) -> Result<Acquire> {
    let ttl = Ttl::from_secs(60)?;
    Ok(Acquire::one(key.clone(), holder.clone(), ttl))
}

fn granted(engine: &mut Engine, effects: &mut Effects, request: Acquire) -> Result<LeaseRef> {
    match engine.apply(System.unix(), Command::Acquire(request), effects)? {
        Decision::Now(Outcome::Acquired(Acquired::Granted { leases, .. })) => {
            Ok(LeaseRef::from(&leases[0]))
        }
        other => bail!("not granted: {other:?}"),
    }
}

fn engine_cycles(count: usize) -> Result<()> {
    let mut engine = Engine::new(engine::Options::default());
    let mut effects = Effects::default();
    let (keys, holder) = (keys()?, Holder::new("bench", "1")?);
    for key in keys.iter().cycle().take(count) {
        let lease = granted(&mut engine, &mut effects, request(key, &holder)?)?;
        engine.apply(System.unix(), Command::Release(lease), &mut effects)?;
        effects.clear();
    }
    Ok(())
}

/// One lease after the other, or so many with one answer.
fn engine_renewals(count: usize, leases: usize) -> Result<()> {
    let mut engine = Engine::new(engine::Options::default());
    engine.watch_renewals(false);
    let mut effects = Effects::default();
    let holder = Holder::new("bench", "1")?;
    let mut held = Vec::new();
    for key in keys()?.iter().take(leases) {
        held.push(granted(&mut engine, &mut effects, request(key, &holder)?)?);
    }
    for _ in 0..count {
        let command = if let [lease] = held.as_slice() {
            let renewal = Renewal {
                key: lease.key.clone(),
                token: lease.token,
                ttl: None,
                stats: None,
            };
            Command::Renew(Renew {
                holder: holder.clone(),
                leases: Renewals::These(vec![renewal]),
            })
        } else {
            Command::Keep(holder.clone())
        };
        engine.apply(System.unix(), command, &mut effects)?;
        effects.clear();
    }
    Ok(())
}

/// What one cycle over a stream writes and reads, at both ends.
fn stream_frames(count: usize) -> Result<()> {
    let mut engine = Engine::new(engine::Options::default());
    let mut effects = Effects::default();
    let holder = Holder::new("bench", "1")?;
    let (keys, encoding) = (keys()?, Encoding::Binary);
    let asked = request(&keys[0], &holder)?;
    let command = Command::Acquire(asked.clone());
    let Decision::Now(Outcome::Acquired(acquired)) =
        engine.apply(System.unix(), command, &mut effects)?
    else {
        bail!("it waits")
    };
    let Acquired::Granted { leases, .. } = &acquired else {
        bail!("refused")
    };
    let held = Held {
        key: keys[0].clone(),
        token: leases[0].token,
    };
    let ups = [Up::Acquire(Box::new(asked)), Up::Release(held)];
    let downs = [Down::Acquired(acquired.clone()), Down::Released(true)];
    let mut batch = Batch::new(encoding, holder.clone());
    let sent = |batch: &mut Batch| match batch.take() {
        Some(Payload::Binary(bytes)) => Ok(bytes),
        _ => bail!("not binary"),
    };
    for _ in 0..count {
        for (up, down) in ups.iter().zip(&downs) {
            batch.up(1, up);
            let frames = read_up(encoding, &sent(&mut batch)?, &holder);
            ensure!(frames.len() == 1 && frames[0].is_ok(), "{frames:?}");
            batch.down(1, down);
            let frames = read_down(encoding, &sent(&mut batch)?, &holder);
            ensure!(frames.len() == 1 && frames[0].is_ok(), "{frames:?}");
        }
    }
    Ok(())
}

async fn store_cycles(part: Part, count: usize) -> Result<()> {
    let dir = Dir::new("bench-instructions");
    let options = Options {
        dir: dir.join("data"),
        ..Options::default()
    };
    let store = if part == Part::MemoryCycle {
        Embedded::memory(options, Arc::new(System))?
    } else {
        Embedded::open(options, Arc::new(System)).await?
    };
    let (keys, holder) = (keys()?, Holder::new("bench", "1")?);
    for key in keys.iter().cycle().take(count) {
        let lease = match store.acquire(request(key, &holder)?).await? {
            Acquired::Granted { leases, .. } => LeaseRef::from(&leases[0]),
            Acquired::Refused(refusal) => bail!("{refusal:?}"),
        };
        ensure!(store.release(lease).await?, "not released");
    }
    store.close().await?;
    Ok(())
}
