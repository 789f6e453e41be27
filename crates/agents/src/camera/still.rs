//! Stills for whoever draws zones: a camera's newest picture as a small grey PNG, sent to the manager.

use std::{collections::BTreeMap, time::Duration};

use lease::{BootMillis, Clock};
use leasehold_api::paths;

use super::{Options, frame::Frame, post, worker::Worker};

/// The longest side of a still, in pixels. It is not compressed: a square one has less than 150 kB.
const MAX_SIDE: usize = 384;
/// How often is looked whether a still is due.
const LOOK_MS: u64 = 1_000;
/// When one that was not taken is tried again, unless the interval is shorter.
const RETRY_MS: u64 = 10_000;
/// How long one may take to the control plane and back.
const LIMIT: Duration = Duration::from_secs(15);

/// Sends stills for ever: the first of a camera as soon as there is one, then at intervals.
pub(super) async fn send(options: &Options, worker: &Worker, clock: &dyn Clock) {
    let every = u64::try_from(options.picture_interval.as_millis()).unwrap_or(u64::MAX);
    let Some(url) = options.manager_url.as_deref().filter(|_| every > 0) else {
        return std::future::pending().await;
    };
    // When the next one is due, by camera and token.
    let mut due: BTreeMap<(String, u64), BootMillis> = BTreeMap::new();
    loop {
        let pictured = worker.pictured();
        due.retain(|it, _| pictured.contains(it));
        for it in pictured {
            let now = clock.boot();
            if due.get(&it).is_some_and(|at| now < *at) {
                continue;
            }
            let (camera, token) = &it;
            let Some((frame, scale)) = worker.picture(camera, *token) else {
                continue;
            };
            let (width, height) = (full(frame.width, scale), full(frame.height, scale));
            let path = format!(
                "cameras/{}/picture?token={token}&width={width}&height={height}",
                paths::encode(camera)
            );
            let url = options.at_manager(url, &path);
            let sent = post(&url, "image/png", png(&frame), LIMIT).await;
            let pause = match sent {
                Ok(()) => every,
                Err(error) => {
                    tracing::debug!(camera, error, "still not taken");
                    every.min(RETRY_MS)
                }
            };
            due.insert(it, now.plus(pause));
        }
        clock.sleep_until(clock.boot().plus(LOOK_MS)).await;
    }
}

/// A side of the camera's own picture in whole pixels, from that of the one that was made smaller.
fn full(side: usize, scale: f64) -> String {
    format!("{:.0}", side as f64 / scale)
}

/// A grey picture as PNG, small enough to be sent.
fn png(frame: &Frame) -> Vec<u8> {
    let step = frame.width.max(frame.height).div_ceil(MAX_SIDE).max(1);
    let (width, height) = (frame.width.div_ceil(step), frame.height.div_ceil(step));
    let mut rows = Vec::with_capacity(height * (width + 1));
    for y in 0..height {
        rows.push(0); // The row as it is, without a filter.
        rows.extend((0..width).map(|x| average(frame, x * step, y * step, step)));
    }
    let mut header = Vec::with_capacity(13);
    for side in [width, height] {
        header.extend(u32::try_from(side).unwrap_or(u32::MAX).to_be_bytes());
    }
    header.extend([8, 0, 0, 0, 0]); // Eight bits of grey, nothing special.
    let mut png = b"\x89PNG\r\n\x1a\n".to_vec();
    for (name, data) in [
        (b"IHDR", header),
        (b"IDAT", stored(&rows)),
        (b"IEND", Vec::new()),
    ] {
        png.extend(u32::try_from(data.len()).unwrap_or(u32::MAX).to_be_bytes());
        let body = [&name[..], &data].concat();
        png.extend(&body);
        png.extend(crc32(&body).to_be_bytes());
    }
    png
}

/// The brightness of a square of pixels, as far as it lies in the picture.
fn average(frame: &Frame, left: usize, top: usize, side: usize) -> u8 {
    let (right, bottom) = (
        (left + side).min(frame.width),
        (top + side).min(frame.height),
    );
    let rows =
        (top..bottom).map(|y| &frame.pixels[y * frame.width + left..y * frame.width + right]);
    let sum: usize = rows.flatten().map(|pixel| usize::from(*pixel)).sum();
    let pixels = ((right - left) * (bottom - top)).max(1);
    u8::try_from(sum / pixels).unwrap_or(u8::MAX)
}

/// A zlib stream of blocks that are not compressed (RFC 1950, 1951).
fn stored(data: &[u8]) -> Vec<u8> {
    let mut stream = vec![0x78, 0x01];
    let mut blocks = data.chunks(usize::from(u16::MAX)).peekable();
    while let Some(block) = blocks.next() {
        let length = u16::try_from(block.len()).unwrap_or(u16::MAX);
        stream.push(u8::from(blocks.peek().is_none()));
        stream.extend(length.to_le_bytes());
        stream.extend((!length).to_le_bytes());
        stream.extend(block);
    }
    let (one, two) = data.iter().fold((1_u32, 0_u32), |(one, two), byte| {
        let one = (one + u32::from(*byte)) % 65_521;
        (one, (two + one) % 65_521)
    });
    stream.extend(((two << 16) | one).to_be_bytes());
    stream
}

/// The checksum of a chunk of a PNG.
fn crc32(data: &[u8]) -> u32 {
    !data.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            let carry = if crc & 1 == 1 { 0xedb8_8320 } else { 0 };
            (crc >> 1) ^ carry
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_their_standards() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(stored(b"Wikipedia")[2 + 5 + 9..], [0x11, 0xe6, 0x03, 0x98]);
    }

    #[test]
    fn a_large_picture_is_made_smaller_by_averages() {
        let frame = Frame {
            width: MAX_SIDE * 2,
            height: 3,
            pixels: [100, 200].repeat(MAX_SIDE * 3),
        };
        let made = png(&frame);
        assert_eq!(made[16..24], [0, 0, 1, 128, 0, 0, 0, 2], "384 by 2");
        let first = 8 + 25 + 8 + 7;
        assert_eq!(made[first..first + 3], [0, 150, 150]);
        assert!(made.len() < leasehold_api::worker::MAX_PICTURE_BYTES);
        assert_eq!(full(320, 0.5), "640");
        assert_eq!(full(107, 1.0 / 3.0), "321");
    }
}
