//! `leasehold runner cordon`, `uncordon` and `drain`.

use std::{process::ExitCode, time::Duration};

use leasehold_api::Runner;
use leasehold_client::{Client, RunnerOrder};

use crate::{
    connect::refused,
    exit::{Exit, Failure, Outcome},
    print::{self, Format},
    progress::Bar,
};

/// How often `--wait` looks again.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// Give a runner nothing new; it keeps what it has
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Example:
  leasehold runner cordon edge-1")]
pub struct Cordon {
    /// The runners, or TENANT/RUNNER where two tenants have one of this name
    #[arg(value_name = "RUNNER", required = true)]
    runners: Vec<String>,
    #[command(flatten)]
    format: Format,
}

/// Give a runner work again
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Example:
  leasehold runner uncordon edge-1")]
pub struct Uncordon {
    /// The runners, or TENANT/RUNNER where two tenants have one of this name
    #[arg(value_name = "RUNNER", required = true)]
    runners: Vec<String>,
    #[command(flatten)]
    format: Format,
}

/// Move everything that a runner has to others
///
/// It gets nothing new until `leasehold runner uncordon`.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  leasehold runner drain edge-1
  leasehold runner drain edge-1 --wait    # until it has no cameras
  leasehold runner drain edge-1 --hard    # now, with a gap per camera")]
pub struct Drain {
    /// The runners, or TENANT/RUNNER where two tenants have one of this name
    #[arg(value_name = "RUNNER", required = true)]
    runners: Vec<String>,
    /// Give everything up immediately, instead of handing it over in batches
    #[arg(long)]
    hard: bool,
    /// Wait until the runners have no cameras
    #[arg(long)]
    wait: bool,
    /// With --wait: give up after this many seconds, with exit code 75
    #[arg(long, value_name = "SECONDS", default_value_t = 600, requires = "wait")]
    timeout: u64,
    #[command(flatten)]
    format: Format,
}

/// Cordons.
pub async fn cordon(arguments: Cordon, client: &Client) -> Outcome {
    give(
        client,
        &arguments.runners,
        RunnerOrder::Cordon,
        arguments.format,
    )
    .await?;
    Ok(ExitCode::SUCCESS)
}

/// Uncordons.
pub async fn uncordon(arguments: Uncordon, client: &Client) -> Outcome {
    give(
        client,
        &arguments.runners,
        RunnerOrder::Uncordon,
        arguments.format,
    )
    .await?;
    Ok(ExitCode::SUCCESS)
}

/// Drains, and waits for it when asked to.
pub async fn drain(arguments: Drain, client: &Client) -> Outcome {
    let order = if arguments.hard {
        RunnerOrder::DrainHard
    } else {
        RunnerOrder::Drain
    };
    let had = give(client, &arguments.runners, order, arguments.format).await?;
    if !arguments.wait {
        return Ok(ExitCode::SUCCESS);
    }
    let limit = Duration::from_secs(arguments.timeout);
    match tokio::time::timeout(limit, drained(client, &arguments.runners, had)).await {
        Ok(done) => done.map(|()| ExitCode::SUCCESS),
        Err(_) => Err(Failure::new(
            Exit::NotAcquired,
            format!("not drained within {} s", arguments.timeout),
        )
        .hint("`leasehold plan` shows which cameras find no other runner")),
    }
}

/// Gives the order to each, and returns how many cameras they have.
async fn give(
    client: &Client,
    runners: &[String],
    order: RunnerOrder,
    format: Format,
) -> Result<usize, Failure> {
    let mut cameras = 0;
    for runner_id in runners {
        let runner = client
            .order_runner(runner_id, order)
            .await
            .map_err(refused)?;
        cameras += runner.assigned_cameras.len();
        report(&runner, format)?;
    }
    Ok(cameras)
}

fn report(runner: &Runner, format: Format) -> Result<(), Failure> {
    if format.json {
        return print::json(runner);
    }
    eprintln!(
        "{} is {}, with {} cameras",
        runner.runner_id,
        runner.status,
        runner.assigned_cameras.len()
    );
    Ok(())
}

async fn drained(client: &Client, runners: &[String], had: usize) -> Result<(), Failure> {
    let mut bar = Bar::default();
    loop {
        let mut left = 0;
        for runner_id in runners {
            let runner = client.runner(runner_id).await.map_err(refused)?;
            left += runner.assigned_cameras.len();
        }
        bar.show("drained", had.saturating_sub(left) as u64, had as u64);
        if left == 0 {
            bar.end();
            return Ok(());
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}
