//! The control plane as a runner sees it: this project's server, or any other that knows the
//! document's endpoints.
//!
//! Every answer is one of three: *yes*, a definite *no*, or *unknown* ([`Outcome`]). A server that knows
//! only the plain endpoints is found out by its answers; heartbeats then renew lease by lease.

mod breaker;
mod plain;
mod runner;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::Method;
use lease::Clock;
use leasehold_api::{
    AcquireRequest, AvailableCameras, Camera, HeartbeatRequest, Lease, RegisterRequest,
    RenewRequest, Runner, RunnerHeartbeatAnswer, RunnerHeartbeatRequest, RunnerRemoved,
    SiteVersion, Success, Zone, paths,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{Client, Error, Options, client::Call, leases::MAX_PAGES};
use breaker::Breaker;
pub use runner::{Observer, RunnerClient};

/// How long a still may take: it is large, and nobody waits for it.
const PICTURE_LIMIT: Duration = Duration::from_secs(10);

/// How a call came out.
#[derive(Clone, Debug)]
pub enum Outcome<T> {
    /// It was done.
    Yes(T),
    /// The server decided against it. Asking again changes nothing by itself.
    No(Error),
    /// Nobody knows: the server was not reached, or did not answer.
    Unknown(Error),
}

impl<T> From<Result<T, Error>> for Outcome<T> {
    fn from(result: Result<T, Error>) -> Self {
        match result {
            Ok(value) => Self::Yes(value),
            Err(error) if error.is_definite() => Self::No(error),
            Err(error) => Self::Unknown(error),
        }
    }
}

impl<T> Outcome<T> {
    /// The value of a yes.
    pub fn yes(self) -> Option<T> {
        match self {
            Self::Yes(value) => Some(value),
            Self::No(_) | Self::Unknown(_) => None,
        }
    }

    /// The same as a result.
    pub fn into_result(self) -> Result<T, Error> {
        match self {
            Self::Yes(value) => Ok(value),
            Self::No(error) | Self::Unknown(error) => Err(error),
        }
    }
}

/// A client of the control plane.
pub struct ControlPlaneClient {
    client: Client,
    breaker: Breaker,
    /// Whether the server was found to know only the document's endpoints.
    plain: AtomicBool,
}

impl ControlPlaneClient {
    /// A client with these settings; a second per call unless they say otherwise.
    pub fn new(options: Options, clock: Arc<dyn Clock>) -> Result<Self, Error> {
        Ok(Self::over(Client::new(options)?, clock))
    }

    /// Over a client that exists already.
    pub fn over(client: Client, clock: Arc<dyn Clock>) -> Self {
        Self {
            client,
            breaker: Breaker::new(clock),
            plain: AtomicBool::new(false),
        }
    }

    /// Whether the server was found to know only the document's endpoints.
    pub fn is_plain(&self) -> bool {
        self.plain.load(Ordering::Relaxed)
    }

    fn found_plain(&self) {
        if !self.plain.swap(true, Ordering::Relaxed) {
            tracing::info!("control plane supports only the plain endpoints");
        }
    }

    /// Registers this runner.
    pub async fn register_runner(&self, request: &RegisterRequest) -> Outcome<Runner> {
        let path = paths::RUNNER_REGISTER;
        if !self.is_plain() {
            let answer = self.send(Method::POST, path, request, request.incarnation.is_some());
            match answer.await {
                Err(error) if plain::refuses_words(&error) => self.found_plain(),
                answer => return answer.into(),
            }
        }
        let request = plain::register(request);
        self.send(Method::POST, path, &request, false).await.into()
    }

    /// A runner as the control plane knows it: its id, or `tenant/id`.
    pub async fn runner(&self, runner_id: &str) -> Outcome<Runner> {
        self.get(&self.runner_path(paths::RUNNER, runner_id))
            .await
            .into()
    }

    /// The document's endpoints know a runner by its id alone.
    fn runner_path(&self, path: &str, runner_id: &str) -> String {
        match runner_id.split_once('/') {
            Some((_, id)) if self.is_plain() => paths::runner(path, id),
            _ => paths::runner(path, runner_id),
        }
    }

    /// The runners of a site.
    pub async fn runners(&self, tenant: &str, site: &str) -> Outcome<Vec<Runner>> {
        let (tenant, site) = (paths::encode(tenant), paths::encode(site));
        let path = format!(
            "{}/?tenant_id={tenant}&site_id={site}&limit=1000",
            paths::RUNNERS
        );
        self.list(&path, "runners").await.into()
    }

    /// Takes this runner off the list; what it has is free immediately.
    pub async fn remove_runner(&self, runner_id: &str) -> Outcome<RunnerRemoved> {
        let path = self.runner_path(paths::RUNNER, runner_id);
        self.delete(&path).await.into()
    }

    /// Renews everything this runner has, and learns what it lost and should do. `leases` are those it
    /// believes to have: against a plain server each is renewed by a call of its own.
    pub async fn heartbeat(
        &self,
        runner_id: &str,
        request: &RunnerHeartbeatRequest,
        leases: &[Lease],
    ) -> Outcome<RunnerHeartbeatAnswer> {
        let path = self.runner_path(paths::RUNNER_HEARTBEAT, runner_id);
        let mut request = request.clone();
        request.active_leases = leases.iter().map(|it| it.lease_id.clone()).collect();
        if !self.is_plain() {
            let answer: Result<Value, Error> = self.send(Method::PUT, &path, &request, true).await;
            match answer {
                Ok(value) if value.get("leases").is_some() => {
                    return plain::read(value).into();
                }
                Ok(_) => self.found_plain(),
                Err(error) if plain::refuses_words(&error) => self.found_plain(),
                Err(error) => return Err(error).into(),
            }
        }
        request.incarnation = None;
        let path = self.runner_path(paths::RUNNER_HEARTBEAT, runner_id);
        let reported: Result<Value, Error> = self.send(Method::PUT, &path, &request, true).await;
        let status = match reported {
            Ok(value) => plain::status(&value),
            Err(error) => return Err(error).into(),
        };
        Outcome::Yes(plain::renewed(self, leases, status).await)
    }

    /// Reports this runner's state without renewing anything else.
    pub async fn report_runner_status(
        &self,
        runner_id: &str,
        request: &RunnerHeartbeatRequest,
    ) -> Outcome<Value> {
        let path = self.runner_path(paths::RUNNER_HEARTBEAT, runner_id);
        self.send(Method::PUT, &path, request, true).await.into()
    }

    /// The configuration of a camera.
    pub async fn camera(&self, camera_uuid: &str) -> Outcome<Camera> {
        self.get(&paths::fill(paths::CAMERA, &[camera_uuid]))
            .await
            .into()
    }

    /// All cameras of a site.
    pub async fn cameras(&self, tenant: &str, site: &str) -> Outcome<Vec<Camera>> {
        let path = paths::fill(paths::SITE_CAMERAS, &[tenant, site]);
        self.list(&path, "cameras").await.into()
    }

    /// All zones of a site.
    pub async fn zones(&self, tenant: &str, site: &str) -> Outcome<Vec<Zone>> {
        let path = paths::fill(paths::SITE_ZONES, &[tenant, site]);
        self.list(&path, "zones").await.into()
    }

    /// The versions of a site's configuration.
    pub async fn version(&self, tenant: &str, site: &str) -> Outcome<SiteVersion> {
        let path = paths::fill(paths::SITE_VERSION, &[tenant, site]);
        // The one path that the document writes without a slash at its end.
        self.guarded(self.client.get(path)).await.into()
    }

    /// Cameras that nobody holds.
    pub async fn available_cameras(&self, tenant: &str, site: &str) -> Outcome<Vec<String>> {
        if !self.is_plain() {
            let (tenant, site) = (paths::encode(tenant), paths::encode(site));
            let path = format!(
                "{}/?tenant_id={tenant}&site_id={site}&limit=1000",
                paths::CAMERAS_AVAILABLE
            );
            let answer: Result<AvailableCameras, Error> = self.guarded(self.client.get(path)).await;
            match answer {
                Err(error) if plain::lacks(&error) => self.found_plain(),
                answer => return answer.map(|it| it.cameras).into(),
            }
        }
        plain::available(self, tenant, site).await.into()
    }

    /// The live lease of a camera.
    pub async fn camera_lease(&self, camera_uuid: &str) -> Outcome<Option<Lease>> {
        let path = paths::fill(paths::BY_CAMERA, &[camera_uuid]);
        match self.get(&path).await {
            Err(Error::Problem(problem)) if problem.status == 404 => Outcome::Yes(None),
            answer => answer.into(),
        }
    }

    /// The live leases of a runner.
    pub async fn runner_leases(&self, runner_id: &str) -> Outcome<Vec<Lease>> {
        let path = self.runner_path(paths::BY_RUNNER, runner_id);
        self.list(&path, "leases").await.into()
    }

    /// Asks for a camera.
    pub async fn acquire(&self, request: &AcquireRequest) -> Outcome<Lease> {
        if !self.is_plain() {
            let answer = self.send(
                Method::POST,
                paths::ACQUIRE,
                request,
                request.incarnation.is_some(),
            );
            match answer.await {
                Err(error) if plain::refuses_words(&error) => self.found_plain(),
                answer => return answer.into(),
            }
        }
        let request = plain::acquire(request);
        self.send(Method::POST, paths::ACQUIRE, &request, false)
            .await
            .into()
    }

    /// Keeps one lease.
    pub async fn renew(&self, lease_id: &str, request: &RenewRequest) -> Outcome<Lease> {
        let path = paths::fill(paths::RENEW, &[lease_id]);
        self.send(Method::PUT, &path, request, true).await.into()
    }

    /// Gives a lease back. Twice is fine, and so is one that is gone.
    pub async fn release(&self, lease_id: &str) -> Outcome<()> {
        let path = paths::fill(paths::RELEASE, &[lease_id]);
        match self.delete::<Value>(&path).await {
            Err(Error::Problem(problem)) if matches!(problem.status, 404 | 410) => Outcome::Yes(()),
            answer => answer.map(|_| ()).into(),
        }
    }

    /// Reports that work on a camera began.
    pub async fn notify_camera_assigned(&self, lease: &Lease) -> Outcome<Success> {
        self.notify(lease, "assigned").await
    }

    /// Reports that work on a camera ended. A lease that is over already is no failure.
    pub async fn notify_camera_released(&self, lease: &Lease) -> Outcome<Success> {
        match self.notify(lease, "released").await {
            Outcome::No(Error::Problem(problem)) if matches!(problem.status, 404 | 410) => {
                Outcome::Yes(Success { success: true })
            }
            outcome => outcome,
        }
    }

    async fn notify(&self, lease: &Lease, word: &str) -> Outcome<Success> {
        let request = HeartbeatRequest {
            processing_stats: None,
            camera_status: Some(word.into()),
        };
        let path = paths::fill(paths::HEARTBEAT, &[&lease.lease_id]);
        self.send(Method::POST, &path, &request, true).await.into()
    }

    /// Sends the newest still of a camera: its token, the size of the camera's own picture, and the bytes.
    /// Says nothing about the server's health, so the breaker is left alone.
    pub async fn picture(
        &self,
        camera_uuid: &str,
        token: u64,
        (width, height): (u32, u32),
        picture: Bytes,
    ) -> Outcome<Success> {
        let path = paths::fill(paths::CAMERA_PICTURE, &[camera_uuid]);
        let call = Call {
            method: Method::PUT,
            body: Some(picture),
            media: "application/octet-stream",
            limit: PICTURE_LIMIT,
            ..self.client.get(format!(
                "{path}?token={token}&width={width}&height={height}"
            ))
        };
        self.client.call(call).await.into()
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        self.guarded(self.client.get(slashed(path))).await
    }

    async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        let call = Call {
            method: Method::DELETE,
            ..self.client.get(slashed(path))
        };
        self.guarded(call).await
    }

    async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: &impl Serialize,
        repeatable: bool,
    ) -> Result<T, Error> {
        let mut call = self.client.with_body(method, slashed(path), body)?;
        call.repeatable = repeatable;
        self.guarded(call).await
    }

    /// A list: with pages, or as other servers write theirs.
    async fn list<T: DeserializeOwned>(&self, path: &str, name: &str) -> Result<Vec<T>, Error> {
        let mut items = Vec::new();
        let mut next = slashed(path);
        for _ in 0..MAX_PAGES {
            let page: Value = self.guarded(self.client.get(next)).await?;
            let (found, cursor) = plain::page(page, name)?;
            items.extend(found);
            match cursor {
                Some(cursor) => {
                    let path = slashed(path);
                    let sign = if path.contains('?') { '&' } else { '?' };
                    next = format!("{path}{sign}cursor={}", paths::encode(&cursor));
                }
                None => return items.into_iter().map(plain::read).collect(),
            }
        }
        Err(Error::Unknown(format!(
            "a list of more than {MAX_PAGES} pages"
        )))
    }

    /// Makes a call, unless the server has been out of reach lately.
    async fn guarded<T: DeserializeOwned>(&self, call: Call) -> Result<T, Error> {
        let pass = self.breaker.enter()?;
        let answer = self.client.call(call).await;
        let reached = match &answer {
            Ok(_) => true,
            Err(error) => error.is_definite(),
        };
        pass.done(reached);
        answer
    }
}

/// Other servers insist on the slash.
fn slashed(path: &str) -> String {
    let (path, query) = path.split_at(path.find('?').unwrap_or(path.len()));
    format!("{}/{query}", path.trim_end_matches('/'))
}
