//! Planted bugs, and who notices them: the tests that must are run once more, by this very executable, in
//! a process whose environment names the bug.

use std::{
    collections::BTreeSet,
    io::Read as _,
    process::{Command, Stdio},
    time::Duration,
};

/// All bugs are planted when this is `all`, which is `make mutants`.
const MUTANTS: &str = "LEASEHOLD_MUTANTS";
/// A test with a bug in it may hang: that is noticed too.
const PATIENCE: Duration = Duration::from_secs(90);

/// What the environment's variable says for a bug, what is wrong, and the tests of this executable, by their
/// full names, of which each must notice it.
pub type Row = (&'static str, &'static str, &'static [&'static str]);

/// Whether every bug is planted, or only a few as in an ordinary run.
pub fn all() -> bool {
    std::env::var(MUTANTS).is_ok_and(|which| which == "all")
}

/// One row of the table that `make mutants` prints.
pub fn row(what: &str, noticed_by: &str) {
    println!("| {what} | {noticed_by} |");
}

/// Plants one bug after the other and panics unless each test that is named for it fails. With all of
/// them also sees that the tests pass without a bug, so that it is the bug that fails them.
pub fn check(variable: &str, table: &[Row]) {
    assert!(!table.is_empty(), "nothing is planted");
    if all() {
        let tests: BTreeSet<&str> = table
            .iter()
            .flat_map(|(_, _, tests)| *tests)
            .copied()
            .collect();
        let tests: Vec<&str> = tests.into_iter().collect();
        let failed = failed(variable, None, &tests);
        assert!(failed.is_empty(), "without a bug these fail: {failed:#?}");
    }
    let mut missed = Vec::new();
    for (name, what, tests) in table {
        assert!(!tests.is_empty(), "{name}: by whom?");
        let failed = failed(variable, Some(name), tests);
        for test in *tests {
            if failed.contains(*test) {
                row(what, &format!("`{test}`"));
            } else {
                missed.push(format!("{name} by {test}"));
            }
        }
    }
    assert!(missed.is_empty(), "not noticed: {missed:#?}");
}

/// Those of the tests that fail with this bug.
fn failed(variable: &str, bug: Option<&str>, tests: &[&str]) -> BTreeSet<String> {
    let mut command = Command::new(std::env::current_exe().expect("this executable has a path"));
    command
        .arg("--exact")
        .args(tests)
        .args(["--test-threads", "2"])
        .env_remove(variable)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    if let Some(bug) = bug {
        command.env(variable, bug);
    }
    let mut child = command.spawn().expect("this executable starts");
    let mut output = child.stdout.take().expect("its output is piped");
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = output.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    });
    let mut left = PATIENCE;
    let pause = Duration::from_millis(20);
    let hung = loop {
        match child.try_wait() {
            Ok(Some(_)) => break false,
            Ok(None) if left.is_zero() => {
                let _ = child.kill();
                let _ = child.wait();
                break true;
            }
            _ => {
                std::thread::sleep(pause);
                left = left.saturating_sub(pause);
            }
        }
    };
    let text = reader.join().expect("reading does not panic");
    let with = |end: &str| -> BTreeSet<String> {
        text.lines()
            .filter_map(|line| line.strip_prefix("test ")?.strip_suffix(end))
            .map(|name| name.trim_end_matches(" - should panic").to_owned())
            .collect()
    };
    let (passed, mut failed) = (with(" ... ok"), with(" ... FAILED"));
    for test in tests {
        let ran = passed.contains(*test) || failed.contains(*test);
        assert!(ran || hung, "there is no test {test}: {text}");
        if !ran {
            failed.insert((*test).to_owned());
        }
    }
    failed
}
