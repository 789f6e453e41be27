//! What the server keeps in files: room for them, who can read them, and how long the certificate is valid.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use leasehold_clock::{Clock, System};
use leasehold_store::StoreUrl;
use x509_parser::pem::Pem;

use super::Finding;
use crate::{
    config::Config,
    connect::DEVELOPMENT_CERTIFICATE,
    data_dir::{self, ADDRESS_FILE},
};

/// With less than this the store soon takes no changes.
const TOO_LITTLE_BYTES: u64 = 256 * MIB;
/// With less than this somebody should look.
const LITTLE_BYTES: u64 = 2 * 1024 * MIB;
const MIB: u64 = 1024 * 1024;
/// How many files of a folder are looked at, and how many are named.
const MAX_FILES: usize = 1_000;
const NAMED: usize = 3;
/// A certificate that is valid for less than this should be renewed.
const RENEW_DAYS: u64 = 14;
const DAY_SECS: u64 = 86_400;

/// Disk space, file modes, certificate.
pub fn look(config: &Config) -> Vec<Finding> {
    let folders = folders(config);
    let mut findings: Vec<Finding> = folders.iter().filter_map(|it| disk(it)).collect();
    findings.extend(modes(config, &folders));
    findings.extend(certificate(config));
    findings
}

/// The folders that a server on this machine writes to, so far as they are there.
fn folders(config: &Config) -> Vec<PathBuf> {
    let store = config.server.store.as_deref().map(str::parse);
    let store = match store {
        Some(Ok(StoreUrl::Embedded(folder))) => Some(folder),
        _ => None,
    };
    let mut folders: Vec<PathBuf> = data_dir::find(config).into_iter().chain(store).collect();
    folders.retain(|folder| folder.is_dir());
    folders.dedup();
    folders
}

fn disk(folder: &Path) -> Option<Finding> {
    let found = nix::sys::statvfs::statvfs(folder).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(found.fragment_size());
    Some(space(
        folder,
        bytes(found.blocks_available()),
        bytes(found.blocks()),
    ))
}

fn space(folder: &Path, free: u64, total: u64) -> Finding {
    let shown = folder.display();
    let detail = format!("{} of {} free in {shown}", size(free), size(total));
    let advice = format!("make room on the disk of {shown}: a full one stops every grant");
    match free {
        ..TOO_LITTLE_BYTES => Finding::wrong("disk", detail, advice),
        TOO_LITTLE_BYTES..LITTLE_BYTES => Finding::note("disk", detail, advice),
        _ => Finding::fine("disk", detail),
    }
}

fn size(bytes: u64) -> String {
    let mib = bytes / MIB;
    if mib >= 10 * 1024 {
        format!("{} GiB", mib / 1024)
    } else {
        format!("{mib} MiB")
    }
}

/// Files that hold secrets or state and that others can read or write.
fn modes(config: &Config, folders: &[PathBuf]) -> Option<Finding> {
    let files = folders.iter().flat_map(|folder| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.take(MAX_FILES).map(|entry| entry.path())
    });
    let files: Vec<PathBuf> = files.chain(config.server.tls.key.clone()).collect();
    let mut looked = 0;
    let mut open = Vec::new();
    for file in &files {
        // What is not there any more, or is no file, is not meant.
        let Ok(found) = fs::symlink_metadata(file) else {
            continue;
        };
        if !found.is_file() || file.ends_with(ADDRESS_FILE) {
            continue;
        }
        looked += 1;
        let mode = found.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            open.push((file.display().to_string(), mode));
        }
    }
    if looked == 0 {
        return None;
    }
    if open.is_empty() {
        let files = if looked == 1 { "file is" } else { "files are" };
        return Some(Finding::fine(
            "files",
            format!("{looked} {files} for their owner only"),
        ));
    }
    let named: Vec<String> = open
        .iter()
        .take(NAMED)
        .map(|(file, mode)| format!("{file} ({mode:04o})"))
        .collect();
    let more = match open.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let paths: Vec<&str> = open.iter().take(NAMED).map(|(it, _)| it.as_str()).collect();
    Some(Finding::wrong(
        "files",
        format!(
            "open to other users of this machine: {}{more}",
            named.join(", ")
        ),
        format!("chmod 600 {}", paths.join(" ")),
    ))
}

