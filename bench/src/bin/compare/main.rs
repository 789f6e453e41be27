//! The same work on Redis, etcd, PostgreSQL and Leasehold, in one run and in turns, beside what the
//! machine itself can do: a table here, and raw numbers, plots and a page of aims in `target/bench`.

mod aims;
mod peers;
mod plot;
mod results;
mod work;

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result};
use clap::Parser;
use leasehold_bench::rounds::Pace;
use peers::{echo, holder};
use results::Results;

/// Compares Leasehold with Redis, etcd and PostgreSQL on this machine.
#[derive(Parser)]
struct Arguments {
    /// How long it measures: about 2, 15 or 40 minutes.
    #[arg(long, value_enum, default_value_t = Length::Full)]
    length: Length,
    /// Which work, W1 to W9; all of it when absent.
    #[arg(long, value_delimiter = ',', value_parser = work_name)]
    only: Vec<String>,
    /// Only sides whose name contains this, or one of several; all of them when absent.
    #[arg(long)]
    side: Vec<String>,
    /// W1 with so many clients only; with several numbers of them when absent.
    #[arg(long, value_delimiter = ',')]
    clients: Vec<usize>,
    /// Print the page of aims and tables as Markdown, which is also written beside the numbers.
    #[arg(long)]
    markdown: bool,
    /// Where numbers and plots go.
    #[arg(long, default_value = "target/bench")]
    out: PathBuf,
    /// Be one of the bare servers instead.
    #[arg(long, hide = true, requires = "listen")]
    serve: Option<echo::Kind>,
    /// Be a process that holds a lock instead.
    #[arg(long, hide = true, requires = "listen")]
    hold: Option<holder::Way>,
    /// Which lock.
    #[arg(long, hide = true, default_value_t = 0)]
    number: usize,
    /// Where a bare server listens, or the server of a holder.
    #[arg(long, hide = true)]
    listen: Option<SocketAddr>,
}

fn work_name(name: &str) -> Result<String, String> {
    let name = name.to_ascii_uppercase();
    if work::ALL.contains(&name.as_str()) {
        Ok(name)
    } else {
        Err(format!("one of {}", work::ALL.join(", ")))
    }
}

/// How long it measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Length {
    Quick,
    Middle,
    Full,
}

impl Length {
    /// One of three, by the length.
    fn pick<T>(self, quick: T, middle: T, full: T) -> T {
        match self {
            Self::Quick => quick,
            Self::Middle => middle,
            Self::Full => full,
        }
    }

    fn pace(self) -> Pace {
        Pace {
            round: Duration::from_millis(self.pick(100, 700, 3_000)),
            rounds: 3,
        }
    }
}

/// What a work is given.
struct Plan {
    length: Length,
    sides: Vec<String>,
    clients: Vec<usize>,
}

impl Plan {
    /// Whether this side takes part.
    fn wants(&self, side: &str) -> bool {
        self.sides.is_empty()
            || self
                .sides
                .iter()
                .any(|part| side.to_lowercase().contains(&part.to_lowercase()))
    }
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if let (Some(kind), Some(address)) = (arguments.serve, arguments.listen) {
        return echo::serve(kind, address);
    }
    if let (Some(way), Some(address)) = (arguments.hold, arguments.listen) {
        return holder::hold(way, address, arguments.number);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(run(arguments))
}

async fn run(arguments: Arguments) -> Result<()> {
    let plan = Plan {
        length: arguments.length,
        sides: arguments.side,
        clients: arguments.clients,
    };
    let mut results = Results::default();
    for name in work::ALL {
        if !arguments.only.is_empty() && !arguments.only.iter().any(|only| only == name) {
            continue;
        }
        let began = tokio::time::Instant::now();
        eprintln!("{name}: {}", work::title(name));
        if let Err(error) = work::run(name, &plan, &mut results).await {
            // The others are still worth having.
            eprintln!("{name} failed: {error:#}");
        }
        eprintln!("{name}: {:.0} s", began.elapsed().as_secs_f64());
    }
    let out = &arguments.out;
    std::fs::create_dir_all(out).with_context(|| format!("make {}", out.display()))?;
    std::fs::write(out.join("results.json"), results.json()?)?;
    let aims = aims::judge(&results);
    let page = results.markdown(&aims);
    std::fs::write(out.join("results.md"), &page)?;
    plot::write_all(&results, out)?;
    if arguments.markdown {
        print!("{page}");
    } else {
        println!("{}", results.tables());
        println!("{}", aims::table(&aims));
    }
    eprintln!("numbers, plots and the page of aims: {}", out.display());
    Ok(())
}
