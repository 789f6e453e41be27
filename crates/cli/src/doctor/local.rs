//! What can be seen without a server.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use leasehold_clock::{Clock, System};

use super::Finding;
use crate::{
    config::{self, Config, Period, worst_case},
    connect::{self, Credential},
    data_dir,
};

/// 2024-01-01: a machine that shows less has not set its clock.
const PLAUSIBLE_MS: u64 = 1_704_067_200_000;

/// Configuration, folder, credential, clock, supervision.
pub fn look(config: &Config) -> Vec<Finding> {
    let mut findings = vec![timing(config), clock(), folder(config)];
    findings.push(credential(config));
    findings.push(supervision());
    findings
}

fn timing(config: &Config) -> Finding {
    match config::check_timing(config) {
        Ok(()) => Finding::fine("timing", worst_case(config.lease.ttl)),
        Err(failure) => {
            let text = failure.to_string();
            Finding::wrong(
                "timing",
                text.lines()
                    .next()
                    .unwrap_or_default()
                    .trim_start_matches("error: "),
                "change lease.* in the configuration, or its variables",
            )
        }
    }
}

fn clock() -> Finding {
    let now = System.unix();
    if now.get() < PLAUSIBLE_MS {
        return Finding::wrong(
            "clock",
            format!("this machine thinks it is {}", crate::print::time(now)),
            "set the clock: tokens are made from it",
        );
    }
    let boot_ms = System.boot().get();
    Finding::fine(
        "clock",
        format!(
            "wall clock plausible; deadlines count on CLOCK_BOOTTIME ({}), also in sleep",
            Period::from_millis(boot_ms).rounded()
        ),
    )
}

fn folder(config: &Config) -> Finding {
    let Some(dir) = data_dir::find(config) else {
        return Finding::note(
            "data folder",
            "none: neither HOME nor --data-dir is set",
            "name one with --data-dir",
        );
    };
    let shown = dir.display();
    match fs::metadata(&dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Finding::note(
            "data folder",
            format!("{shown} does not exist yet"),
            "start `leasehold serve`, which makes it, or name another with --data-dir",
        ),
        Err(error) => Finding::wrong(
            "data folder",
            format!("{shown}: {error}"),
            "check its owner and mode",
        ),
        Ok(found) if found.permissions().mode() & 0o022 != 0 => Finding::wrong(
            "data folder",
            format!("{shown} can be written by others"),
            format!("chmod go-w {shown}"),
        ),
        Ok(_) => Finding::fine("data folder", shown.to_string()),
    }
}

fn credential(config: &Config) -> Finding {
    match connect::credential(config) {
        Err(failure) => Finding::wrong(
            "credential",
            failure.to_string().trim_start_matches("error: "),
            "check --credential-file, its owner and mode",
        ),
        Ok((_, Credential::Configured)) => Finding::fine(
            "credential",
            "from LEASEHOLD_CREDENTIAL or the configuration",
        ),
        Ok((_, Credential::File(file))) => credential_file(&file),
        Ok((_, Credential::Missing)) => Finding::wrong(
            "credential",
            "none found",
            "set LEASEHOLD_CREDENTIAL or --credential-file, or start a local server, which makes one",
        ),
    }
}

fn credential_file(file: &Path) -> Finding {
    let shown = file.display();
    let open = fs::metadata(file).is_ok_and(|found| found.permissions().mode() & 0o077 != 0);
    if open {
        return Finding::wrong(
            "credential",
            format!("{shown} can be read by others"),
            format!("chmod 600 {shown}"),
        );
    }
    Finding::fine("credential", format!("from {shown}"))
}

fn supervision() -> Finding {
    match nix::sys::prctl::get_child_subreaper() {
        Ok(_) => Finding::fine("run", "programs can be supervised, grandchildren included"),
        Err(error) => Finding::wrong(
            "run",
            format!("this kernel cannot adopt orphans: {error}"),
            "`leasehold run` needs Linux 3.4 or newer",
        ),
    }
}
