//! What everybody who runs ffmpeg needs: where it is, an input whose address nobody else sees, and what it
//! prints without the secrets of that address.
//!
//! An address may carry a login, and arguments are shown to every user of the machine. So ffmpeg is given a
//! script (`ffconcat`) that names the address, and the script lives in a file that has no name (`memfd`):
//! only this user's processes can open it, and it is gone with this process. What others see is
//! `-i /proc/PID/fd/N`.

use std::{
    fs::File,
    io::{self, Write as _},
    os::fd::AsRawFd as _,
    path::PathBuf,
};

use lease::redact;
use nix::sys::memfd::{MFdFlags, memfd_create};

/// How a stream may come in, directly or by way of a playlist. Nothing that a source sends may lead to a
/// file of this machine.
pub(crate) const PROTOCOLS: &str = "http,https,tcp,tls,crypto,data,rtsp,rtsps,rtp,srtp,udp";

/// Where ffmpeg is, if it is installed.
pub(crate) fn find() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join("ffmpeg"))
        .find(|file| file.is_file())
}

/// Whether the address is of a file on this machine.
pub(crate) fn is_file(url: &str) -> bool {
    url.starts_with("file://")
}

/// Whether an address holds something that may not be shown.
pub(crate) fn has_secret(url: &str) -> bool {
    redact::login(url).is_some() || redact::url(url) != url
}

/// The script that names an address. ffmpeg can open it as long as this value lives.
#[derive(Debug)]
pub(crate) struct Script(File);

impl Script {
    pub(crate) fn new(url: &str) -> io::Result<Self> {
        let descriptor = memfd_create("source", MFdFlags::MFD_CLOEXEC)?;
        let mut file = File::from(descriptor);
        file.write_all(text(url).as_bytes())?;
        Ok(Self(file))
    }

    /// The arguments that make it the next input.
    pub(crate) fn input(&self) -> Vec<String> {
        let protocols = format!("file,{PROTOCOLS}");
        let options = ["-safe", "0", "-f", "concat", "-protocol_whitelist"];
        let options = options.map(String::from).into_iter();
        options
            .chain([protocols, "-i".into(), self.path()])
            .collect()
    }

    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }
}

fn text(url: &str) -> String {
    let (protocols, transport) = if is_file(url) {
        ("file", "")
    } else if url.starts_with("rtsp") {
        // Over UDP a picture is torn with every packet that is lost.
        (PROTOCOLS, "option rtsp_transport tcp\n")
    } else {
        (PROTOCOLS, "")
    };
    // In quotes nothing is special but the quote itself.
    let quoted = url.replace('\'', r"'\''");
    format!(
        "ffconcat version 1.0\nfile '{quoted}'\noption protocol_whitelist {protocols}\n{transport}"
    )
}

/// Hides what is secret in an address from what a program prints: programs like to repeat what they were
/// given.
#[derive(Debug)]
pub(crate) struct Secrets {
    url: String,
    shown: String,
    login: Option<String>,
    password: Option<String>,
}

impl Secrets {
    pub(crate) fn of(url: &str) -> Self {
        let login = redact::login(url);
        let password = login.and_then(|login| login.split_once(':'));
        let password = password.map(|(_, password)| password);
        Self {
            url: url.to_owned(),
            shown: redact::without_credentials(url),
            login: login.map(str::to_owned),
            password: password.filter(|word| !word.is_empty()).map(str::to_owned),
        }
    }

    /// The text as it may be logged.
    pub(crate) fn hide(&self, text: &str) -> String {
        let mut text = text.replace(&self.url, &self.shown);
        for secret in self.login.iter().chain(&self.password) {
            text = text.replace(secret.as_str(), redact::HIDDEN);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_cannot_leave_its_quotes() {
        let script = text("http://h/it's'x");
        assert!(script.contains(r"file 'http://h/it'\''s'\''x'"), "{script}");
        assert_eq!(script.lines().count(), 3);
    }

    #[test]
    fn a_script_names_the_address_and_its_arguments_do_not() {
        let script = Script::new("rtsp://ann:secret@h/s").unwrap();
        assert!(!script.input().concat().contains("secret"));
        let readable = std::fs::read_to_string(script.path()).unwrap();
        assert!(readable.contains("file 'rtsp://ann:secret@h/s'"));
    }

    #[test]
    fn what_is_printed_repeats_no_secret() {
        let secrets = Secrets::of("rtsp://ann:s3cret@camera/1?token=t0ken");
        assert_eq!(
            secrets.hide("Impossible to open 'rtsp://ann:s3cret@camera/1?token=t0ken'"),
            "Impossible to open 'rtsp://camera/1?token=(hidden)'"
        );
        assert_eq!(secrets.hide("ann:s3cret@x"), "(hidden)@x");
        assert_eq!(secrets.hide("s3cret was wrong"), "(hidden) was wrong");
        assert!(has_secret("http://h/?token=x") && has_secret("udp://a:b@h"));
        assert!(!has_secret("http://h/x@y?a=b") && !has_secret("udp://@239.0.0.1:1"));
    }
}
