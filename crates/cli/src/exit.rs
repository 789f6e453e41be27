//! What the binary exits with. Scripts rely on these numbers: they are in `--help` and never change
//! their meaning.

use std::{fmt, process::ExitCode};

use leasehold_api::Code;
use leasehold_client::documents::Contended;

/// Why the binary ended. The numbers follow `sysexits.h` where it has a word for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    /// Something failed that has no number of its own.
    Failed = 1,
    /// The command line or a value in it is wrong; nothing was done.
    Usage = 2,
    /// No such lease, key or token.
    NotFound = 66,
    /// The server cannot be reached, or it did not answer.
    Unreachable = 69,
    /// The store behind the server failed.
    Broken = 70,
    /// Somebody else has the key (and kept it for as long as `--wait` says).
    NotAcquired = 75,
    /// The credential is missing, wrong, or not enough.
    Denied = 77,
    /// The configuration is wrong; nothing was started.
    Config = 78,
    /// The lease was lost, and the command was stopped because of it.
    Lost = 79,
    /// A check found something wrong: `lease verify`, `doctor`, `migrate`.
    CheckFailed = 80,
    /// The command could not be supervised; it was not started, or it was killed.
    Supervision = 125,
}

impl Exit {
    /// Shown by `--help`, so that nobody has to guess.
    pub const HELP: &str = "\
Exit codes:
    0  done
    1  failed for another reason
    2  invalid command line
   66  no such lease, key or token
   69  the server cannot be reached
   70  the store behind the server failed
   75  not acquired: another holder has the key
   77  the credential is missing, invalid or lacks a scope
   78  invalid configuration
   79  the lease was lost, and the command was stopped because of it
   80  a check found something wrong (verify, doctor, migrate)
  125  the command could not be supervised
  126, 127  the command could not be run, was not found
  128+n  the command was ended by signal n
  any other  the command's own exit code (run)";
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a verb could not do what it was asked for: what people read, and what scripts read.
#[derive(Debug)]
pub struct Failure {
    /// The number.
    pub exit: Exit,
    message: String,
    hint: Option<String>,
}

/// What a verb comes to: the binary's exit code.
pub type Outcome = Result<ExitCode, Failure>;

impl Failure {
    /// A failure with its message: what happened, without a full stop.
    pub fn new(exit: Exit, message: impl fmt::Display) -> Self {
        Self {
            exit,
            message: message.to_string(),
            hint: None,
        }
    }

    /// A failure that nobody wants to read about.
    pub fn silent(exit: Exit) -> Self {
        Self::new(exit, "")
    }

    /// Whether there is nothing to say.
    pub fn is_silent(&self) -> bool {
        self.message.is_empty()
    }

    /// Adds what to do about it.
    pub fn hint(mut self, hint: impl fmt::Display) -> Self {
        self.hint = Some(hint.to_string());
        self
    }
}

impl Failure {
    /// The same for programs: a problem as the HTTP interface has them.
    pub fn to_json(&self) -> serde_json::Value {
        let code = match self.exit {
            Exit::Usage | Exit::Config => Some(Code::ConfigInvalid),
            Exit::NotFound => Some(Code::NotFound),
            Exit::Unreachable => Some(Code::StoreUnavailable),
            Exit::NotAcquired => Some(Code::LeaseAlreadyHeld),
            Exit::Denied => Some(Code::AuthorizationFailed),
            Exit::Lost => Some(Code::LeaseExpired),
            Exit::Failed | Exit::Broken | Exit::CheckFailed | Exit::Supervision => None,
        };
        serde_json::json!({
            "type": code.map_or_else(|| "about:blank".to_owned(), Code::type_uri),
            "title": code.map_or("The command failed", Code::title),
            "code": code,
            "detail": self.message,
            "hint": self.hint,
            "exit_code": self.exit as u8,
        })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "\nhint: {hint}"),
            None => Ok(()),
        }
    }
}

impl From<lease::Error> for Failure {
    fn from(error: lease::Error) -> Self {
        let exit = match &error {
            lease::Error::Invalid(_) | lease::Error::Unsupported(_) => Exit::Usage,
            lease::Error::Denied(_) => Exit::Denied,
            lease::Error::Unavailable(_) | lease::Error::Unknown(_) => Exit::Unreachable,
            lease::Error::Broken(_) => Exit::Broken,
        };
        let failure = Self::new(exit, &error);
        match exit {
            Exit::Denied => failure.hint(
                "give a credential with LEASEHOLD_CREDENTIAL or --credential-file; `leasehold credential create` makes one",
            ),
            Exit::Unreachable => failure.hint(unreachable_hint(&error)),
            _ => failure,
        }
    }
}

/// What to try when a server gave no answer: its words often show a mix-up.
fn unreachable_hint(error: &lease::Error) -> &'static str {
    let text = error.to_string();
    if text.contains("InvalidContentType") {
        "the server speaks plain HTTP: write http:// instead of https://"
    } else if text.contains("invalid HTTP version") {
        "the server probably speaks TLS: write https:// instead of http://"
    } else if text.contains("UnknownIssuer") || text.contains("certificate") {
        "the server's certificate is not trusted here: name its authority with --ca-file"
    } else {
        "is the server running (`leasehold serve`), and is --server right? `leasehold doctor` looks"
    }
}

impl From<Contended> for Failure {
    fn from(contended: Contended) -> Self {
        Self::new(Exit::Failed, contended)
    }
}

impl From<lease::Invalid> for Failure {
    fn from(invalid: lease::Invalid) -> Self {
        Self::new(Exit::Usage, invalid)
    }
}
