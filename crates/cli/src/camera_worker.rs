//! `leasehold camera-worker`.

use std::{path::PathBuf, process::ExitCode, sync::Arc, time::Duration};

use leasehold_agents::{
    camera::{self, Ended, Error, Options, Sink},
    supervise::Launcher,
};
use leasehold_api::worker::variables;
use leasehold_clock::System;

use crate::{
    cli::Shared,
    config::{Log, wrong},
    exit::{Exit, Failure, Outcome},
    logging,
    serve::Stop,
};

/// Watch cameras for a manager: ffmpeg, motion, zones, messages to RabbitMQ
///
/// The reference worker of `leasehold manager`, which starts it. Each camera is read with ffmpeg as small
/// grey pictures; motion that counts for a zone is published to the topic exchange detections.topic, the
/// state of each stream to status.topic. Every message carries the camera's fencing token, and none is
/// published past the camera's deadline.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
--config names the shard's cameras (JSON), which the manager writes.

Environment:
  LEASEHOLD_WORKER_PORT   the port to serve on 127.0.0.1 (required)
  LEASEHOLD_WORKER_ID     the worker's id at its manager
  LEASEHOLD_MANAGER_URL   where to report to
  LEASEHOLD_FENCE_FILE    where the manager writes the current deadlines
  LEASEHOLD_WORKER_AMQP   the broker, amqp://…; JSON lines on standard output without one
  LOG_LEVEL               what is logged to standard error

Example:
  LEASEHOLD_WORKER_PORT=9200 leasehold camera-worker \\
    --config shard.json --runner-id edge-1 --shard-id edge-1-0 --manager-pid $$")]
pub struct Arguments {
    /// The manager's name
    #[arg(long, value_name = "ID")]
    runner_id: String,
    /// Which part of the manager's cameras this is
    #[arg(long, value_name = "ID")]
    shard_id: String,
    /// The manager's process; the worker ends with it
    #[arg(long, value_name = "PID")]
    manager_pid: Option<u32>,
    /// A file that holds the broker's address [env: LEASEHOLD_WORKER_AMQP for the address itself]
    #[arg(long, value_name = "FILE")]
    amqp_file: Option<PathBuf>,
    /// How many pictures of each camera to look at, per second
    #[arg(long, value_name = "NUMBER", default_value = "5", value_parser = frames_per_second)]
    fps: f64,
    /// Restart a stream after this many seconds without a picture
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = clap::value_parser!(u64).range(1..=3600))]
    stall_seconds: u64,
    /// Publish the state of a stream at least this often, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = clap::value_parser!(u64).range(1..=3600))]
    status_seconds: u64,
    /// Send a still of each camera every so many seconds, for whoever draws zones; 0 sends none
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = clap::value_parser!(u64).range(0..=86_400))]
    picture_seconds: u64,
    /// How long a graceful end may take
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = clap::value_parser!(u64).range(1..=3600))]
    grace_seconds: u64,
}

/// The broker's address.
const AMQP: &str = "LEASEHOLD_WORKER_AMQP";

fn frames_per_second(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|number| (0.1..=60.0).contains(number))
        .ok_or_else(|| "expected a number from 0.1 to 60".to_owned())
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

impl Arguments {
    /// What is logged: the manager's own variable, not the configuration of a server.
    pub fn log(shared: &Shared) -> Log {
        let mut log = Log::default();
        if let Some(level) = shared.log.clone().or_else(|| variable("LOG_LEVEL")) {
            log.level = level.to_lowercase();
        }
        log
    }

    fn options(self, shared: &Shared) -> Result<Options, Failure> {
        let config = shared
            .config
            .clone()
            .ok_or_else(|| Failure::new(Exit::Usage, "--config names the shard's cameras"))?;
        let port = variable(variables::WORKER_PORT)
            .ok_or_else(|| wrong(format!("{} is not set", variables::WORKER_PORT)))?
            .parse()
            .map_err(|_| wrong(format!("{}: expected a port", variables::WORKER_PORT)))?;
        let metrics_port = variable(variables::WORKER_METRICS_PORT)
            .map(|text| text.parse())
            .transpose()
            .map_err(|_| {
                wrong(format!(
                    "{}: expected a port",
                    variables::WORKER_METRICS_PORT
                ))
            })?;
        let amqp = match &self.amqp_file {
            Some(file) => {
                let text = std::fs::read_to_string(file)
                    .map_err(|error| wrong(format!("cannot read {}: {error}", file.display())))?;
                Some(text.trim().to_owned())
            }
            None => variable(AMQP),
        };
        let sink = match amqp {
            Some(url) => Sink::broker(url.into()).map_err(|error| wrong(error.to_string()))?,
            None => Sink::Lines,
        };
        Ok(Options {
            config,
            worker_id: variable(variables::WORKER_ID).unwrap_or_else(|| self.shard_id.clone()),
            runner_id: self.runner_id,
            shard_id: self.shard_id,
            port,
            metrics_port,
            manager_pid: self.manager_pid,
            manager_url: variable(variables::MANAGER_URL),
            fence_file: variable(variables::FENCE_FILE).map(PathBuf::from),
            sink,
            frames_per_second: self.fps,
            stall: Duration::from_secs(self.stall_seconds),
            status_interval: Duration::from_secs(self.status_seconds),
            picture_interval: Duration::from_secs(self.picture_seconds),
            grace: Duration::from_secs(self.grace_seconds),
        })
    }
}

/// Works until it is drained, terminated, or its manager is gone.
pub async fn run(arguments: Arguments, shared: &Shared) -> Outcome {
    logging::start(&Arguments::log(shared), true)?;
    let options = arguments.options(shared)?;
    let stop = Stop::listen()?;
    let ended = camera::run(
        options,
        Launcher::this_binary(),
        Arc::new(System),
        stop.asked(),
    )
    .await
    .map_err(|error| match error {
        Error::Config(_) => wrong(error),
        Error::Port { .. } => Failure::new(Exit::Failed, error),
    })?;
    Ok(match ended {
        Ended::Drained | Ended::Terminated => ExitCode::SUCCESS,
        Ended::ManagerGone => Exit::Failed.into(),
    })
}
