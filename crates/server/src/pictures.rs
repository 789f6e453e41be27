//! The newest still of each camera, in the memory of this server: zones are drawn on it.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use lease::{Token, UnixMillis};

/// The most stills that are kept.
const MAX_PICTURES: usize = 4_096;
/// The most bytes of all of them; the oldest goes first.
const MAX_TOTAL_BYTES: usize = 64 * 1024 * 1024;

/// A still, as its holder sent it.
#[derive(Clone, Debug)]
pub(crate) struct Picture {
    /// Whose camera it shows.
    pub tenant_id: String,
    pub bytes: Bytes,
    pub media: &'static str,
    /// Width and height of the camera's own picture: the still may be smaller.
    pub size: (u32, u32),
    /// The token it was sent under.
    pub token: Token,
    /// When it was taken in, by the authority's clock.
    pub at: UnixMillis,
}

impl Picture {
    /// The most bytes of one still.
    pub const MAX_BYTES: usize = leasehold_api::worker::MAX_PICTURE_BYTES;
    /// The longest side of the camera's own picture, in pixels.
    pub const MAX_SIDE: u32 = 16_384;

    /// The media type that the first bytes prove; what the sender calls it does not count.
    pub fn media(bytes: &[u8]) -> Option<&'static str> {
        match bytes {
            [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
            [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some("image/png"),
            [
                b'R',
                b'I',
                b'F',
                b'F',
                _,
                _,
                _,
                _,
                b'W',
                b'E',
                b'B',
                b'P',
                ..,
            ] => Some("image/webp"),
            _ => None,
        }
    }
}

/// The stills by camera, bounded in number and size.
#[derive(Default)]
pub(crate) struct Pictures(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    by_camera: HashMap<String, Picture>,
    bytes: usize,
}

impl Kept {
    fn remove(&mut self, camera: &str) {
        if let Some(gone) = self.by_camera.remove(camera) {
            self.bytes -= gone.bytes.len();
        }
    }

    fn is_over(&self) -> bool {
        self.by_camera.len() > MAX_PICTURES || self.bytes > MAX_TOTAL_BYTES
    }
}

impl Pictures {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a still. False when one of a newer token is there: between the check of its token and now
    /// the camera changed hands.
    pub fn keep(&self, camera: &str, picture: Picture) -> bool {
        let mut kept = self.kept();
        let before = kept.by_camera.get(camera);
        if before.is_some_and(|it| it.token > picture.token) {
            return false;
        }
        kept.remove(camera);
        kept.bytes += picture.bytes.len();
        kept.by_camera.insert(camera.to_owned(), picture);
        while kept.is_over() {
            let oldest = kept.by_camera.iter().min_by_key(|(_, it)| it.at);
            let Some(oldest) = oldest.map(|(name, _)| name.clone()) else {
                break;
            };
            kept.remove(&oldest);
        }
        true
    }

    /// The newest still of a camera.
    pub fn of(&self, camera: &str) -> Option<Picture> {
        self.kept().by_camera.get(camera).cloned()
    }

    /// The camera is gone.
    pub fn forget(&self, camera: &str) {
        self.kept().remove(camera);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(token: u64, at: u64, bytes: usize) -> Picture {
        Picture {
            tenant_id: "t".into(),
            bytes: vec![0; bytes].into(),
            media: "image/png",
            size: (2, 1),
            token: Token::new(token).unwrap(),
            at: UnixMillis::new(at),
        }
    }

    #[test]
    fn an_older_token_replaces_nothing() {
        let pictures = Pictures::default();
        assert!(pictures.keep("c", picture(7, 1, 10)));
        assert!(pictures.keep("c", picture(7, 2, 20)));
        assert!(!pictures.keep("c", picture(6, 3, 30)));
        assert_eq!(pictures.of("c").unwrap().bytes.len(), 20);
        assert_eq!(pictures.kept().bytes, 20);
        pictures.forget("c");
        assert!(pictures.of("c").is_none());
        assert_eq!(pictures.kept().bytes, 0);
    }

    #[test]
    fn the_oldest_goes_when_there_are_too_many_or_too_large_ones() {
        let pictures = Pictures::default();
        for index in 0..=MAX_PICTURES {
            pictures.keep(&index.to_string(), picture(1, index as u64, 1));
        }
        assert_eq!(pictures.kept().by_camera.len(), MAX_PICTURES);
        assert!(pictures.of("0").is_none() && pictures.of("1").is_some());
        let at = MAX_PICTURES as u64 + 1;
        pictures.keep("large", picture(1, at, MAX_TOTAL_BYTES));
        assert_eq!(pictures.kept().by_camera.len(), 1);
        assert_eq!(pictures.kept().bytes, MAX_TOTAL_BYTES);
    }

    #[test]
    fn only_the_first_bytes_say_what_a_picture_is() {
        for (bytes, media) in [
            (&b"\xff\xd8\xff\xe0JFIF"[..], Some("image/jpeg")),
            (b"\x89PNG\r\n\x1a\n....", Some("image/png")),
            (b"RIFF....WEBPVP8 ", Some("image/webp")),
            (b"RIFF....WAVEfmt ", None),
            (b"<svg xmlns='http://www.w3.org/2000/svg'/>", None),
            (b"GIF89a", None),
            (b"\xff\xd8", None),
            (b"", None),
        ] {
            assert_eq!(Picture::media(bytes), media, "{bytes:?}");
        }
    }
}
