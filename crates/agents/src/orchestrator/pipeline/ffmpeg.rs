//! ffmpeg to HLS.

use super::{Job, playlist};
use crate::{
    ffmpeg::{PROTOCOLS, Script},
    supervise::Command,
};

/// Short segments, so that a session is playable soon; old ones are deleted as it goes. With a script, the
/// source is the one that it names.
pub(super) fn command(
    ffmpeg: &std::path::Path,
    job: &Job,
    script: Option<&Script>,
    height: u16,
) -> Command {
    let mut arguments: Vec<String> = ["-nostdin", "-hide_banner", "-loglevel", "warning"]
        .map(String::from)
        .to_vec();
    let mut add = |more: &[&str]| arguments.extend(more.iter().map(|&word| word.to_owned()));
    let scale = format!("scale=-2:{height}");
    let picture = format!(
        "testsrc2=size={}x{height}:rate=25",
        u32::from(height) * 16 / 9 / 2 * 2
    );
    match &job.source {
        Some(source) => {
            if let Some(start_ms) = job.start_ms.filter(|&start| start > 0) {
                add(&["-ss", &(start_ms / 1000).to_string()]);
            }
            // A playlist from elsewhere must not lead to files of this machine.
            match script {
                Some(script) => script.input().iter().for_each(|word| add(&[word])),
                None => add(&["-protocol_whitelist", PROTOCOLS, "-i", source]),
            }
            add(&["-vf", &scale]);
        }
        None => add(&[
            "-re",
            "-f",
            "lavfi",
            "-i",
            &picture,
            "-re",
            "-f",
            "lavfi",
            "-i",
            "sine=frequency=440",
        ]),
    }
    add(&[
        "-c:v",
        "libx264",
        "-preset",
        "ultrafast",
        "-tune",
        "zerolatency",
        "-pix_fmt",
        "yuv420p",
        "-g",
        "25",
        "-c:a",
        "aac",
        "-ac",
        "2",
        "-f",
        "hls",
        "-hls_time",
        "1",
        "-hls_list_size",
        "8",
        "-hls_flags",
        "delete_segments+omit_endlist+temp_file+independent_segments",
        // Browsers play fragmented MP4 by themselves; MPEG transport streams they do not.
        "-hls_segment_type",
        "fmp4",
        "-hls_fmp4_init_filename",
        "init.mp4",
        "-hls_segment_filename",
    ]);
    let segments = job.dir.join("seg%05d.m4s");
    let playlist = job.dir.join(playlist::NAME);
    add(&[&segments.to_string_lossy(), &playlist.to_string_lossy()]);
    Command::new(ffmpeg).args(arguments)
}
