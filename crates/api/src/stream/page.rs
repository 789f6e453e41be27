//! The page on the stream, held against the code: each type of frame has an example there in both
//! encodings, and they are what is sent.

use std::{collections::BTreeSet, fs, sync::LazyLock};

use ::lease::Holder;

use super::{
    Encoding,
    frame::{Batch, DOWN, Frame, Payload, UP, Unread, read_down, read_up},
};

/// Beside the crate, and no part of its package.
static PAGE: LazyLock<String> = LazyLock::new(|| {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/stream.md");
    fs::read_to_string(path).expect("the page")
});

/// The examples of one direction: readable, and binary.
fn examples(direction: &str) -> Vec<(String, Vec<u8>)> {
    let opening = format!("```stream-{direction}\n");
    PAGE.split(&opening)
        .skip(1)
        .map(|rest| {
            let (readable, rest) = rest.split_once('\n').unwrap();
            let (binary, _) = rest.split_once('\n').unwrap();
            let bytes = binary.split(' ').map(|it| u8::from_str_radix(it, 16));
            (
                readable.to_owned(),
                bytes.collect::<Result<_, _>>().unwrap(),
            )
        })
        .collect()
}

type Frames<T> = Vec<Result<Frame<T>, Unread>>;

fn one<T>(mut frames: Frames<T>, example: &str) -> Frame<T> {
    assert_eq!(frames.len(), 1, "{example}");
    frames
        .remove(0)
        .unwrap_or_else(|unread| panic!("{example}: {unread:?}"))
}

fn check<T: PartialEq + std::fmt::Debug>(
    direction: &str,
    types: &[(u8, &str)],
    read: fn(Encoding, &[u8], &Holder) -> Frames<T>,
    add: fn(&mut Batch, &Frame<T>),
) {
    let own = Holder::new("worker-7", "i1").unwrap();
    let mut shown = BTreeSet::new();
    for (readable, binary) in examples(direction) {
        let frame = one(read(Encoding::Json, readable.as_bytes(), &own), &readable);
        let same = one(read(Encoding::Binary, &binary, &own), &readable);
        assert_eq!(frame, same);
        let mut batch = Batch::new(Encoding::Binary, own.clone());
        add(&mut batch, &frame);
        let Some(Payload::Binary(sent)) = batch.take() else {
            panic!("binary")
        };
        assert_eq!(hex(&sent), hex(&binary), "{readable}");
        // What is written readably is read as the same.
        let mut batch = Batch::new(Encoding::Json, own.clone());
        add(&mut batch, &frame);
        add(&mut batch, &frame);
        let Some(Payload::Text(text)) = batch.take() else {
            panic!("text")
        };
        let again = read(Encoding::Json, text.as_bytes(), &own);
        assert_eq!(again, [Ok(frame), Ok(same)]);
        let (code, word) = types
            .iter()
            .find(|(_, word)| readable.starts_with(&format!(r#"{{"type":"{word}""#)))
            .unwrap();
        assert!(PAGE.contains(&format!("| {code} | `{word}` |")), "{word}");
        shown.insert(*word);
        // Whatever is cut off a body is noticed, and nothing is made up.
        for short in 0..binary.len() {
            let frames = read(Encoding::Binary, &binary[..short], &own);
            assert!(frames.iter().all(Result::is_err), "{readable} {short}");
        }
    }
    let all: BTreeSet<&str> = types.iter().map(|(_, word)| *word).collect();
    assert_eq!(shown, all);
}

fn hex(bytes: &[u8]) -> String {
    let digits: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    digits.join(" ")
}

#[test]
fn the_page_shows_what_is_sent() {
    check("up", &UP, read_up, |batch, it| batch.up(it.id, &it.body));
    check("down", &DOWN, read_down, |batch, it| {
        batch.down(it.id, &it.body);
    });
}
