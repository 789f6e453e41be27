//! `leasehold run`: a program that runs only while it owns its key.

mod course;
mod plan;
mod signals;

use std::{
    collections::BTreeMap, ffi::OsString, io::Write as _, net::SocketAddr, process::ExitCode,
    sync::Arc,
};

use lease::{Acquire, Authority, Clock, Key, Labels, OnOutage, Ttl};
use leasehold_agents::supervise::{self, Command, Input, Job, Launcher, Output};
use leasehold_client::{Guard, Keeper, PeerList, answer_peers, keeper};
use leasehold_clock::System;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use crate::{
    config::{self, Config, Period, check_timing, parse_ttl, wrong},
    connect,
    exit::{Exit, Failure, Outcome},
    holder,
    lease::{parse_label, parse_policy, refused},
    waiting,
};
use plan::Plan;
use signals::Signals;

/// How long a release may take before it is left to the ttl.
const RELEASE_LIMIT_MS: u64 = 3_000;
/// Between two attempts to reach a server that is away, while there is time to wait.
const RETRY_MS: u64 = 200;

/// Run a program only while this holder owns a key
///
/// The lease is renewed while the program runs and released immediately when it ends. When the lease
/// cannot be kept, the program and everything it started is stopped before the lease runs out:
/// SIGTERM first, SIGKILL in time. A guardian process of its own sees to that, so it also holds when
/// `leasehold` itself is paused, hung or killed.
///
/// The program finds the fencing token in LEASEHOLD_FENCE and the key in LEASEHOLD_KEY. It should
/// send the token along with everything it writes elsewhere, so that receivers can reject a stale holder.
#[derive(clap::Args, Debug)]
#[command(after_long_help = format!("\
Examples:
  leasehold run job:nightly -- ./backup.sh
  leasehold run --wait 1m camera:7 -- ffmpeg -i rtsp://… out.mp4
  leasehold run --on-outage continue:10m --peer west:7421 feed:a -- ./feed
  leasehold run --on-outage hold:5m site:7 -- sh -c 'echo $LEASEHOLD_FENCE'

Signals sent to leasehold (INT, TERM, HUP, QUIT, USR1, USR2) are passed on to the program. What the
program leaves running in the background is ended with it.

On a terminal, Ctrl-Z stops the program and returns to the shell; fg and bg continue it. Nothing
renews the lease meanwhile: a program that is still stopped at its deadline is ended, and fg exits
with 79. When the terminal hangs up, the program is ended and the lease released, unless leasehold
was started with nohup.

{}", Exit::HELP), after_help = "\
Example:
  leasehold run --ttl 10s --wait 1m job:nightly -- ./backup.sh

Exits with the program's own code, 128+n for signal n, 75 if another holder has the key, or 79 if
the lease was lost; see --help.")]
pub struct Arguments {
    /// The key to own
    #[arg(value_name = "KIND:ID")]
    key: Key,
    /// How long the lease lasts unless renewed [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = parse_ttl)]
    ttl: Option<Period>,
    /// Wait up to this long if somebody has the key or the server cannot be reached
    #[arg(long, value_name = "TIME", default_value = "0s")]
    wait: Period,
    /// What happens while the server cannot be reached: fail_closed (stop in time), hold:TIME (go on
    /// for that long; nobody else gets the key) or continue:TIME (go on, though another may get it)
    #[arg(long, value_name = "POLICY", value_parser = parse_policy, default_value = "fail_closed")]
    on_outage: OnOutage,
    /// Another holder, HOST:PORT, that answers with --peer-listen: asked before `continue` goes on.
    /// One that reaches the server shows that this holder is the one cut off, and stops it
    #[arg(long = "peer", value_name = "ADDR")]
    peers: Vec<String>,
    /// Answer other holders, at this address, whether this one reaches the server
    #[arg(long, value_name = "ADDR")]
    peer_listen: Option<SocketAddr>,
    /// The holder's name [default: cli@HOST]
    #[arg(long, value_name = "NAME")]
    holder: Option<String>,
    /// A label for the lease; may be repeated
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = parse_label)]
    labels: Vec<(String, String)>,
    /// How often the lease is renewed; a third of the ttl by default, and at most that
    #[arg(long, value_name = "TIME")]
    renew_every: Option<Period>,
    /// How much earlier than the server the holder stops [default: a tenth of the ttl]
    #[arg(long, value_name = "TIME")]
    margin: Option<Period>,
    /// How long the program has between SIGTERM and SIGKILL [default: a sixth of the ttl, at most
    /// 10s]
    #[arg(long, value_name = "TIME")]
    stop_grace: Option<Period>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Acquires, runs, releases.
