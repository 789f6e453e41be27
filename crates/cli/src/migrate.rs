//! `leasehold migrate`: moves everything from one store to another.

use std::process::ExitCode;

use leasehold_store::{
    StoreUrl, UrlError,
    migrate::{self, Error, Options, Report},
};

use crate::{
    exit::{Exit, Failure, Outcome},
    print::{self, Format},
    progress::Bar,
};

/// Move leases, tokens, records and history from one store to another
///
/// Live leases keep their tokens and the time they have left, so that their holders renew them at the
/// new store as if nothing had happened. No token is issued twice: a target that has issued larger ones
/// is refused. Stop the servers first; no server starts on a store that is being moved or was moved.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  leasehold migrate --from embedded:/data --to postgres://db/lh --dry-run
  leasehold migrate --from embedded:/data --to postgres://db/lh
  leasehold migrate --from redis://cache --to postgres://db/lh --json

Interrupted? Run the same command again to finish it, or with --abort to abandon it and serve the
source again. API keys move with everything else.")]
pub struct Arguments {
    /// The store to move from: embedded:DIR, postgres://…, redis://…
    #[arg(long, value_name = "URL")]
    from: String,
    /// The store to move to
    #[arg(long, value_name = "URL")]
    to: String,
    /// Only show what would be moved
    #[arg(long)]
    dry_run: bool,
    /// Overwrite what the target holds of its own, unless a token would go back
    #[arg(long)]
    replace: bool,
    /// Move although servers still use the source: from then on they refuse every change
    #[arg(long)]
    cut_off: bool,
    /// Abandon an unfinished move: empty the target and unlock the source
    #[arg(long, conflicts_with_all = ["dry_run", "replace", "cut_off"])]
    abort: bool,
    #[command(flatten)]
    format: Format,
}

/// Moves, looks, or calls it off. The report goes to standard output, progress to standard error.
pub async fn run(arguments: Arguments) -> Outcome {
    let Arguments {
        from,
        to,
        dry_run,
        replace,
        cut_off,
        abort,
        format,
    } = arguments;
    let (from, to) = (parse("from", &from)?, parse("to", &to)?);
    if abort {
        migrate::abort(&from, &to)
            .await
            .map_err(|error| failed(&error))?;
        eprintln!("called off: {from} can be served again");
        return Ok(ExitCode::SUCCESS);
    }
    let options = Options {
        dry_run,
        replace,
        cut_off,
    };
    let mut bar = Bar::default();
    let moved = migrate::migrate(&from, &to, options, &mut |progress| {
        bar.show(progress.what.as_str(), progress.done, progress.of);
    })
    .await;
    bar.end();
    let report = moved.map_err(|error| failed(&error))?;
    if format.json {
        print::json(&report)?;
    } else {
        show(&report)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Read here and not by the command line's own parser, which would repeat a password in its message.
fn parse(name: &str, url: &str) -> Result<StoreUrl, Failure> {
    url.parse()
        .map_err(|error: UrlError| Failure::new(Exit::Usage, format!("--{name}: {error}")))
}

fn show(report: &Report) -> Result<(), Failure> {
    let mut table = print::table(["WHAT", "MOVED", "REPLACED"]);
    let [keys, records, events] = report.replaced;
    for (what, moved, replaced) in [
        ("keys with their tokens", report.keys, keys.to_string()),
        ("  of them with a live lease", report.leases, String::new()),
        ("records", report.records, records.to_string()),
        ("events", report.events, events.to_string()),
        ("newest revision", report.revision, String::new()),
        ("tokens begin above", report.floor, String::new()),
    ] {
        table.add_row([what.to_owned(), moved.to_string(), replaced]);
    }
    print::show(&table, "nothing")?;
    if report.foreign > 0 {
        eprintln!(
            "note: {} keys are held by other programs in Redis itself; they have no token and stay there",
            report.foreign
        );
    }
    if report.dry_run {
        eprintln!("nothing was changed: leave out --dry-run to move");
    } else {
        eprintln!("moved: start the servers with --store {}", report.to);
    }
    Ok(())
}

fn failed(error: &Error) -> Failure {
    let hint = match error {
        Error::Store(..) => Some(
            "the move is not finished: the same command again goes on with it, --abort calls it off",
        ),
        Error::AtWork { side, .. } if *side == migrate::Side::Source => {
            Some("--cut-off moves anyway; the servers then refuse every change")
        }
        Error::NotEmpty { .. } => {
            Some("is it the right one? --replace overwrites it, unless a token would go back")
        }
        _ => None,
    };
    let exit = match error {
        Error::Memory | Error::Same => Exit::Usage,
        Error::NoStore | Error::NothingToAbort => Exit::NotFound,
        Error::Open(_, leasehold_store::OpenError::Store(error)) | Error::Store(_, error) => {
            Failure::from(error.clone()).exit
        }
        Error::Open(..) => Exit::Failed,
        _ => Exit::CheckFailed,
    };
    let failure = Failure::new(exit, error);
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}
