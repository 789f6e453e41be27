//! Reads server-sent events.

use bytes::Bytes;

/// The largest event that is read: a snapshot of everything live may be large, but not endless.
const MAX_EVENT_BYTES: usize = 256 * 1024 * 1024;

/// More than [`MAX_EVENT_BYTES`] without an end.
#[derive(Debug)]
pub(crate) struct TooLarge;

/// Takes bytes as they come and gives the data of each complete event.
#[derive(Default)]
pub(crate) struct Reader {
    line: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
}

impl Reader {
    /// The data of the events that these bytes complete. Comments, which keep a connection alive,
    /// and all other fields are skipped.
    pub fn feed(&mut self, bytes: &Bytes) -> Result<Vec<Vec<u8>>, TooLarge> {
        let mut events = Vec::new();
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            if self.line.len() + self.data.len() + piece.len() > MAX_EVENT_BYTES {
                return Err(TooLarge);
            }
            self.line.extend_from_slice(piece);
            if piece.last() == Some(&b'\n') {
                let line = std::mem::take(&mut self.line);
                if let Some(event) = self.line(line.trim_ascii_end()) {
                    events.push(event);
                }
            }
        }
        Ok(events)
    }

    fn line(&mut self, line: &[u8]) -> Option<Vec<u8>> {
        if line.is_empty() {
            let complete = std::mem::take(&mut self.has_data);
            return complete.then(|| std::mem::take(&mut self.data));
        }
        if let Some(data) = line.strip_prefix(b"data:") {
            if self.has_data {
                self.data.push(b'\n');
            }
            self.has_data = true;
            self.data
                .extend_from_slice(data.strip_prefix(b" ").unwrap_or(data));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_whole_however_they_are_cut() {
        let text = b": hello\n\nid: 7\ndata: {\"a\":1}\n\ndata: x\r\ndata: y\r\n\r\n";
        for cut in 0..text.len() {
            let mut reader = Reader::default();
            let mut events = reader.feed(&Bytes::copy_from_slice(&text[..cut])).unwrap();
            events.extend(reader.feed(&Bytes::copy_from_slice(&text[cut..])).unwrap());
            assert_eq!(events, [b"{\"a\":1}".to_vec(), b"x\ny".to_vec()]);
        }
    }
}
