//! Standard output: one writer, so that lines stay whole and a pipe that nobody reads holds up one
//! thread and no more.

use std::{io::Write, sync::Arc, thread};

use lease::{BootMillis, Clock};
use tokio::sync::{mpsc, oneshot};

use super::Delivery;

/// How many results wait for the writer.
const WAITING: usize = 64;

/// A result to write.
struct Line {
    text: String,
    /// From then on the ownership it was made under is not trusted any more.
    deadline: BootMillis,
    done: oneshot::Sender<Result<Delivery, String>>,
}

/// Writes results as lines.
pub(in super::super) struct StdoutSink {
    lines: mpsc::Sender<Line>,
    clock: Arc<dyn Clock>,
}

impl StdoutSink {
    pub fn start(clock: Arc<dyn Clock>) -> Result<Self, String> {
        Self::over(clock, std::io::stdout())
    }

    fn over(clock: Arc<dyn Clock>, out: impl Write + Send + 'static) -> Result<Self, String> {
        let (lines, waiting) = mpsc::channel(WAITING);
        let writer = write(waiting, clock.clone(), out);
        thread::Builder::new()
            .name("stdout".to_owned())
            .spawn(writer)
            .map_err(|error| format!("no thread for standard output: {error}"))?;
        Ok(Self { lines, clock })
    }

    /// Waits until the line is written. Whoever stops waiting takes the line back, unless it is being
    /// written at that moment.
    pub async fn deliver(&self, text: String, left_ms: u64) -> Result<Delivery, String> {
        let (done, written) = oneshot::channel();
        let line = Line {
            text,
            deadline: self.clock.boot().plus(left_ms),
            done,
        };
        let gone = || "the writer has ended".to_owned();
        self.lines.send(line).await.map_err(|_| gone())?;
        written.await.map_err(|_| gone())?
    }
}

fn write(
    mut waiting: mpsc::Receiver<Line>,
    clock: Arc<dyn Clock>,
    mut out: impl Write,
) -> impl FnOnce() {
    move || {
        while let Some(line) = waiting.blocking_recv() {
            // Right before the write: it may have waited behind one that took long.
            if line.done.is_closed() || clock.boot() >= line.deadline {
                let _ = line.done.send(Ok(Delivery::Late));
                continue;
            }
            let written = writeln!(out, "{}", line.text).and_then(|()| out.flush());
            let written = written.map(|()| Delivery::Accepted);
            let _ = line.done.send(written.map_err(|error| error.to_string()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, pipe},
        time::Duration,
    };

    use lease::UnixMillis;
    use leasehold_clock::Manual;

    use super::*;

    /// Nobody reads for a minute: of all that waited meanwhile, nothing old is written but the line that
    /// was being written.
    #[tokio::test]
    async fn after_a_blocked_pipe_only_current_results_are_written() {
        let clock = Arc::new(Manual::new(UnixMillis::new(1_000_000)));
        let (reader, writer) = pipe().unwrap();
        let sink = Arc::new(StdoutSink::over(clock.clone(), writer).unwrap());
        // Larger than any pipe: the writer is held up.
        let large = "x".repeat(1 << 20);
        let blocked = tokio::spawn({
            let (sink, large) = (sink.clone(), large.clone());
            async move { sink.deliver(large, 1_000).await }
        });
        // It is being written once its first byte is there.
        let mut reader = tokio::task::spawn_blocking(move || {
            let mut reader = reader;
            reader.read_exact(&mut [0]).map(|()| reader)
        })
        .await
        .unwrap()
        .unwrap();
        let waiting: Vec<_> = (0..20)
            .map(|n| {
                let sink = sink.clone();
                tokio::spawn(async move { sink.deliver(format!("old {n}"), 1_000).await })
            })
            .collect();
        // One of them is given up by whoever waits.
        let given_up = tokio::time::timeout(
            Duration::from_millis(50),
            sink.deliver("given up".to_owned(), 120_000),
        );
        assert!(given_up.await.is_err());
        clock.advance(60_000);
        let read = thread::spawn(move || {
            let mut text = String::new();
            reader.read_to_string(&mut text).map(|_| text)
        });
        assert_eq!(blocked.await.unwrap(), Ok(Delivery::Accepted));
        for old in waiting {
            assert_eq!(old.await.unwrap(), Ok(Delivery::Late));
        }
        let fresh = sink.deliver("fresh".to_owned(), 1_000).await;
        assert_eq!(fresh, Ok(Delivery::Accepted));
        drop(Arc::try_unwrap(sink).ok().expect("the last one"));
        let text = read.join().unwrap().unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines, [&large[1..], "fresh"]);
    }
}
