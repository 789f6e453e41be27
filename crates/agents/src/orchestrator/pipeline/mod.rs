//! What makes a stream: a supervised child, or a generated one without a child. Both write HLS into
//! a folder.

mod ffmpeg;
mod generated;
mod playlist;

use std::{fmt::Write as _, path::PathBuf, sync::Arc, time::Duration};

use lease::{BootMillis, Clock, Invalid, Token, redact};

use super::options::Profile;
use crate::{
    ffmpeg::{Script, Secrets, has_secret},
    supervise::{Cause, Child, Command, Launcher},
};

/// How often output is looked at, in ms.
const LOOK_MS: u64 = 50;

/// What is to be streamed.
#[derive(Clone, Debug)]
pub struct Job {
    /// For the logs.
    pub session: String,
    /// A checked URL, or `None` for the test picture.
    pub source: Option<String>,
    /// Where to start, for catch-up.
    pub start_ms: Option<u64>,
    /// How.
    pub profile: Profile,
    /// Where to: a folder that is there.
    pub dir: PathBuf,
    /// Under which token, passed on to the child.
    pub token: Token,
    /// When the child must have been stopped if nothing more is heard.
    pub deadline: BootMillis,
    /// How long it may take to stop.
    pub stop_limit_ms: u64,
}

/// Why a pipeline is over.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// It could not be started.
    #[error("could not start: {0}")]
    Start(String),
    /// It ended by itself.
    #[error("ended: {0}")]
    Ended(String),
    /// It took too long, or produced nothing for too long.
    #[error("{0}")]
    Timeout(&'static str),
    /// Its guardian stopped it: nothing moved its deadline, so its leases were not renewed in time.
    #[error("stopped at its deadline: its leases were not renewed in time ({0})")]
    Deadline(String),
}

/// A pipeline at work.
pub struct Pipeline {
    clock: Arc<dyn Clock>,
    dir: PathBuf,
    session: String,
    stop_limit_ms: u64,
    /// What of the source's URL is nobody's business but the source's.
    secrets: Option<Secrets>,
    /// Where a source with a login is named; read when the program begins.
    _script: Option<Script>,
    source: Source,
    /// The playlist as it was last seen, and since when.
    seen: (Option<playlist::Fingerprint>, BootMillis),
}

enum Source {
    Child(Box<Child>),
    Generated(generated::Generated),
}

impl Pipeline {
    /// Starts one. It is playable only after [`Pipeline::ready`].
    ///
    /// Nothing is awaited: whoever gives up in the middle has either nothing or a pipeline to stop.
    pub fn start(job: Job, launcher: &Launcher, clock: Arc<dyn Clock>) -> Result<Self, Failure> {
        let secret = job.source.as_deref().filter(|source| has_secret(source));
        let script = secret.map(Script::new).transpose();
        let script = script.map_err(|error| Failure::Start(error.to_string()))?;
        let command = match &job.profile {
            Profile::Ffmpeg { height } => crate::ffmpeg::find()
                .map(|ffmpeg| ffmpeg::command(&ffmpeg, &job, script.as_ref(), *height)),
            Profile::Command { command } => Some(from_template(command, &job)?),
            Profile::Virtual => None,
        };
        let source = match command {
            Some(command) => {
                let ask_at = job.deadline.get().saturating_sub(job.stop_limit_ms);
                let child = command
                    .env("LEASEHOLD_FENCE", job.token.to_string())
                    .deadline(BootMillis::new(ask_at), job.deadline)
                    // A worker that starts again frees the tuner immediately: nothing may be left on it.
                    .orphan_grace(Duration::ZERO)
                    .spawn(launcher)
                    .map_err(|error| Failure::Start(error.to_string()))?;
                Source::Child(Box::new(child))
            }
            None => Source::Generated(generated::Generated::start(job.dir.clone(), clock.clone())),
        };
        Ok(Self {
            seen: (None, clock.boot()),
            secrets: job.source.as_deref().map(Secrets::of),
            _script: script,
            clock,
            dir: job.dir,
            session: job.session,
            stop_limit_ms: job.stop_limit_ms,
            source,
        })
    }

