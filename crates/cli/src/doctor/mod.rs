//! `leasehold doctor`: looks at everything that commonly goes wrong, and says what to do.

mod files;
mod fleet;
mod local;
mod remote;

use std::process::ExitCode;

use serde::Serialize;

use crate::{
    config::Config,
    exit::{Exit, Failure, Outcome},
    print::{self, Format},
};

/// Check server, store, replicas, broker, clock, disk and files, with advice
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  leasehold doctor
  leasehold doctor --server https://leases.example:8740 --json

Exits with 80 if a check fails.")]
pub struct Arguments {
    #[command(flatten)]
    format: Format,
}

/// How a check came out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As it should be.
    Fine,
    /// Works, with something to know.
    Note,
    /// Does not work.
    Wrong,
}

/// One thing that was looked at.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// What.
    check: &'static str,
    /// How it came out.
    verdict: Verdict,
    /// What was seen.
    detail: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

impl Finding {
    fn fine(check: &'static str, detail: impl Into<String>) -> Self {
        Self {
            check,
            verdict: Verdict::Fine,
            detail: detail.into(),
            advice: None,
        }
    }

    fn note(check: &'static str, detail: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            verdict: Verdict::Note,
            ..Self::wrong(check, detail, advice)
        }
    }

    fn wrong(check: &'static str, detail: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            verdict: Verdict::Wrong,
            advice: Some(advice.into()),
            ..Self::fine(check, detail)
        }
    }
}

/// Looks, and reports.
pub async fn run(arguments: &Arguments, config: Config) -> Outcome {
    let mut findings = local::look(&config);
    findings.extend(files::look(&config));
    findings.extend(remote::look(&config).await);
    if arguments.format.json {
        print::json(&findings)?;
    } else {
        for finding in &findings {
            let word = match finding.verdict {
                Verdict::Fine => "ok   ",
                Verdict::Note => "note ",
                Verdict::Wrong => "WRONG",
            };
            print::line(&format!("{word}  {:<12}{}", finding.check, finding.detail))?;
            if let Some(advice) = &finding.advice {
                print::line(&format!("{:19}-> {advice}", ""))?;
            }
        }
    }
    let wrong = findings
        .iter()
        .filter(|finding| finding.verdict == Verdict::Wrong);
    match wrong.count() {
        0 => Ok(ExitCode::SUCCESS),
        1 => Err(Failure::new(Exit::CheckFailed, "one check failed")),
        count => Err(Failure::new(
            Exit::CheckFailed,
            format!("{count} checks failed"),
        )),
    }
}
