//! The guide shows the very texts that are tested.

use std::{fs, path::Path};

/// A block of the guide that names the file it is taken from.
const MARK: &str = "<!-- from ";

/// Rust without its indentation and without the slashes of an example in a comment.
fn plain(rust: &str) -> String {
    rust.lines()
        .map(|line| line.trim().trim_start_matches("///").trim())
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn the_guide_shows_what_is_tested() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let guide = fs::read_to_string(root.join("docs/fences.md")).unwrap();
    let mut shown = Vec::new();
    for part in guide.split(MARK).skip(1) {
        let (file, rest) = part.split_once(" -->").unwrap();
        let block = rest.trim_start();
        let block = block.strip_prefix("```").expect("a block follows its mark");
        let (_, block) = block.split_once('\n').unwrap();
        let (block, _) = block.split_once("\n```").expect("the block ends");
        let text = fs::read_to_string(root.join(file)).unwrap();
        if Path::new(file).extension().is_some_and(|it| it == "rs") {
            let (text, block) = (plain(&text), plain(block));
            assert!(text.contains(&block), "{file} does not contain:\n{block}");
        } else {
            assert_eq!(text.trim_end(), block, "{file} and the guide differ");
        }
        shown.push(file);
    }
    for file in [
        "examples/fences/postgres/fence.sql",
        "examples/fences/postgres/documents.sql",
        "examples/fences/redis/write.lua",
    ] {
        assert!(shown.contains(&file), "the guide does not show {file}");
    }
}
