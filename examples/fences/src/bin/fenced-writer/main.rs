//! Holds a key and writes a document when told to, on standard input. The writer of the tests: it is
//! paused between its look at the lease and its write.
//!
//! ```text
//! check          says whether the lease is trusted at this moment
//! write TEXT     writes, without another look: no program can look and write in one step
//! ```

mod sink;

use std::{io::BufRead as _, path::PathBuf, sync::Arc, thread};

use anyhow::Context as _;
use clap::Parser;
use lease::{Key, Ttl};
use leasehold_client::{Client, Guard, Keeper, Options, Remote, keeper, new_holder};
use sink::Sink;
use tokio::sync::mpsc;

/// How long to wait for a key that somebody else has.
const WAIT_MS: u64 = 60_000;

#[derive(Parser)]
struct Arguments {
    /// The server that hands out leases.
    #[arg(long)]
    server: String,
    /// A file that holds the credential.
    #[arg(long)]
    token_file: PathBuf,
    /// The name of this holder.
    #[arg(long)]
    name: String,
    /// What to own.
    #[arg(long)]
    key: Key,
    /// How long a grant or a renewal lasts.
    #[arg(long, default_value_t = 10_000)]
    ttl_ms: u64,
    /// Where to write: postgres://…, redis://… or http://…
    #[arg(long)]
    sink: String,
    /// Write past the fence, to see what happens then.
    #[arg(long)]
    no_fence: bool,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let token = std::fs::read_to_string(&arguments.token_file).context("read the credential")?;
    let client = Client::new(Options::new(&arguments.server).token(token.trim()))?;
    let keeper = Keeper::start(
        Arc::new(Remote::new(client)),
        new_holder(&arguments.name)?,
        Arc::new(leasehold_clock::System),
        keeper::Options::default(),
    );
    let mut request = keeper.request(arguments.key, Ttl::from_millis(arguments.ttl_ms)?);
    request.wait_ms = WAIT_MS;
    let guards = keeper.acquire(request).await?;
    let guard = guards.first().context("granted without a lease")?;
    println!("granted {}", guard.token());
    let sink = Sink::new(&arguments.sink, !arguments.no_fence)?;
    obey(guard, &sink).await;
    Ok(())
}

async fn obey(guard: &Guard, sink: &Sink) {
    let (sender, mut lines) = mpsc::channel(1);
    // Ends with the process: reading from a terminal cannot be broken off.
    thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if sender.blocking_send(line).is_err() {
                break;
            }
        }
    });
    while let Some(line) = lines.recv().await {
        match line.split_once(' ') {
            None if line == "check" => {
                let word = if guard.is_owned() { "owned" } else { "lost" };
                println!("{word} {}", guard.token());
            }
            Some(("write", value)) => match sink.write(guard.key(), guard.token(), value).await {
                Ok(()) => println!("written {value}"),
                Err(leasehold_fences::WriteError::Stale(why)) => println!("refused {why}"),
                Err(error) => println!("failed {error}"),
            },
            _ => println!("unknown {line}"),
        }
    }
}
