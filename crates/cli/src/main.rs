//! The binary `leasehold`.

use clap::Parser;

/// Who owns this work right now, until when and under which fencing token.
#[derive(Parser)]
#[command(version)]
struct Arguments {}

fn main() {
    Arguments::parse();
}
