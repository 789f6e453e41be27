//! `leasehold camera apply`.

use std::{collections::BTreeSet, io::Read as _, path::PathBuf, process::ExitCode};

use futures_util::{StreamExt as _, stream};
use leasehold_api::{Camera, Document};
use leasehold_client::{Client, Error};
use serde_json::{Map, Value, json};

use super::diff::{self, Change};
use crate::{
    connect::refused,
    exit::{Exit, Failure, Outcome},
    print::{self, Format},
    progress::Bar,
};

/// How many cameras are looked at or changed simultaneously.
const CONCURRENT: usize = 8;
/// More than ten thousand cameras with their zones.
const MAX_BYTES: u64 = 64 * 1024 * 1024;

/// Add and change cameras from a file
///
/// The file holds one camera, a list of them, several documents, or a list under `cameras`, as YAML or
/// JSON. Fields that a document does not name stay as they are; `null` goes back to the default. Cameras
/// that the file does not name are left alone.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  leasehold camera apply -f cameras.yaml --dry-run   # only a diff
  leasehold camera apply -f cameras.yaml
  leasehold camera apply -f - --tenant acme --site north < new.json

The smallest camera:
  camera_uuid: front-door
  rtsp_url: rtsp://camera.local/stream
  tenant_id: acme
  site_id: north

Everything is checked before the first change. A camera that fails does not stop the others;
the exit code is 1 then.")]
pub struct Arguments {
    /// The file; - is standard input
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Only show what would change
    #[arg(long)]
    dry_run: bool,
    /// The tenant of cameras that name none
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
    /// The site of cameras that name none
    #[arg(long, value_name = "SITE")]
    site: Option<String>,
    #[command(flatten)]
    format: Format,
}

/// One camera of the file.
#[derive(Debug)]
struct Wanted {
    tenant: String,
    site: String,
    name: String,
    fields: Map<String, Value>,
}

/// What is to be done with it.
#[derive(Debug)]
enum Step {
    Create,
    Change(Vec<Change>),
    Nothing,
}

impl Step {
    fn word(&self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Change(_) => "change",
            Self::Nothing => "unchanged",
        }
    }
}

