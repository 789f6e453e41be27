//! Grey pictures as ffmpeg writes them: PGM, one after the other. Each says how large it is, so nothing
//! has to be known about a camera before it is read.

use std::io;

use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _};

/// The most pixels of one picture: 4096 × 4096.
const MAX_PIXELS: usize = 1 << 24;
/// A header line is a few digits.
const MAX_HEADER_LINE: u64 = 32;

/// A grey picture.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Frame {
    pub width: usize,
    pub height: usize,
    /// Row by row, from the top left; 0 is black.
    pub pixels: Vec<u8>,
}

/// Reads the next picture; `None` at the end of the stream.
pub(super) async fn read(reader: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Option<Frame>> {
    let Some(magic) = line(reader).await? else {
        return Ok(None);
    };
    let size = line(reader).await?.unwrap_or_default();
    let depth = line(reader).await?.unwrap_or_default();
    let (width, height) = dimensions(&size)
        .filter(|_| magic == "P5" && depth == "255")
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "this is no grey picture"))?;
    let mut pixels = vec![0; width * height];
    reader.read_exact(&mut pixels).await?;
    Ok(Some(Frame {
        width,
        height,
        pixels,
    }))
}

async fn line(reader: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Option<String>> {
    let mut text = String::new();
    let read = reader.take(MAX_HEADER_LINE).read_line(&mut text).await?;
    Ok((read > 0).then(|| text.trim_end().to_owned()))
}

fn dimensions(text: &str) -> Option<(usize, usize)> {
    let (width, height) = text.split_once(' ')?;
    let (width, height): (usize, usize) = (width.parse().ok()?, height.parse().ok()?);
    let pixels = width.checked_mul(height)?;
    (1..=MAX_PIXELS)
        .contains(&pixels)
        .then_some((width, height))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn pictures_follow_each_other_and_may_change_their_size() {
        let mut stream: &[u8] = b"P5\n2 1\n255\n\x01\x02P5\n1 1\n255\n\n";
        let first = read(&mut stream).await.unwrap().unwrap();
        assert_eq!((first.width, first.height), (2, 1));
        assert_eq!(first.pixels, [1, 2]);
        let second = read(&mut stream).await.unwrap().unwrap();
        assert_eq!(second.pixels, [b'\n'], "a pixel may look like a line's end");
        assert_eq!(read(&mut stream).await.unwrap(), None);
    }

    #[tokio::test]
    async fn anything_else_is_an_error_and_allocates_nothing() {
        for wrong in [
            &b"P6\n1 1\n255\n\x01\x02\x03"[..],
            b"P5\n99999 99999\n255\n",
            b"P5\n0 1\n255\n",
            b"P5\n2 2\n255\n\x01",
            b"P5\n1 1\n65535\n\x01\x01",
            b"garbage without an end that goes on and on and on and on",
        ] {
            let mut stream = wrong;
            assert!(read(&mut stream).await.is_err(), "{wrong:?}");
        }
    }
}
