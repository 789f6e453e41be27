//! The newest revision and token, in a small file beside the write-ahead log.
//!
//! SQLite drops a damaged tail of its log without a word, because it cannot know whether anyone was
//! notified of it. This file does: it is written after each commit and before the answers. It is not
//! synced, so after a power failure it may be behind the tables, which is fine, and never ahead of them,
//! which is what is checked.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::Path,
};

use lease::{Revision, Token};

use std::os::unix::fs::OpenOptionsExt as _;

use super::{private, row::checksum};

/// The name of the file.
pub(super) const FILE: &str = "guard";

/// Two numbers and their checksum.
const SIZE: usize = 20;

/// What was acknowledged at last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Mark {
    pub revision: Revision,
    /// The largest token ever granted.
    pub token: Token,
}

impl Mark {
    pub const NONE: Self = Self {
        revision: Revision::ZERO,
        token: Token::ZERO,
    };

    fn to_bytes(self) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        bytes[..8].copy_from_slice(&self.revision.get().to_le_bytes());
        bytes[8..16].copy_from_slice(&self.token.get().to_le_bytes());
        let sum = checksum(&bytes[..16]);
        bytes[16..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; SIZE] = bytes.try_into().ok()?;
        let number = |from: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[from..from + 8]);
            u64::from_le_bytes(word)
        };
        (bytes[16..] == checksum(&bytes[..16]).to_le_bytes()).then_some(Self {
            revision: Revision::new(number(0)),
            token: Token::new(number(8)).ok()?,
        })
    }
}

/// The file, open for the life of the store.
pub(super) struct HighWater {
    file: File,
    mark: Mark,
}

impl HighWater {
    /// Opens the file, and says what it held: `None` when it was not there or cannot be read.
    pub fn open(dir: &Path) -> io::Result<(Self, Option<Mark>)> {
        let path = dir.join(FILE);
        let before = match std::fs::read(&path) {
            Ok(bytes) => Mark::from_bytes(&bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(private::FILE_MODE)
            .open(path)?;
        let mark = before.unwrap_or(Mark::NONE);
        Ok((Self { file, mark }, before))
    }

    /// Notes what is durable now. Failing to costs a later warning, not a grant.
    pub fn set(&mut self, revision: Revision, token: Token) {
        self.mark = Mark {
            revision,
            token: self.mark.token.max(token),
        };
        if let Err(error) = self.file.write_all_at(&self.mark.to_bytes(), 0) {
            tracing::warn!(%error, "the guard file could not be written");
        }
    }

    /// Makes it durable, for the orderly stop.
    pub fn sync(&self) {
        if let Err(error) = self.file.sync_all() {
            tracing::warn!(%error, "the guard file could not be synced");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_survives_and_a_damaged_one_is_noticed() {
        let mark = Mark {
            revision: Revision::new(7),
            token: Token::MAX,
        };
        let mut bytes = mark.to_bytes();
        assert_eq!(Mark::from_bytes(&bytes), Some(mark));
        bytes[3] ^= 1;
        assert_eq!(Mark::from_bytes(&bytes), None);
        assert_eq!(Mark::from_bytes(&bytes[..19]), None);
    }
}
