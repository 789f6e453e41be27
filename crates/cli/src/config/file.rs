//! The YAML file: errors show where, and what was probably meant.

use std::path::Path;

use serde::de::DeserializeOwned;
use serde_saphyr::Error;

use super::wrong;
use crate::exit::Failure;

/// A configuration is a page or two; a larger file is not one.
const MAX_BYTES: u64 = 1024 * 1024;

/// Reads a file.
pub fn read<T: DeserializeOwned + Default>(path: &Path) -> Result<T, Failure> {
    read_with_text(path).map(|(read, _)| read)
}

/// Reads a file, and answers with its text too.
pub fn read_with_text<T: DeserializeOwned + Default>(path: &Path) -> Result<(T, String), Failure> {
    let shown = path.display();
    let size =
        std::fs::metadata(path).map_err(|error| wrong(format!("cannot read {shown}: {error}")))?;
    if size.len() > MAX_BYTES {
        return Err(wrong(format!("{shown} is larger than 1 MiB")));
    }
    let text = std::fs::read_to_string(path)
        .map_err(|error| wrong(format!("cannot read {shown}: {error}")))?;
    let read = parse(&text).map_err(|error| explain(&error, &shown.to_string()))?;
    Ok((read, text))
}

fn parse<T: DeserializeOwned + Default>(text: &str) -> Result<T, Box<Error>> {
    // A file with nothing but comments is a configuration with nothing but defaults.
    if text.lines().all(|line| {
        let line = line.trim();
        line.is_empty() || line.starts_with('#') || line == "---"
    }) {
        return Ok(T::default());
    }
    serde_saphyr::from_str(text).map_err(Box::new)
}

fn explain(error: &Error, file: &str) -> Failure {
    let error = error.without_snippet();
    let place = match error.location() {
        Some(at) => format!("{file}:{}:{}", at.line(), at.column()),
        None => file.to_owned(),
    };
    if let Error::SerdeUnknownField {
        field, expected, ..
    } = error
    {
        let known: Vec<&str> = expected.iter().map(AsRef::as_ref).collect();
        let failure = wrong(format!("{place}: unknown key `{field}`"));
        return match nearest(field, known.iter().copied()) {
            Some(meant) => failure.hint(format!("did you mean `{meant}`?")),
            None => failure.hint(format!("known here: {}", known.join(", "))),
        };
    }
    let message = error.to_string();
    // The location is in front already.
    let message = message
        .split(" at line ")
        .next()
        .unwrap_or(&message)
        .trim_end();
    wrong(format!(
        "{place}: {}",
        message.lines().next().unwrap_or(message)
    ))
}

/// What was probably meant: the nearest known word, if it is near enough to be a slip.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    const NEAR: f64 = 0.6;
    known
        .into_iter()
        .map(|candidate| {
            (
                strsim::normalized_damerau_levenshtein(word, candidate),
                candidate,
            )
        })
        .filter(|(similarity, _)| *similarity >= NEAR)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn complaint(text: &str) -> String {
        explain(&parse::<Config>(text).unwrap_err(), "leasehold.yaml").to_string()
    }

    #[test]
    fn errors_show_where_and_what_was_meant() {
        insta::assert_snapshot!(
            [
                "server:\n  lisen: 127.0.0.1:1\n",
                "servr: {}\n",
                "server:\n  purple: 1\n",
                "server:\n  listen: nowhere\n",
                "lease:\n  ttl: soon\n",
                "lease: {ttl: 5\n",
                "log:\n  format: xml\n",
            ]
            .map(|text| format!("{text}{}", complaint(text)))
            .join("\n\n")
        );
    }

    #[test]
    fn an_empty_file_is_all_defaults() {
        let ttl = |text: &str| parse::<Config>(text).unwrap().lease.ttl.millis();
        assert_eq!(ttl("# nothing\n"), 30_000);
        assert_eq!(ttl("lease: {ttl: 5}"), 5_000);
    }
}
