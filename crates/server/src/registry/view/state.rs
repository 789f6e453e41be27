//! A site in memory: read once, changed with every event, and what should be where in it.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use lease::{
    Authority, Event, EventCause, EventKind, HandoffStage, Holder, Lease, Revision, UnixMillis,
    registry::{
        CAMERA, Camera, DEPLOYMENT, Decisions, Deployment, Holding, Member, RUNNER, Report, Runner,
        Site, SiteCamera, Split, TROUBLE, Trouble, ZONE, Zone, present_runner,
    },
};
use leasehold_api::SiteVersion;

use super::super::{
    SiteId, runners,
    site::{self, SITE_CHANGE},
    store::{self, Found},
};
use crate::Reject;

/// A site and what should be where, at one moment.
pub(crate) struct Planned {
    pub site: Site,
    pub decisions: Decisions,
    /// The versions of its configuration.
    pub version: SiteVersion,
    /// The cameras that concern each runner: those that it has, and those that it should take.
    of_runner: HashMap<Arc<str>, Vec<Arc<str>>>,
    /// The cameras that were offered to each holder.
    offered: HashMap<Holder, Vec<Arc<str>>>,
    pub(super) generation: u64,
    pub(super) until: Option<UnixMillis>,
}

impl Planned {
    /// The cameras that concern a runner.
    pub fn of(&self, runner: &str) -> &[Arc<str>] {
        self.of_runner.get(runner).map_or(&[], Vec::as_slice)
    }

    /// The cameras that were offered to a holder and have not moved yet.
    pub fn offered_to(&self, holder: &Holder) -> &[Arc<str>] {
        self.offered.get(holder).map_or(&[], Vec::as_slice)
    }
}

#[derive(Clone, Default)]
pub(super) struct State {
    pub site: Site,
    /// Whose presence is live, by runner.
    presences: HashMap<Arc<str>, Holder>,
    zones: BTreeMap<Arc<str>, Zone>,
    changed_at: Option<UnixMillis>,
    /// Grow with every change, with every one that the split depends on, and with every one of the
    /// configuration.
    pub generation: u64,
    pub shape: u64,
    pub config: u64,
}

/// A site as it was read, and the newest revision in it.
pub(super) struct Loaded {
    pub state: State,
    pub newest: Revision,
}

impl std::ops::Deref for Loaded {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

/// A site as the store has it.
pub(crate) async fn load(authority: &dyn Authority, place: &SiteId) -> Result<Site, Reject> {
    let now = authority.now().await?;
    Ok(State::load(authority, place).await?.at(now))
}

/// The same with what its runners reported.
pub(crate) async fn with_reports(
    authority: &dyn Authority,
    place: &SiteId,
    mut site: Site,
) -> Result<Site, Reject> {
    let tenant = Some(place.tenant_id.as_str());
    for lease in runners::live(authority, RUNNER, tenant, None).await? {
        if let Some(name) = present_runner(&lease.key, &place.tenant_id)
            && let Some(member) = site.runners.get_mut(name)
            && lease.holder.incarnation == member.runner.incarnation
        {
            Arc::make_mut(member).report = Report::of(&lease);
        }
    }
    Ok(site)
}

impl State {
    pub async fn load(authority: &dyn Authority, place: &SiteId) -> Result<Loaded, Reject> {
        let mut state = Self::default();
        let mut newest = Revision::new(0);
        let tenant = Some(place.tenant_id.as_str());
        for found in store::all::<Camera>(authority, CAMERA, place.prefix()).await? {
            newest = newest.max(found.revision);
            let name = found.value.camera_uuid.as_str().into();
            let camera = Arc::new(SiteCamera::from(found.value));
            state.site.cameras.insert(name, camera);
        }
        for lease in runners::live(authority, RUNNER, tenant, None).await? {
            if let Some(name) = present_runner(&lease.key, &place.tenant_id) {
                state.presences.insert(name.into(), lease.holder);
            }
        }
        for found in store::all::<Runner>(authority, RUNNER, place.prefix()).await? {
            newest = newest.max(found.revision);
            state.joined(found.value);
        }
        for lease in runners::live(authority, CAMERA, tenant, None).await? {
            state.holds(&lease);
        }
        for found in store::all::<Deployment>(authority, DEPLOYMENT, place.prefix()).await? {
            newest = newest.max(found.revision);
            let group = found.value.deployment_group.as_str().into();
            state.site.deployments.insert(group, Arc::new(found.value));
        }
        for found in store::all::<Trouble>(authority, TROUBLE, place.prefix()).await? {
            newest = newest.max(found.revision);
            state.site.troubles.insert(name_of(&found), found.value);
        }
        for found in store::all::<Zone>(authority, ZONE, place.prefix()).await? {
            newest = newest.max(found.revision);
            state.zones.insert(name_of(&found), found.value);
        }
        let change: Option<Found<()>> =
            store::load(authority, place.site_key(SITE_CHANGE)?).await?;
        state.changed_at = change.map(|found| found.updated_at);
        Ok(Loaded { state, newest })
    }

    fn holds(&mut self, lease: &Lease) {
        let open = lease.handoff.as_ref();
        let open = open.filter(|handoff| handoff.stage != HandoffStage::Committed);
        let holding = Holding {
            holder: lease.holder.clone(),
            token: lease.token,
            since: lease.acquired_at,
            offered_to: open.map(|handoff| handoff.successor.clone()),
        };
        self.site.holdings.insert(lease.key.id().into(), holding);
    }