/// Reads, compares, shows, and does it.
pub async fn run(arguments: Arguments, client: &Client) -> Outcome {
    let text = read(&arguments)?;
    let wanted = documents(&text, &arguments)?;
    let steps = compare(client, &wanted).await?;
    for (it, step) in wanted.iter().zip(&steps) {
        show(it, step, arguments.format)?;
    }
    let count = |word| steps.iter().filter(|step| step.word() == word).count();
    let summary = format!(
        "{} to create, {} to change, {} unchanged",
        count("create"),
        count("change"),
        count("unchanged")
    );
    if arguments.dry_run {
        eprintln!("{summary}; nothing was changed");
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("{summary}");
    let failed = carry_out(client, &wanted, &steps).await;
    if failed == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    Err(Failure::new(
        Exit::Failed,
        format!("{failed} cameras failed; the others are done"),
    )
    .hint("the same command again does the rest"))
}

fn read(arguments: &Arguments) -> Result<String, Failure> {
    let shown = arguments.file.display();
    let wrong =
        |error: std::io::Error| Failure::new(Exit::Usage, format!("cannot read {shown}: {error}"));
    let mut text = String::new();
    if arguments.file.as_os_str() == "-" {
        let mut stdin = std::io::stdin().lock().take(MAX_BYTES);
        stdin.read_to_string(&mut text).map_err(wrong)?;
    } else {
        let file = std::fs::File::open(&arguments.file).map_err(wrong)?;
        file.take(MAX_BYTES)
            .read_to_string(&mut text)
            .map_err(wrong)?;
    }
    Ok(text)
}

/// The cameras of a file.
fn documents(text: &str, arguments: &Arguments) -> Result<Vec<Wanted>, Failure> {
    let wrong = |what: String| Failure::new(Exit::Usage, what);
    // JSON is YAML.
    let parsed: Vec<Value> = serde_saphyr::from_multiple(text)
        .map_err(|error| wrong(format!("the file is not YAML: {}", error.without_snippet())))?;
    let mut flat = Vec::new();
    for document in parsed {
        match document {
            Value::Null => {}
            Value::Array(items) => flat.extend(items),
            Value::Object(mut map) if map.len() == 1 && map.contains_key("cameras") => {
                match map.remove("cameras") {
                    Some(Value::Array(items)) => flat.extend(items),
                    _ => return Err(wrong("cameras: expected a list".to_owned())),
                }
            }
            other => flat.push(other),
        }
    }
    let mut names = BTreeSet::new();
    let mut wanted = Vec::with_capacity(flat.len());
    for (index, document) in flat.into_iter().enumerate() {
        let Value::Object(mut fields) = document else {
            return Err(wrong(format!("camera {}: expected an object", index + 1)));
        };
        // What `camera show` and `ls` add is not part of the configuration.
        for shown in [
            "config_version",
            "zone_version",
            "created_at",
            "updated_at",
            "parked",
        ] {
            fields.remove(shown);
        }
        let mut text = |field: &str, default: Option<&String>| -> Result<String, Failure> {
            let given = fields.get(field).and_then(Value::as_str).map(str::to_owned);
            let value = given
                .or_else(|| default.cloned())
                .ok_or_else(|| wrong(format!("camera {}: {field} is missing", index + 1)))?;
            fields.insert(field.to_owned(), value.clone().into());
            Ok(value)
        };
        let name = text("camera_uuid", None)?;
        let tenant = text("tenant_id", arguments.tenant.as_ref())?;
        let site = text("site_id", arguments.site.as_ref())?;
        if !names.insert(name.clone()) {
            return Err(wrong(format!("{name}: expected each camera once")));
        }
        wanted.push(Wanted {
            tenant,
            site,
            name,
            fields,
        });
    }
    Ok(wanted)
}

/// Looks at what is there, and checks what would be.
async fn compare(client: &Client, wanted: &[Wanted]) -> Result<Vec<Step>, Failure> {
    let looked: Vec<Result<Option<Camera>, Error>> = stream::iter(wanted)
        .map(|it| async {
            match client.camera(&it.name).await {
                Ok(camera) => Ok(Some(camera)),
                Err(Error::Problem(problem)) if problem.status == 404 => Ok(None),
                Err(error) => Err(error),
            }
        })
        .buffered(CONCURRENT)
        .collect()
        .await;
    let mut steps = Vec::with_capacity(wanted.len());
    for (it, current) in wanted.iter().zip(looked) {
        let current = current.map_err(refused)?;
        if let Some(current) = &current {
            let camera = &current.camera;
            if camera.tenant_id != it.tenant || camera.site_id != it.site {
                return Err(Failure::new(
                    Exit::Usage,
                    format!(
                        "{}: a camera of this name is at {}/{} already",
                        it.name, camera.tenant_id, camera.site_id
                    ),
                ));
            }
        }
        let before = match current {
            Some(current) => serde_json::to_value(&current.camera).unwrap_or_default(),
            None => json!({}),
        };
        let before = before.as_object().cloned().unwrap_or_default();
        check(it, &before)?;
        steps.push(if before.is_empty() {
            Step::Create
        } else {
            let mut known = before;
            // Not written while it is on.
            known.entry("enabled").or_insert(true.into());
            match diff::changes(&known, &it.fields) {
                changes if changes.is_empty() => Step::Nothing,
                changes => Step::Change(changes),
            }
        });
    }
    Ok(steps)
}

/// Checks the camera as it would be, so that nothing is changed when something is wrong.
fn check(wanted: &Wanted, before: &Map<String, Value>) -> Result<(), Failure> {
    let mut merged = before.clone();
    merge(&mut merged, &wanted.fields);
    let wrong = |what: String| Failure::new(Exit::Usage, format!("{}: {what}", wanted.name));
    let bytes = serde_json::to_vec(&merged).map_err(|error| wrong(error.to_string()))?;
    let camera: lease::registry::Camera = leasehold_api::parse_value(&bytes)
        .map_err(|error| wrong(format!("{}: expected {}", error.field, error.expected)))?;
    camera.validate().map_err(|errors| {
        let all: Vec<String> = errors.iter().map(ToString::to_string).collect();
        wrong(all.join("; "))
    })
}

/// As the server does it.
fn merge(into: &mut Map<String, Value>, change: &Map<String, Value>) {
    for (name, value) in change {
        match (into.get_mut(name), value) {
            (_, Value::Null) => {
                into.remove(name);
            }
            (Some(Value::Object(old)), Value::Object(new)) => merge(old, new),
            (_, value) => {
                into.insert(name.clone(), value.clone());
            }
        }
    }
}

fn show(wanted: &Wanted, step: &Step, format: Format) -> Result<(), Failure> {
    if format.json {
        let fields: Vec<&str> = match step {
            Step::Change(changes) => changes.iter().map(|it| it.path.as_str()).collect(),
            Step::Create | Step::Nothing => Vec::new(),
        };
        return print::json(
            &json!({"camera_uuid": wanted.name, "action": step.word(), "fields": fields}),
        );
    }
    match step {
        Step::Create => print::line(&format!("{}: create", wanted.name)),
        Step::Change(changes) => {
            print::line(&format!("{}: change", wanted.name))?;
            changes
                .iter()
                .try_for_each(|change| print::line(&format!("  {change}")))
        }
        Step::Nothing => Ok(()),
    }
}

/// Only what changes is sent. Whoever may not see logins has a file without them, and must not take a
/// login away by changing something else.
fn changed_fields(wanted: &Wanted, changes: &[Change]) -> Document {
    let changes_in = |name: &str| {
        let top = |change: &Change| change.path.split('.').next() == Some(name);
        changes.iter().any(top)
    };
    let fields = wanted.fields.iter();
    Document(
        fields
            .filter(|(name, _)| changes_in(name))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect(),
    )
}

/// Creates and changes, several simultaneously, and returns how many failed.
async fn carry_out(client: &Client, wanted: &[Wanted], steps: &[Step]) -> usize {
    let open: Vec<(&Wanted, &Step)> = wanted
        .iter()
        .zip(steps)
        .filter(|(_, step)| !matches!(step, Step::Nothing))
        .collect();
    let all = open.len();
    let mut bar = Bar::default();
    let mut done = 0;
    let mut failed = 0;
    let mut results = stream::iter(open)
        .map(|(it, step)| async move {
            let result = match step {
                Step::Change(changes) => {
                    let document = changed_fields(it, changes);
                    client
                        .update_camera(&it.tenant, &it.site, &it.name, &document)
                        .await
                }
                Step::Create | Step::Nothing => {
                    let document = Document(it.fields.clone());
                    client.create_camera(&it.tenant, &it.site, &document).await
                }
            };
            (it, result)
        })
        .buffer_unordered(CONCURRENT);
    while let Some((it, result)) = results.next().await {
        done += 1;
        if let Err(error) = result {
            failed += 1;
            bar.end();
            eprintln!("{}: {error}", it.name);
        }
        bar.show("applied", done, all as u64);
    }
    bar.end();
    failed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments() -> Arguments {
        Arguments {
            file: "-".into(),
            dry_run: true,
            tenant: Some("acme".into()),
            site: Some("north".into()),
            format: Format { json: false },
        }
    }

    fn names(text: &str) -> Vec<String> {
        let found = documents(text, &arguments()).unwrap();
        found.into_iter().map(|it| it.name).collect()
    }

    #[test]
    fn a_file_may_hold_cameras_in_every_usual_form() {
        assert_eq!(names("camera_uuid: a\nrtsp_url: rtsp://h/1\n"), ["a"]);
        assert_eq!(names("- camera_uuid: a\n- camera_uuid: b\n"), ["a", "b"]);
        assert_eq!(names("camera_uuid: a\n---\ncamera_uuid: b\n"), ["a", "b"]);
        assert_eq!(
            names(r#"{"cameras": [{"camera_uuid": "a"}, {"camera_uuid": "b"}]}"#),
            ["a", "b"]
        );
        assert_eq!(names("[]").len(), 0);
        assert!(documents("- 1\n", &arguments()).is_err());
        assert!(documents("rtsp_url: x\n", &arguments()).is_err());
        assert!(documents("- camera_uuid: a\n- camera_uuid: a\n", &arguments()).is_err());
    }

    #[test]
    fn only_what_changes_is_sent() {
        let text = "camera_uuid: a\nrtsp_url: rtsp://h/1\nmotion_gating: {downscale: 0.25}\n";
        let wanted = documents(text, &arguments()).unwrap().remove(0);
        let current = json!({"camera_uuid": "a", "rtsp_url": "rtsp://h/1", "tenant_id": "acme",
            "site_id": "north", "motion_gating": {"downscale": 0.5, "enabled": true}});
        let changes = diff::changes(current.as_object().unwrap(), &wanted.fields);
        let Document(sent) = changed_fields(&wanted, &changes);
        assert_eq!(json!(sent), json!({"motion_gating": {"downscale": 0.25}}));
    }

    #[test]
    fn what_would_be_is_checked_before_anything_changes() {
        let wanted = |text: &str| documents(text, &arguments()).unwrap().remove(0);
        let none = Map::new();
        assert!(check(&wanted("camera_uuid: a\nrtsp_url: rtsp://h/1\n"), &none).is_ok());
        let wrong = check(&wanted("camera_uuid: a\nrtsp_url: ftp://h/1\n"), &none).unwrap_err();
        assert!(wrong.to_string().contains("rtsp_url"), "{wrong}");
        let wrong = check(
            &wanted("camera_uuid: a\nrtsp_url: rtsp://h\ncolour: 1\n"),
            &none,
        );
        assert!(wrong.unwrap_err().to_string().contains("colour"));
        assert!(
            check(&wanted("camera_uuid: a\n"), &none).is_err(),
            "no address"
        );
    }
}
