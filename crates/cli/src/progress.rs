//! How far something is, on standard error.

use std::io::{IsTerminal as _, Write as _};

/// How many steps the bar has, and how many lines are written elsewhere.
const WIDTH: u64 = 30;
const LINES: u64 = 10;

/// How far it is: on a terminal one line that is drawn over, elsewhere a line now and then.
#[derive(Default)]
pub struct Bar {
    drawn: Option<(&'static str, u64)>,
}

impl Bar {
    /// So many of so many are done.
    pub fn show(&mut self, what: &'static str, done: u64, of: u64) {
        let of = of.max(done);
        if of == 0 {
            return;
        }
        let terminal = std::io::stderr().is_terminal();
        let part = done * if terminal { WIDTH } else { LINES } / of;
        if self.drawn == Some((what, part)) {
            return;
        }
        if self.drawn.is_some_and(|(before, _)| before != what) {
            self.end();
        }
        self.drawn = Some((what, part));
        let mut stderr = std::io::stderr().lock();
        // Nobody is helped by a failure to show how far it is.
        let _ = if terminal {
            let full = usize::try_from(part).unwrap_or_default();
            let bar = format!("{:<width$}", "#".repeat(full), width = WIDTH as usize);
            write!(stderr, "\r{what:<8} [{bar}] {done} of {of}").and_then(|()| stderr.flush())
        } else {
            writeln!(stderr, "{what} {done} of {of}")
        };
    }

    /// Leaves the line that is drawn over.
    pub fn end(&mut self) {
        if self.drawn.take().is_some() && std::io::stderr().is_terminal() {
            eprintln!();
        }
    }
}