    /// Waits until the stream can be played: the playlist is there and its first segment is not empty.
    /// May be dropped and asked again.
    pub async fn ready(&mut self, until: BootMillis) -> Result<(), Failure> {
        if let Source::Child(child) = &mut self.source {
            let launched = child.started().await;
            launched.map_err(|error| Failure::Start(error.to_string()))?;
        }
        loop {
            if playlist::is_playable(&self.dir).await {
                return Ok(());
            }
            if self.clock.boot() >= until {
                return Err(Failure::Timeout("was not playable in time"));
            }
            let look = self.clock.boot().plus(LOOK_MS);
            let clock = self.clock.clone();
            tokio::select! {
                failure = self.source.ended(&self.session, self.secrets.as_ref()) => return Err(failure),
                () = clock.sleep_until(look) => {}
            }
        }
    }

    /// Resolves when the stream is over against our will: the child ended, or nothing new came for
    /// too long. May be dropped and asked again.
    pub async fn failed(&mut self, stall_limit_ms: u64) -> Failure {
        loop {
            let now = playlist::fingerprint(&self.dir).await;
            if now != self.seen.0 {
                self.seen = (now, self.clock.boot());
            } else if self.clock.boot().since(self.seen.1) >= stall_limit_ms {
                return Failure::Timeout("produced nothing for too long");
            }
            let look = self.clock.boot().plus((stall_limit_ms / 4).max(LOOK_MS));
            let clock = self.clock.clone();
            tokio::select! {
                failure = self.source.ended(&self.session, self.secrets.as_ref()) => return failure,
                () = clock.sleep_until(look) => {}
            }
        }
    }

    /// Moves the moment at which the child is stopped whatever becomes of this process (L10).
    pub fn extend(&self, deadline: BootMillis) {
        if let Source::Child(child) = &self.source {
            let ask_at = deadline.get().saturating_sub(self.stop_limit_ms);
            if child.deadline(BootMillis::new(ask_at), deadline).is_err() {
                // It is gone, and its child with it: that is noticed, and reported, as an end.
                tracing::debug!(session = self.session, "the guardian takes no orders");
            }
        }
    }

    /// Stops it, by force when it takes too long. Nothing of it runs afterwards.
    pub async fn stop(self) {
        match self.source {
            Source::Generated(generated) => generated.stop().await,
            Source::Child(mut child) => {
                let grace = Duration::from_millis(self.stop_limit_ms);
                if child.stop(grace).is_err() {
                    child.kill_by_hand();
                }
                // The guardian kills at the end of the grace; twice that means it does not.
                let limit = self.clock.boot().plus(2 * self.stop_limit_ms);
                tokio::select! {
                    _ = child.wait() => {}
                    () = self.clock.sleep_until(limit) => child.kill_by_hand(),
                }
            }
        }
    }
}

impl Source {
    /// Resolves when the child ended by itself. Passes on what it prints until then, but for the
    /// source's secrets.
    async fn ended(&mut self, session: &str, secrets: Option<&Secrets>) -> Failure {
        match self {
            Self::Generated(generated) => Failure::Ended(generated.failed().await.to_string()),
            Self::Child(child) => {
                let mut last = String::new();
                while let Some(line) = child.line().await {
                    last = match secrets {
                        Some(secrets) => secrets.hide(&line.text),
                        None => line.text,
                    };
                    tracing::debug!(session, "pipeline: {last}");
                }
                let exit = child.wait().await;
                let how = format!("{} {last}", exit.end).trim_end().to_owned();
                match exit.cause {
                    Cause::Deadline => Failure::Deadline(how),
                    _ => Failure::Ended(how),
                }
            }
        }
    }
}

