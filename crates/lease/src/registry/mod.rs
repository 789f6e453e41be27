//! Cameras, zones, runners and deployments as values: what is stored as records, checked field by field; and
//! the rules over them: which runner should have which camera, and which it may be granted.

mod admission;
mod assignment;
mod camera;
mod deployment;
mod fleet;
mod hosts;
mod load;
mod polygon;
mod report;
mod runner;
mod site;
mod trouble;
mod zone;

pub use admission::{Admitted, Asked, Denied, admit};
pub use assignment::{Decision, Decisions, Reason, Split};
pub use camera::{Camera, CameraStatus, MinAreaMode, MotionGating, ZoneTest};
pub use deployment::{Deployment, DeploymentEvent, DeploymentState, Fleet, Seat, Side};
pub use load::{Allowance, Load};
pub use polygon::Polygon;
pub use report::Report;
pub use runner::{Runner, RunnerStatus};
pub use site::{Holding, Member, Site, SiteCamera};
pub use trouble::Trouble;
pub use zone::{Zone, ZoneKind};

use crate::{Invalid, Key, text::is_plain};

/// The kind of camera records and of camera leases.
pub const CAMERA: &str = "camera";
/// The kind of zone records.
pub const ZONE: &str = "zone";
/// The kind of the records of deployments.
pub const DEPLOYMENT: &str = "deployment";
/// The kind of the records about cameras that fail.
pub const TROUBLE: &str = "camera-trouble";
/// The kind of runner records, and of the leases that say that a runner is there.
pub const RUNNER: &str = "runner";

/// The longest name of a tenant, a site, a camera, a runner, a group or a version, in bytes.
pub const MAX_NAME_BYTES: usize = 255;
/// How many labels or capabilities one list may have.
pub const MAX_LABELS: usize = 256;
/// The longest of them, in bytes.
pub const MAX_LABEL_BYTES: usize = 64;

/// What is wrong with one field of a document, by its path (`zones[2].polygon`).
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{field}: expected {expected}")]
pub struct FieldError {
    /// The path.
    pub field: String,
    /// What would have been accepted.
    pub expected: &'static str,
}

/// Collects errors, so that the caller gets all of them in one answer.
#[derive(Default, Debug)]
pub(crate) struct Checks {
    errors: Vec<FieldError>,
}

impl Checks {
    pub fn require(&mut self, ok: bool, field: impl Into<String>, expected: &'static str) {
        if !ok {
            self.errors.push(FieldError {
                field: field.into(),
                expected,
            });
        }
    }

    pub fn unit(&mut self, value: f64, field: impl Into<String>) {
        self.require((0.0..=1.0).contains(&value), field, "a number from 0 to 1");
    }

    pub fn name(&mut self, value: &str, field: impl Into<String>) {
        self.require(
            is_name(value),
            field,
            "1 to 255 characters of A-Z a-z 0-9 . _ -",
        );
    }

    pub fn labels<'a>(
        &mut self,
        labels: impl IntoIterator<Item = &'a String, IntoIter: Clone>,
        field: &str,
    ) {
        let mut labels = labels.into_iter();
        self.require(
            labels.clone().count() <= MAX_LABELS
                && labels.all(|label| {
                    !label.is_empty()
                        && label.len() <= MAX_LABEL_BYTES
                        && !label.chars().any(char::is_control)
                }),
            field,
            "at most 256 labels of 1 to 64 bytes without control characters",
        );
    }

    pub fn finish(self) -> Result<(), Vec<FieldError>> {
        if self.errors.is_empty() {
            Ok(())
        } else {
            Err(self.errors)
        }
    }
}

/// Whether `text` can name a tenant, a site, a camera or a runner.
pub fn is_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= MAX_NAME_BYTES && is_plain(text)
}

/// The key of the lease that says that a runner is there. Its name is given once within its tenant.
pub fn presence_key(tenant: &str, runner: &str) -> Result<Key, Invalid> {
    Key::new(RUNNER, &format!("{tenant}/{runner}"))
}

/// The runner whose presence this is, in a lease of this tenant.
pub fn present_runner<'a>(presence: &'a Key, tenant: &str) -> Option<&'a str> {
    let own = presence.id().strip_prefix(tenant)?;
    own.strip_prefix('/').filter(|_| presence.kind() == RUNNER)
}

/// The key of a record that belongs to a site: its id is `tenant/site/name`, so that one prefix lists
/// a tenant or a site.
pub fn site_key(kind: &str, tenant: &str, site: &str, name: &str) -> Result<Key, Invalid> {
    if !is_name(tenant) {
        return Err(Invalid::new(
            "tenant_id",
            "1 to 255 characters of A-Z a-z 0-9 . _ -",
        ));
    }
    if !is_name(site) {
        return Err(Invalid::new(
            "site_id",
            "1 to 255 characters of A-Z a-z 0-9 . _ -",
        ));
    }
    Key::new(kind, &format!("{tenant}/{site}/{name}"))
}