pub async fn run(arguments: Arguments, mut config: Config) -> Outcome {
    let lease = &mut config.lease;
    lease.ttl = arguments.ttl.unwrap_or(lease.ttl);
    lease.renew_every = arguments.renew_every.or(lease.renew_every);
    lease.margin = arguments.margin.or(lease.margin);
    lease.stop_grace = arguments.stop_grace.or(lease.stop_grace);
    lease.labels.extend(arguments.labels.iter().cloned());
    lease.peers.extend(arguments.peers.iter().cloned());
    lease.peer_listen = arguments.peer_listen.or(lease.peer_listen);
    check_timing(&config)?;
    // Should the guardian be killed, its orphans come to this process, which then ends them.
    supervise::become_subreaper()
        .map_err(|error| Failure::new(Exit::Supervision, format!("cannot supervise: {error}")))?;
    let mut signals = Signals::listen()?;
    let authority = connect::authority(&config)?;
    let _peers = match config.lease.peer_listen {
        Some(address) => Some(answer(address, authority.clone()).await?),
        None => None,
    };
    let keeper = keeper(&arguments, &config, authority.clone())?;
    let server = connect::url(&config);
    let acquired = acquire(&arguments, &config, &keeper);
    let guard = tokio::select! {
        acquired = waiting::shown(&*authority, &arguments.key, &server, acquired) => acquired?,
        signal = signals.next_to_pass_on() => {
            stop(keeper).await;
            return Ok(ExitCode::from(supervise::End::Signal(signal).shell_code()));
        }
    };
    let plan = Plan::of(&config, arguments.on_outage)?;
    let job = Job::new();
    let child = command(&arguments, &guard, plan);
    let outcome = course::run(child, job, &guard, plan, &mut signals).await;
    // Nothing of the program is left: whoever waits may have the key now. A lease that was lost needs
    // no such care, and its server may be out of reach.
    let is_lost = outcome
        .as_ref()
        .is_err_and(|failure| failure.exit == Exit::Lost);
    if is_lost {
        drop(guard);
    } else if let Err(error) = guard.release().await {
        // The terminal may be gone.
        let message = "leasehold: the lease could not be released and ends with its ttl";
        let _ = writeln!(std::io::stderr(), "{message}: {error}");
    }
    stop(keeper).await;
    outcome
}

/// Answers other holders for as long as what it returns is there.
async fn answer(
    address: SocketAddr,
    authority: Arc<dyn Authority>,
) -> Result<AbortOnDropHandle<()>, Failure> {
    let listener = TcpListener::bind(address)
        .await
        .map_err(|error| Failure::new(Exit::Failed, format!("--peer-listen {address}: {error}")))?;
    let answers = tokio::spawn(answer_peers(listener, authority));
    Ok(AbortOnDropHandle::new(answers))
}

fn keeper(
    arguments: &Arguments,
    config: &Config,
    authority: Arc<dyn Authority>,
) -> Result<Keeper, Failure> {
    let peers = PeerList::new(config.lease.peers.clone()).map_err(wrong)?;
    let name = arguments
        .holder
        .as_deref()
        .or(config.lease.holder.as_deref());
    let options = keeper::Options {
        margin_ms: config.lease.margin.map(Period::millis),
        renew_every_ms: config.lease.renew_every.map(Period::millis),
        release_limit_ms: RELEASE_LIMIT_MS,
        stop_limit_ms: RELEASE_LIMIT_MS,
        peers: Some(Arc::new(peers)),
        ..keeper::Options::default()
    };
    Ok(Keeper::start(
        authority,
        holder::this_process(name)?,
        Arc::new(System),
        options,
    ))
}

async fn stop(keeper: Keeper) {
    // What could not be released ends with its ttl; the release itself said so already.
    let _ = keeper.stop().await;
}

/// Asks for the key until the time to wait is over.
async fn acquire(
    arguments: &Arguments,
    config: &Config,
    keeper: &Keeper,
) -> Result<Guard, Failure> {
    let labels: BTreeMap<String, String> = config.lease.labels.clone();
    let until = System.boot().plus(arguments.wait.millis());
    loop {
        let request = Acquire {
            on_outage: arguments.on_outage,
            // Should this process be killed: the guardian holds its connection, so the server sees it
            // close only when nothing of the program is left.
            release_on_death: true,
            labels: Labels::new(labels.clone())?,
            wait_ms: until.since(System.boot()),
            ..Acquire::one(
                arguments.key.clone(),
                keeper.holder().clone(),
                Ttl::from_millis(config.lease.ttl.millis())?,
            )
        };
        request.validate()?;
        let error = match keeper.acquire(request).await {
            Ok(mut guards) => {
                return guards
                    .pop()
                    .ok_or_else(|| Failure::new(Exit::Failed, "granted without a lease"));
            }
            Err(error) => error,
        };
        match error {
            keeper::Error::Refused(refusal) => return Err(refused(&refusal)),
            keeper::Error::Failed(error) if error.is_retryable() => {
                if until.since(System.boot()) <= RETRY_MS {
                    return Err(error.into());
                }
            }
            keeper::Error::Failed(error) => return Err(error.into()),
            lost @ (keeper::Error::Lost(_) | keeper::Error::Stopped) => {
                if until.since(System.boot()) <= RETRY_MS {
                    return Err(Failure::new(Exit::NotAcquired, lost));
                }
            }
        }
        System.sleep_until(System.boot().plus(RETRY_MS)).await;
    }
}

fn command(arguments: &Arguments, guard: &Guard, plan: Plan) -> Result<supervise::Child, Failure> {
    let mut words = arguments.command.iter().cloned();
    let program = words.next().unwrap_or_default();
    let (ask_at, kill_at) = plan.moments(guard.stops_at());
    // What renews the lease is not for whoever does the work.
    let mut command = Command::new(program).args(words);
    for name in config::secret_variables() {
        command = command.env_remove(name);
    }
    command
        .env("LEASEHOLD_FENCE", guard.token().to_string())
        .env("LEASEHOLD_KEY", guard.key().as_str())
        .input(Input::Inherited)
        .output(Output::Inherited)
        .deadline(ask_at, kill_at)
        .spawn(&Launcher::this_binary())
        .map_err(|error| Failure::new(Exit::Supervision, error))
}