    fn joined(&mut self, runner: Runner) {
        let name: Arc<str> = runner.runner_id.as_str().into();
        let presence = self.presences.get(&name);
        let member = Member {
            present: presence.is_some_and(|it| it.incarnation == runner.incarnation),
            report: Report::default(),
            runner,
        };
        self.site.runners.insert(name, Arc::new(member));
    }

    /// The site at this moment.
    pub fn at(&self, now: UnixMillis) -> Site {
        Site {
            now,
            ..self.site.clone()
        }
    }

    pub fn version(&self) -> SiteVersion {
        site::version_of(&self.site.cameras, self.zones.values(), self.changed_at)
    }

    pub fn plan(&self, split: &Split, version: SiteVersion, now: UnixMillis) -> Planned {
        let site = self.at(now);
        let decisions = site.decide(split);
        let mut of_runner: HashMap<Arc<str>, Vec<Arc<str>>> = HashMap::new();
        for (name, decision) in &decisions {
            if let Some(runner) = decision.from.as_ref().or(decision.to.as_ref()) {
                of_runner
                    .entry(runner.clone())
                    .or_default()
                    .push(name.clone());
            }
        }
        let mut offered: HashMap<Holder, Vec<Arc<str>>> = HashMap::new();
        for (name, holding) in &site.holdings {
            if let Some(to) = &holding.offered_to {
                offered.entry(to.clone()).or_default().push(name.clone());
            }
        }
        Planned {
            until: site.changes_at(),
            site,
            decisions,
            version,
            of_runner,
            offered,
            generation: self.generation,
        }
    }

    /// A lease began, ended or is handed over.
    pub fn lease(&mut self, event: &Event) {
        let Some(lease) = &event.lease else { return };
        let name: Arc<str> = event.key.id().into();
        self.generation += 1;
        if event.key.kind() == RUNNER {
            let tenant = lease.labels.tenant();
            let name = tenant.and_then(|tenant| present_runner(&event.key, tenant));
            let Some(name) = name.map(Arc::<str>::from) else {
                return;
            };
            match event.kind {
                EventKind::LeaseAcquired => {
                    self.presences.insert(name.clone(), lease.holder.clone());
                }
                kind if kind.ends_lease() && self.presences.get(&name) == Some(&lease.holder) => {
                    self.presences.remove(&name);
                }
                _ => return,
            }
            self.shape += 1;
            if let Some(member) = self.site.runners.get_mut(&name) {
                let presence = self.presences.get(&name);
                let present =
                    presence.is_some_and(|it| it.incarnation == member.runner.incarnation);
                Arc::make_mut(member).present = present;
            }
            return;
        }
        let holdings = &mut self.site.holdings;
        let known = holdings.get(&name).map(|it| it.token);
        match event.kind {
            EventKind::LeaseAcquired if known.is_none_or(|known| known < lease.token) => {
                let holding = Holding {
                    holder: lease.holder.clone(),
                    token: lease.token,
                    since: event.at,
                    offered_to: None,
                };
                holdings.insert(name, holding);
            }
            EventKind::HandoffOffered | EventKind::HandoffCancelled
                if known == Some(lease.token) =>
            {
                if let Some(holding) = holdings.get_mut(&name) {
                    holding.offered_to = match &event.cause {
                        Some(EventCause::Successor(to)) => Some(to.clone()),
                        _ => None,
                    };
                }
            }
            kind if kind.ends_lease() && known == Some(lease.token) => {
                holdings.remove(&name);
            }
            _ => {}
        }
    }

    /// A document changed. One that cannot be read is as if it were not there.
    pub fn record(&mut self, event: &Event, record: Option<lease::Record>) {
        fn value<T: serde::de::DeserializeOwned>(record: Option<lease::Record>) -> Option<T> {
            record
                .and_then(|it| store::read(it).ok())
                .map(|it| it.value)
        }
        let id = event.key.id();
        let name: Arc<str> = id.rsplit('/').next().unwrap_or(id).into();
        self.generation += 1;
        match event.key.kind() {
            CAMERA => {
                self.shape += 1;
                self.config += 1;
                match value::<Camera>(record) {
                    Some(camera) => {
                        let camera = Arc::new(SiteCamera::from(camera));
                        self.site.cameras.insert(name, camera)
                    }
                    None => self.site.cameras.remove(&name),
                };
            }
            ZONE => {
                self.config += 1;
                match value(record) {
                    Some(zone) => self.zones.insert(name, zone),
                    None => self.zones.remove(&name),
                };
            }
            RUNNER => {
                self.shape += 1;
                match value(record) {
                    Some(runner) => self.joined(runner),
                    None => drop(self.site.runners.remove(&name)),
                }
            }
            DEPLOYMENT => {
                self.shape += 1;
                match value(record) {
                    Some(deployment) => self.site.deployments.insert(name, Arc::new(deployment)),
                    None => self.site.deployments.remove(&name),
                };
            }
            TROUBLE => {
                self.shape += 1;
                match value(record) {
                    Some(trouble) => self.site.troubles.insert(name, trouble),
                    None => self.site.troubles.remove(&name),
                };
            }
            SITE_CHANGE => {
                self.config += 1;
                self.changed_at = record
                    .and_then(|it| store::read::<()>(it).ok())
                    .map(|it| it.updated_at);
            }
            _ => {}
        }
    }
}

/// The last part of a document's key.
fn name_of<T>(found: &Found<T>) -> Arc<str> {
    let id = found.key.id();
    id.rsplit('/').next().unwrap_or(id).into()
}
