//! Every test that docs/lessons.md names is there.

#![expect(clippy::unwrap_used, reason = "a test without its sources has failed")]

use std::{
    fs,
    path::{Path, PathBuf},
};

fn sources(folder: &Path, text: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if name != "target" && name != "node_modules" {
                sources(&path, text);
            }
        } else if path.extension().is_some_and(|it| it == "rs") {
            text.push_str(&fs::read_to_string(&path).unwrap());
        }
    }
}

#[test]
fn the_tests_that_the_lessons_name_exist() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(root.join("docs/lessons.md")).unwrap();
    let mut text = String::new();
    for folder in ["crates", "tests", "examples"] {
        sources(&root.join(folder), &mut text);
    }
    // In the last column of each row, between backticks.
    let rows = page.lines().filter_map(|line| line.strip_suffix(" |"));
    let cells = rows.filter_map(|row| row.rsplit(" | ").next());
    let names: Vec<&str> = cells
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .collect();
    assert!(names.len() > 50, "only {} names were read", names.len());
    let gone: Vec<_> = names
        .iter()
        .filter(|name| !text.contains(&format!("fn {name}(")))
        .collect();
    assert!(gone.is_empty(), "no such tests: {gone:#?}");
}
