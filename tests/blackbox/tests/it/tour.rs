//! The tour in the documentation, followed literally.

use std::{fs, os::unix::fs::symlink, path::Path};

use leasehold_testkit::{Binary, Dir, Program, port};

use crate::cli_support::SOON;

/// What a page tells its reader to type.
fn commands(page: &str) -> String {
    let mut inside = false;
    let mut lines = vec!["set -e"];
    for line in page.lines() {
        if line.starts_with("```") {
            inside = line == "```sh";
        } else if inside {
            lines.push(line);
        }
    }
    lines.join("\n")
}

#[tokio::test]
async fn the_tour_works_as_it_is_written() {
    let dir = Dir::new("tour");
    let (home, bin) = (dir.join("home"), dir.join("bin"));
    fs::create_dir_all(&home).expect("a home");
    fs::create_dir_all(&bin).expect("a folder");
    symlink(Binary::leasehold_path(), bin.join("leasehold")).expect("a link");
    let path = format!(
        "{}:{}",
        bin.display(),
        std::env::var("PATH").expect("a path")
    );
    let newcomer = |program: Program| {
        program
            .env_clear()
            .env("HOME", &home)
            .env("PATH", path.clone())
    };
    let listen = format!("127.0.0.1:{}", port::free());
    let mut server = newcomer(Program::new(bin.join("leasehold")))
        .args(["serve", "--listen", &listen])
        .spawn();
    server.wait_for_line("listening on", SOON).await;

    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/tour.md");
    let script = commands(&fs::read_to_string(page).expect("the page"));
    assert!(script.lines().count() > 20, "{script}");
    let said = newcomer(Program::new("bash"))
        .arg(dir.write("tour.sh", &script).expect("written"))
        .run()
        .await
        .expect("every command succeeds");
    for sign in [
        "refused with 75",
        "this ran as the only owner",
        "no two owners overlap",
        "\"verdict\":\"current\"",
        "\"state\":\"stopping\"",
        "edge-1 has it",
        "pump-1",
    ] {
        assert!(said.contains(sign), "{sign} is missing in:\n{said}");
    }
}
