//! The reference page `docs/configuration.md`, made from the declarations.

use std::fmt::Write as _;

use leasehold_agents::manager;
use leasehold_api::config::{self, Described, Section, visit};
use serde_json::Value;

use super::{Config, environment::variables};

const INTRODUCTION: &str = "\
# Configuration

One YAML file (`--config FILE`, or the variable `LEASEHOLD_CONFIG`), then the environment, then flags: the later one wins. Nothing has to be
configured. `leasehold config check` checks the file and the environment, `leasehold config show` shows what applies and where each value
comes from, with secrets hidden.

The variable of a setting is `LEASEHOLD_` and its path in capitals, with `_` for each dot: `server.limits.keeps` is
`LEASEHOLD_SERVER_LIMITS_KEEPS`. Further names are listed beside each setting. An empty variable says nothing, and one that sets nothing is
an error. Lists are separated by commas, maps and lists of objects are JSON.

Durations are written `500ms`, `30s`, `1m30s`, `2h`, `7d`; a bare number means seconds. Names in parentheses are former ones, which are
still accepted.

`leasehold serve` and `leasehold worker` read their certificate again on SIGHUP; everything else counts from the start. `leasehold manager`
reads its whole file, and the files of its API key and CA, again when one of them changes, and on SIGHUP.

This page is made by `leasehold config reference`; a test fails if it differs.
";

/// The whole page.
pub fn reference() -> String {
    let mut page = INTRODUCTION.to_owned();
    let mut config = Config::default();
    let values = serde_json::to_value(&config).unwrap_or_default();
    for field in config.fields() {
        let (name, doc) = (field.name, text(field.doc));
        if let config::Node::Section(section) = field.node {
            table(&mut page, name, &doc, section, &values, &variables);
        }
    }
    let mut manager = manager::Settings::default();
    let values = serde_json::json!({ manager::SECTION: &manager });
    let about = "The keys of `manager.yaml`, the file of `leasehold manager`, where they stand without `manager.` in front of them.";
    let names = |setting: &Described| vec![config::variable(&setting.path)];
    table(
        &mut page,
        manager::SECTION,
        about,
        &mut manager,
        &values,
        &names,
    );
    page
}

fn text(doc: &[&str]) -> String {
    let lines: Vec<&str> = doc.iter().map(|line| line.trim()).collect();
    lines.join(" ")
}

fn table(
    page: &mut String,
    name: &str,
    about: &str,
    section: &mut dyn Section,
    values: &Value,
    names: &dyn Fn(&Described) -> Vec<String>,
) {
    let _ = write!(
        page,
        "\n## `{name}`\n\n{about}\n\n| setting | default | variable | what it is |\n|---|---|---|---|\n"
    );
    visit(section, name, &mut |setting, _| {
        let path = &setting.path;
        let value = path.split('.').try_fold(values, |at, part| at.get(part));
        let default = match value {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) if text.is_empty() => String::new(),
            Some(Value::String(text)) => format!("`{text}`"),
            Some(value) => format!("`{value}`"),
        };
        let former: Vec<String> = setting
            .aliases
            .iter()
            .filter_map(|alias| alias.rsplit('.').next())
            .map(|alias| format!(" (`{alias}`)"))
            .collect();
        let variables: Vec<String> = names(&setting)
            .iter()
            .map(|name| format!("`{name}`"))
            .collect();
        let doc = setting.doc.replace('|', "\\|");
        let _ = writeln!(
            page,
            "| `{path}`{} | {default} | {} | {doc} Expects {}. |",
            former.concat(),
            variables.join(", "),
            setting.expects,
        );
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_page_is_the_one_in_the_documents() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
        if std::env::var_os("LEASEHOLD_TEST_UPDATE").is_some() {
            std::fs::write(file, reference()).unwrap();
        }
        let found = std::fs::read_to_string(file).unwrap_or_default();
        assert!(
            found == reference(),
            "docs/configuration.md differs: `leasehold config reference > docs/configuration.md`"
        );
    }
}
