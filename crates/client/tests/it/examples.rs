//! The examples work as they are, and the README shows the first of them.

use crate::{
    served::{Served, TOKEN},
    world::World,
};

#[expect(dead_code, reason = "an example has a `main` of its own")]
#[path = "../../examples/own.rs"]
mod own;
#[expect(dead_code, reason = "an example has a `main` of its own")]
#[path = "../../examples/wait.rs"]
mod wait;

#[tokio::test]
async fn the_examples_own_a_key_and_give_it_back() {
    let world = World::new();
    let served = Served::start(&world).await;
    own::run(&served.url, TOKEN).await.unwrap();
    wait::run(&served.url, TOKEN).await.unwrap();
    // Whoever may not is refused when it connects.
    let refused = own::run(&served.url, "wrong").await.unwrap_err();
    assert!(
        refused.to_string().contains("AUTHENTICATION_FAILED"),
        "a wrong credential is named: {refused}"
    );
    served.stop().await;
}

#[test]
fn the_readmes_show_the_example() {
    let example = include_str!("../../examples/own.rs");
    let (_, body) = example
        .split_once("dyn std::error::Error>> {\n    let keeper")
        .unwrap();
    let (body, _) = body.split_once("\n}\n").unwrap();
    let shown: String = format!("    let keeper{body}")
        .lines()
        .map(|line| line.strip_prefix("    ").unwrap_or(line).to_owned() + "\n")
        .collect();
    assert_eq!(shown.lines().count(), 10, "{shown}");
    let root = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md"));
    for readme in [include_str!("../../README.md"), &root.unwrap()] {
        assert!(readme.contains(&shown), "{shown}\nis not in\n{readme}");
    }
}
