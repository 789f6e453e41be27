//! ffmpeg as the reader of a camera: small grey pictures on its standard output.

use std::{io, path::Path};

use crate::{
    ffmpeg::{Script, is_file},
    supervise::{Command, Output},
};

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
    if is_file(url) {
        // A file plays like a camera: in real time, and for ever.
        arguments.extend(["-re", "-stream_loop", "-1"].map(String::from));
    }
    arguments.extend(script.input());
    let filter = format!(
        "fps={frames_per_second},scale=w=max(2\\,trunc(iw*{scale})):h=max(2\\,trunc(ih*{scale})):flags=area,format=gray"
    );
    let mut add = |more: &[&str]| arguments.extend(more.iter().map(|&word| word.to_owned()));
    add(&["-map", "0:v:0", "-an", "-sn", "-dn", "-vf", &filter]);
    add(&["-f", "image2pipe", "-c:v", "pgm", "pipe:1"]);
    let command = Command::new(ffmpeg).args(arguments).output(Output::Bytes);
    Ok((command, script))
}