/// A command of the configuration with its places filled in. Arguments are shown to every user of the
/// machine: the whole address of a source with a login is in the environment only.
fn from_template(template: &[String], job: &Job) -> Result<Command, Failure> {
    let address = job.source.as_deref().unwrap_or("testsrc");
    let source = if has_secret(address) {
        redact::without_credentials(address)
    } else {
        address.to_owned()
    };
    let playlist = job.dir.join(playlist::NAME);
    let start_seconds = (job.start_ms.unwrap_or(0) / 1000).to_string();
    let mut arguments = template.iter().map(|argument| {
        argument
            .replace("{source}", &source)
            .replace("{playlist}", &playlist.to_string_lossy())
            .replace("{dir}", &job.dir.to_string_lossy())
            .replace("{start_seconds}", &start_seconds)
    });
    let program = arguments
        .next()
        .ok_or_else(|| Failure::Start("the profile names no program".into()))?;
    Ok(Command::new(program)
        .args(arguments)
        .env("LEASEHOLD_SOURCE", address)
        .current_dir(job.dir.clone()))
}

/// The URL of a service. What a caller put into `service_ref` fills a place in the URL, and nothing
/// else: not the scheme, not another path or query, not an option, not a second argument.
pub fn source_url(template: &str, service_ref: &str) -> Result<String, Invalid> {
    let url = template.replace("{service_ref}", &in_one_place(service_ref));
    check_source(&url)?;
    Ok(url)
}

/// Escapes what means something in a URL. Colons stay as they are: references of receivers are full of
/// them.
fn in_one_place(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~:,;=!$()*'".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}

/// Checks the URL of a source.
pub fn check_source(url: &str) -> Result<(), Invalid> {
    const SCHEMES: [&str; 6] = ["http", "https", "rtsp", "rtsps", "udp", "rtp"];
    let sound = url.split_once("://").is_some_and(|(scheme, rest)| {
        SCHEMES.contains(&scheme) && !rest.is_empty() && !rest.starts_with('/')
    });
    if !sound || url.len() > 2048 || url.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err(Invalid::new(
            "source",
            "an http, https, rtsp, rtsps, udp or rtp URL without white space",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_ref_cannot_leave_its_place() {
        let template = "http://receiver:8001/{service_ref}";
        assert_eq!(
            source_url(template, "1:0:19:132F").unwrap(),
            "http://receiver:8001/1:0:19:132F"
        );
        assert!(source_url("{service_ref}", "-f").is_err());
        assert!(source_url("{service_ref}", "file:///etc/passwd").is_err());
        assert!(source_url("{service_ref}", "concat:a|b").is_err());
        for (odd, url) in [
            ("../web?x#y", "http://receiver:8001/..%2Fweb%3Fx%23y"),
            ("a b", "http://receiver:8001/a%20b"),
            ("100%&", "http://receiver:8001/100%25%26"),
        ] {
            assert_eq!(source_url(template, odd).unwrap(), url);
        }
    }

    fn job(source: &str) -> Job {
        Job {
            session: "s".into(),
            source: Some(source.into()),
            start_ms: None,
            profile: Profile::Virtual,
            dir: "/tmp/x".into(),
            token: Token::ZERO,
            deadline: BootMillis::new(0),
            stop_limit_ms: 1,
        }
    }

    #[test]
    fn a_template_is_no_shell() {
        let job = job("http://x/$(id);y");
        let command = from_template(&["prog".into(), "-i".into(), "{source}".into()], &job);
        assert!(format!("{:?}", command.unwrap()).contains("http://x/$(id);y"));
    }

    #[test]
    fn a_program_of_the_configuration_has_a_login_in_its_environment_only() {
        let job = job("http://ann:s3cret@h/x");
        let command = from_template(&["prog".into(), "{source}".into()], &job).unwrap();
        let text = format!("{command:?}");
        assert!(
            text.contains(r#"program: ["prog", "http://h/x"]"#),
            "{text}"
        );
        let variable = r#"("LEASEHOLD_SOURCE", "http://ann:s3cret@h/x")"#;
        assert!(text.contains(variable), "{text}");
    }
}
