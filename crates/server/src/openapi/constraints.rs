//! What the specification states about values: lengths, patterns, ranges and words. Every number is the
//! constant that the check itself uses.

mod tables;
mod values;

use serde_json::{Map, Value, json};

use self::{
    tables::{fields, parameters},
    values::Keywords,
};

/// States everything that the specification has a place for; returns what has none.
pub(super) fn state(api: &mut Value) -> Vec<String> {
    let mut without_place = Vec::new();
    for (schema, field, keywords) in fields() {
        let at = &mut api["components"]["schemas"][schema];
        match find(at, field) {
            Some(found) => constrain(found, keywords),
            None => without_place.push(format!("{schema}.{field}")),
        }
    }
    let rows = parameters();
    let mut used = vec![false; rows.len()];
    for operation in operations(api) {
        let named = operation["operationId"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let listed = operation
            .get_mut("parameters")
            .and_then(Value::as_array_mut);
        for parameter in listed.into_iter().flatten() {
            let name = parameter["name"].as_str().unwrap_or_default();
            let written = match parameter["in"].as_str() {
                Some("path") => format!("{{{name}}}"),
                _ => name.to_owned(),
            };
            let place = |wanted: &str| {
                let is_it = |(operation, name, _): &(&str, &str, _)| {
                    *operation == wanted && *name == written
                };
                rows.iter().position(is_it)
            };
            if let Some(row) = place(&named).or_else(|| place("*")) {
                used[row] = true;
                constrain(&mut parameter["schema"], rows[row].2.clone());
            }
        }
    }
    let unused = rows.iter().zip(used).filter(|(_, used)| !used);
    without_place.extend(unused.map(|((operation, name, _), _)| format!("{operation}?{name}")));
    without_place
}

/// Every operation.
pub(super) fn operations(api: &mut Value) -> impl Iterator<Item = &mut Value> {
    let paths = api["paths"].as_object_mut().into_iter();
    let items = paths.flat_map(|paths| paths.values_mut().filter_map(Value::as_object_mut));
    items.flat_map(Map::values_mut)
}

/// The schema of a field by its path.
fn find<'a>(schema: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    let (field, part) = match path.find(['[', '{']) {
        Some(at) => path.split_at(at),
        None => (path, ""),
    };
    let found = schema.get_mut("properties")?.get_mut(field)?;
    match part {
        "[]" => found.get_mut("items"),
        "{}" => found.get_mut("additionalProperties"),
        "{name}" => found.get_mut("propertyNames"),
        _ => Some(found),
    }
}

fn constrain(schema: &mut Value, keywords: Keywords) {
    let nullable = schema["type"]
        .as_array()
        .is_some_and(|types| types.contains(&json!("null")));
    if let (Value::Object(schema), Value::Object(keywords)) = (schema, keywords) {
        schema.extend(keywords);
        if nullable && let Some(Value::Array(words)) = schema.get_mut("enum") {
            words.push(Value::Null);
        }
    }
}

#[cfg(test)]
mod tests {
    use lease::{HolderName, Incarnation, Labels};
    use regex::Regex;

    use super::{
        values::{ONE_LINE, PLAIN, VISIBLE},
        *,
    };

    #[test]
    fn patterns_refuse_no_character_that_the_kernel_takes() {
        let of = |pattern| Regex::new(pattern).expect("a pattern");
        let (plain, visible, line) = (of(PLAIN), of(VISIBLE), of(ONE_LINE));
        for text in ('\0'..='\u{ffff}').map(String::from) {
            let is_plain = Incarnation::new(&text).is_ok();
            assert_eq!(plain.is_match(&text), is_plain, "{text:?}");
            let is_visible = HolderName::new(&text).is_ok();
            assert!(visible.is_match(&text) || !is_visible, "{text:?}");
            let is_value = Labels::new([("label".to_owned(), text.clone())].into()).is_ok();
            assert_eq!(line.is_match(&text), is_value, "{text:?}");
        }
    }

    #[test]
    fn every_row_of_the_tables_has_a_place() {
        let mut api = crate::openapi();
        assert_eq!(state(&mut api), Vec::<String>::new());
    }
}
