//! The pieces of a binary body: numbers of as few bytes as they need, texts and lists with their length
//! before them.

use ::lease::Invalid;

/// Adds a number: seven bits a byte, the lowest first, the highest bit set on all but the last.
pub(super) fn put_number(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}

/// Adds bytes, with their number before them.
pub(super) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_number(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Adds a text in UTF-8.
pub(super) fn put_text(out: &mut Vec<u8>, text: &str) {
    put_bytes(out, text.as_bytes());
}

/// A bit per question, the first in the lowest.
pub(super) fn bits<const N: usize>(questions: [bool; N]) -> u8 {
    questions
        .into_iter()
        .enumerate()
        .fold(0, |bits, (place, yes)| bits | (u8::from(yes) << place))
}

/// Reads what was put.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

fn cut_short() -> Invalid {
    Invalid::new("frame", "a whole body: this one is cut short")
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub fn byte(&mut self) -> Result<u8, Invalid> {
        let (&first, rest) = self.rest.split_first().ok_or_else(cut_short)?;
        self.rest = rest;
        Ok(first)
    }

    pub fn number(&mut self) -> Result<u64, Invalid> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Invalid::new("frame", "numbers below 2^64"))
    }

    pub fn take(&mut self, count: usize) -> Result<&'a [u8], Invalid> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or_else(cut_short)?;
        self.rest = rest;
        Ok(taken)
    }

    pub fn bytes(&mut self) -> Result<&'a [u8], Invalid> {
        let count = self.count()?;
        self.take(count)
    }

    pub fn text(&mut self) -> Result<&'a str, Invalid> {
        let text = std::str::from_utf8(self.bytes()?)
            .map_err(|_| Invalid::new("frame", "texts in UTF-8"))?;
        // The same as over plain HTTP: not every store takes it.
        if text.contains('\0') {
            return Err(Invalid::new("frame", "text without the character NUL"));
        }
        Ok(text)
    }

    /// A number of things that follow. Each takes a byte at least, so that nobody can announce more than
    /// there is room for.
    pub fn count(&mut self) -> Result<usize, Invalid> {
        usize::try_from(self.number()?)
            .ok()
            .filter(|count| *count <= self.rest.len())
            .ok_or_else(cut_short)
    }

    /// A list, each thing read by `read`.
    pub fn list<T>(
        &mut self,
        mut read: impl FnMut(&mut Self) -> Result<T, Invalid>,
    ) -> Result<Vec<T>, Invalid> {
        let count = self.count()?;
        (0..count).map(|_| read(self)).collect()
    }

    /// All that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    pub fn end(&self) -> Result<(), Invalid> {
        if self.is_empty() {
            return Ok(());
        }
        Err(Invalid::new("frame", "nothing behind the body"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_take_as_few_bytes_as_they_need() {
        for (value, bytes) in [
            (0, 1),
            (127, 1),
            (128, 2),
            (1_800_000_000_000, 6),
            (u64::MAX, 10),
        ] {
            let mut out = Vec::new();
            put_number(&mut out, value);
            assert_eq!(out.len(), bytes, "{value}");
            assert_eq!(Reader::new(&out).number(), Ok(value));
            assert!(Reader::new(&out[1..]).number().is_err() || bytes > 1);
        }
        assert!(Reader::new(&[0xff; 10]).number().is_err());
        assert!(Reader::new(&[0xff; 9]).number().is_err());
    }

    #[test]
    fn more_than_there_is_cannot_be_announced() {
        let mut out = Vec::new();
        put_number(&mut out, 1 << 40);
        out.extend([0; 16]);
        assert!(Reader::new(&out).list(Reader::byte).is_err());
        assert!(Reader::new(&out).text().is_err());
        assert!(Reader::new(&[1, 0]).text().is_err(), "NUL");
    }
}
