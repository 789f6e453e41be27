//! The environment: the name of a variable follows from the path of its setting.

use std::collections::BTreeMap;

use super::{Described, Section, visit};

/// Every variable of a setting begins with this.
pub const PREFIX: &str = "LEASEHOLD_";

/// The variable of a setting: `server.limits.keeps` is `LEASEHOLD_SERVER_LIMITS_KEEPS`.
pub fn variable(path: &str) -> String {
    format!("{PREFIX}{}", path.replace('.', "_").to_ascii_uppercase())
}

/// Changes what variables say, and answers which setting each of them changed. An empty variable says
/// nothing. `names` are those that a setting listens to; an earlier one beats a later one. The error names
/// the variable and never repeats its value.
pub fn apply(
    section: &mut dyn Section,
    prefix: &str,
    variables: &[(String, String)],
    names: &dyn Fn(&Described) -> Vec<String>,
) -> Result<BTreeMap<String, String>, String> {
    let (mut changed, mut wrong) = (BTreeMap::new(), None);
    visit(section, prefix, &mut |described, setting| {
        let said = names(&described).into_iter().find_map(|name| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.filter(|(_, text)| !text.trim().is_empty())
        });
        if let Some((name, text)) = said {
            match setting.set(text) {
                Ok(()) => {
                    changed.insert(described.path, name.clone());
                }
                Err(why) => {
                    wrong.get_or_insert(format!("{name}: {why}"));
                }
            }
        }
    });
    match wrong {
        Some(wrong) => Err(wrong),
        None => Ok(changed),
    }
}
