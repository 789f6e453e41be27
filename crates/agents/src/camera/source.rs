//! ffmpeg as the reader of a camera: small grey pictures on its standard output.
//!
//! A camera's address carries its login, and arguments are shown to every user of the machine. So ffmpeg
//! is given a script (`ffconcat`) that names the address, and the script lives in a file that has no name
//! (`memfd`): only this user's processes can open it, and it is gone with this process. What others see
//! is `-i /proc/PID/fd/N`.

use std::{
    fs::File,
    io::{self, Write as _},
    os::fd::AsRawFd as _,
    path::Path,
};

use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::supervise::{Command, Output};

/// How a stream may come in. Nothing that a camera sends may lead to a file of this machine.
const PROTOCOLS: &str = "http,https,tcp,tls,crypto,data,rtsp,rtsps,rtp,srtp,udp";

/// The script that names the camera's address. ffmpeg can open it as long as this value lives.
#[derive(Debug)]
pub(super) struct Script(File);

impl Script {
    fn new(url: &str) -> io::Result<Self> {
        let descriptor = memfd_create("camera", MFdFlags::MFD_CLOEXEC)?;
        let mut file = File::from(descriptor);
        file.write_all(text(url).as_bytes())?;
        Ok(Self(file))
    }

    /// Where ffmpeg finds it.
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

fn is_file(url: &str) -> bool {
    url.starts_with("file://")
}

/// The command that reads this camera, and what must live until it has begun.
pub(super) fn command(
    ffmpeg: &Path,
    url: &str,
    scale: f64,
    frames_per_second: f64,
) -> io::Result<(Command, Script)> {
    let script = Script::new(url)?;
    let mut arguments: Vec<String> = ["-nostdin", "-hide_banner", "-loglevel", "error"]
        .map(String::from)
        .to_vec();
    let mut add = |more: &[&str]| arguments.extend(more.iter().map(|&word| word.to_owned()));
    if is_file(url) {
        // A file plays like a camera: in real time, and for ever.
        add(&["-re", "-stream_loop", "-1"]);
    }
    add(&["-safe", "0", "-f", "concat", "-protocol_whitelist"]);
    add(&[&format!("file,{PROTOCOLS}"), "-i", &script.path()]);
    let filter = format!(
        "fps={frames_per_second},scale=w=max(2\\,trunc(iw*{scale})):h=max(2\\,trunc(ih*{scale})):flags=area,format=gray"
    );
    add(&["-map", "0:v:0", "-an", "-sn", "-dn", "-vf", &filter]);
    add(&["-f", "image2pipe", "-c:v", "pgm", "pipe:1"]);
    let command = Command::new(ffmpeg).args(arguments).output(Output::Bytes);
    Ok((command, script))
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
    fn a_login_is_in_no_argument() {
        let url = "rtsp://ann:secret@h/s";
        let (command, script) = command(Path::new("ffmpeg"), url, 0.5, 5.0).unwrap();
        assert!(!format!("{command:?}").contains("secret"));
        let readable = std::fs::read_to_string(script.path()).unwrap();
        assert!(readable.contains("file 'rtsp://ann:secret@h/s'"));
    }
}