/// How long the certificate of the server on this machine is valid.
fn certificate(config: &Config) -> Option<Finding> {
    let tls = &config.server.tls;
    let own = tls.certificate.clone();
    let development = || {
        let file = data_dir::find(config)?.join(DEVELOPMENT_CERTIFICATE);
        file.exists().then_some(file)
    };
    let file = own.or_else(development)?;
    let shown = file.display();
    let advice = if tls.certificate.is_some() {
        format!("renew {shown}, then send the server SIGHUP")
    } else {
        format!("remove {shown} and restart the server, which makes a new one")
    };
    Some(match validity(&file) {
        Err(error) => Finding::wrong("certificate", format!("{shown}: {error}"), advice),
        Ok(valid) => dated(
            &shown.to_string(),
            valid,
            System.unix().get() / 1000,
            advice,
        ),
    })
}

/// From when until when, in seconds since 1970: of all certificates in the file the narrowest.
fn validity(file: &Path) -> Result<(u64, u64), String> {
    let text = fs::read(file).map_err(|error| error.to_string())?;
    let mut valid: Option<(u64, u64)> = None;
    for block in Pem::iter_from_buffer(&text) {
        let block = block.map_err(|error| error.to_string())?;
        let one = block.parse_x509().map_err(|error| error.to_string())?;
        let seconds = |time: i64| u64::try_from(time).unwrap_or(0);
        let from = seconds(one.validity().not_before.timestamp());
        let until = seconds(one.validity().not_after.timestamp());
        valid = Some(match valid {
            None => (from, until),
            Some((begin, end)) => (begin.max(from), end.min(until)),
        });
    }
    valid.ok_or_else(|| "no certificate in PEM is in it".to_owned())
}

fn dated(shown: &str, (from, until): (u64, u64), now: u64, advice: String) -> Finding {
    let day = |seconds: u64| {
        let text = crate::print::time(lease::UnixMillis::new(seconds.saturating_mul(1000)));
        text.get(..10).unwrap_or(&text).to_owned()
    };
    if now >= until {
        let detail = format!("{shown} expired on {}", day(until));
        return Finding::wrong("certificate", detail, advice);
    }
    if now < from {
        let detail = format!("{shown} is not valid before {}", day(from));
        return Finding::wrong("certificate", detail, advice);
    }
    let days = (until - now) / DAY_SECS;
    if days < RENEW_DAYS {
        let detail = format!("{shown} expires on {}, in {days} days", day(until));
        return Finding::note("certificate", detail, advice);
    }
    Finding::fine(
        "certificate",
        format!("{shown} is valid until {}", day(until)),
    )
}

#[cfg(test)]
mod tests {
    use super::{super::Verdict, *};

    #[test]
    fn little_room_is_noticed_before_it_is_too_little() {
        let verdict = |free: u64| space(Path::new("/data"), free, 100 * 1024 * MIB).verdict;
        assert_eq!(verdict(0), Verdict::Wrong);
        assert_eq!(verdict(TOO_LITTLE_BYTES - 1), Verdict::Wrong);
        assert_eq!(verdict(TOO_LITTLE_BYTES), Verdict::Note);
        assert_eq!(verdict(LITTLE_BYTES), Verdict::Fine);
        let finding = space(Path::new("/data"), 100 * MIB, 40 * 1024 * MIB);
        assert_eq!(finding.detail, "100 MiB of 40 GiB free in /data");
    }

    #[test]
    fn a_certificate_is_judged_by_its_dates() {
        let verdict = |now: u64| dated("c", (1_000_000, 9_000_000), now, String::new()).verdict;
        assert_eq!(verdict(999_999), Verdict::Wrong);
        assert_eq!(verdict(1_000_000), Verdict::Fine);
        assert_eq!(verdict(9_000_000 - RENEW_DAYS * DAY_SECS), Verdict::Fine);
        assert_eq!(verdict(9_000_001 - RENEW_DAYS * DAY_SECS), Verdict::Note);
        assert_eq!(verdict(9_000_000), Verdict::Wrong);
    }
}
