//! What a program prints, both streams read side by side: a child that fills one pipe while only
//! the other is read would block for ever.

use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader},
    sync::mpsc,
};

/// Bytes of one line that are read before it is broken in two.
const LINE_BYTES: u64 = 64 * 1024;
/// Lines that wait for a slow reader; then the program feels it, as with any pipe.
pub(super) const LINES_WAITING: usize = 1024;

/// Which stream a line came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// One line of a program, without its end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Line {
    /// Where it came from.
    pub stream: Stream,
    /// What it says; bytes that are no UTF-8 are replaced.
    pub text: String,
}

/// Reads one stream to its end. A reader that went away does not stop the reading: the program must
/// not block because nobody listens.
pub(super) async fn read(pipe: impl AsyncRead + Unpin, stream: Stream, lines: mpsc::Sender<Line>) {
    let mut pipe = BufReader::new(pipe);
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut pipe)
            .take(LINE_BYTES)
            .read_until(b'\n', &mut line)
            .await
        {
            Ok(0) | Err(_) => return,
            Ok(_) => {
                let text = String::from_utf8_lossy(&line);
                let text = text.trim_end_matches(['\n', '\r']).to_owned();
                let _ = lines.send(Line { stream, text }).await;
            }
        }
    }
}
