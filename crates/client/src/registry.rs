//! Runners, cameras and deployments, as their operator sees them.

use http::Method;
use leasehold_api::{
    Camera, CameraList, Deployment, DeploymentList, DeploymentRequest, Document, Runner,
    RunnerList, RunnerRemoved, Success, paths,
};

use crate::{Client, Error};

/// Which runners a list shows.
#[derive(Clone, Debug, Default)]
pub struct RunnerFilter {
    /// Only this tenant.
    pub tenant_id: Option<String>,
    /// Only this site of the tenant.
    pub site_id: Option<String>,
}

impl RunnerFilter {
    fn values(&self) -> Vec<(&'static str, Option<String>)> {
        vec![
            ("tenant_id", self.tenant_id.clone()),
            ("site_id", self.site_id.clone()),
        ]
    }
}

/// What an operator orders a runner to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RunnerOrder {
    /// Keep what it has and take nothing new.
    Cordon,
    /// Take work again.
    Uncordon,
    /// Hand everything over, in batches.
    Drain,
    /// Give everything up immediately.
    DrainHard,
}

/// What an operator orders a deployment to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeploymentOrder {
    /// Shift nothing further.
    Pause,
    /// Shift cameras again.
    Resume,
    /// Give every camera back to the version before.
    Rollback,
}

impl Client {
    /// All runners.
    pub async fn runners(&self, filter: &RunnerFilter) -> Result<Vec<Runner>, Error> {
        self.every(paths::RUNNERS, filter.values(), |page: RunnerList| {
            (page.runners, page.next_cursor)
        })
        .await
    }

    /// One runner: its id, or `tenant/id`.
    pub async fn runner(&self, runner_id: &str) -> Result<Runner, Error> {
        self.call(self.get(paths::runner(paths::RUNNER, runner_id)))
            .await
    }

    /// Orders a runner to do something. Needs the admin scope.
    pub async fn order_runner(&self, runner_id: &str, order: RunnerOrder) -> Result<Runner, Error> {
        let path = match order {
            RunnerOrder::Cordon => paths::RUNNER_CORDON,
            RunnerOrder::Uncordon => paths::RUNNER_UNCORDON,
            RunnerOrder::Drain | RunnerOrder::DrainHard => paths::RUNNER_DRAIN,
        };
        let mut path = paths::runner(path, runner_id);
        if order == RunnerOrder::DrainHard {
            path.push(if path.contains('?') { '&' } else { '?' });
            path.push_str("hard=true");
        }
        let mut call = self.get(path);
        call.method = Method::POST;
        self.call(call).await
    }

    /// Takes a runner off the list; what it has is free immediately.
    pub async fn remove_runner(&self, runner_id: &str) -> Result<RunnerRemoved, Error> {
        let mut call = self.get(paths::runner(paths::RUNNER, runner_id));
        call.method = Method::DELETE;
        self.call(call).await
    }

    /// The last deployment of every group.
    pub async fn deployments(&self, filter: &RunnerFilter) -> Result<Vec<Deployment>, Error> {
        self.every(
            paths::DEPLOYMENTS,
            filter.values(),
            |page: DeploymentList| (page.deployments, page.next_cursor),
        )
        .await
    }

    /// The last deployment of a group.
    pub async fn deployment(
        &self,
        tenant: &str,
        site: &str,
        group: &str,
    ) -> Result<Deployment, Error> {
        let path = paths::fill(paths::DEPLOYMENT, &[tenant, site, group]);
        self.call(self.get(path)).await
    }

    /// Begins to move the cameras of a group to another version. Needs the admin scope.
    pub async fn start_deployment(&self, request: &DeploymentRequest) -> Result<Deployment, Error> {
        let call = self.with_body(Method::POST, paths::DEPLOYMENTS, request)?;
        self.call(call).await
    }

    /// Orders a deployment to do something. Needs the admin scope.
    pub async fn order_deployment(
        &self,
        (tenant, site, group): (&str, &str, &str),
        order: DeploymentOrder,
    ) -> Result<Deployment, Error> {
        let path = match order {
            DeploymentOrder::Pause => paths::DEPLOYMENT_PAUSE,
            DeploymentOrder::Resume => paths::DEPLOYMENT_RESUME,
            DeploymentOrder::Rollback => paths::DEPLOYMENT_ROLLBACK,
        };
        let mut call = self.get(paths::fill(path, &[tenant, site, group]));
        call.method = Method::POST;
        self.call(call).await
    }

    /// All cameras of a site.
    pub async fn site_cameras(&self, tenant: &str, site: &str) -> Result<Vec<Camera>, Error> {
        let path = paths::fill(paths::SITE_CAMERAS, &[tenant, site]);
        self.every(&path, Vec::new(), |page: CameraList| {
            (page.cameras, page.next_cursor)
        })
        .await
    }

    /// One camera.
    pub async fn camera(&self, camera_uuid: &str) -> Result<Camera, Error> {
        self.call(self.get(paths::fill(paths::CAMERA, &[camera_uuid])))
            .await
    }

    /// Adds a camera to a site.
    pub async fn create_camera(
        &self,
        tenant: &str,
        site: &str,
        document: &Document,
    ) -> Result<Camera, Error> {
        let path = paths::fill(paths::SITE_CAMERAS, &[tenant, site]);
        self.call(self.with_body(Method::POST, path, document)?)
            .await
    }

    /// Changes the fields of a camera that the document names.
    pub async fn update_camera(
        &self,
        tenant: &str,
        site: &str,
        camera_uuid: &str,
        document: &Document,
    ) -> Result<Camera, Error> {
        let path = paths::fill(paths::SITE_CAMERA, &[tenant, site, camera_uuid]);
        let mut call = self.with_body(Method::PUT, path, document)?;
        call.repeatable = true;
        self.call(call).await
    }

    /// Removes a camera; whoever holds it loses it.
    pub async fn remove_camera(
        &self,
        tenant: &str,
        site: &str,
        camera_uuid: &str,
    ) -> Result<Success, Error> {
        let path = paths::fill(paths::SITE_CAMERA, &[tenant, site, camera_uuid]);
        let mut call = self.get(path);
        call.method = Method::DELETE;
        self.call(call).await
    }
}
