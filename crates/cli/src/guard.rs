//! A question before something is gone for good.

use std::io::{BufRead as _, IsTerminal as _, Write as _};

use crate::exit::{Exit, Failure};

/// `--yes` for verbs that remove something.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct Sure {
    /// Do not ask
    #[arg(long)]
    pub yes: bool,
}

impl Sure {
    /// Asks whoever sits at the terminal; a script must say `--yes`.
    pub fn about(self, what: &str) -> Result<(), Failure> {
        if self.yes {
            return Ok(());
        }
        if !std::io::stdin().is_terminal() {
            return Err(
                Failure::new(Exit::Usage, format!("{what} cannot be undone"))
                    .hint("add --yes to do it without a question"),
            );
        }
        eprint!("{what} cannot be undone. Type yes to go on: ");
        let _ = std::io::stderr().flush();
        let mut answer = String::new();
        let read = std::io::stdin().lock().read_line(&mut answer);
        if read.is_ok() && answer.trim().eq_ignore_ascii_case("yes") {
            return Ok(());
        }
        Err(Failure::new(Exit::Failed, "nothing was done"))
    }
}
