//! Looking at how a site's cameras are split among its runners, and at everything together.

use leasehold_api::{
    Explanation, Plan,
    overview::{OVERVIEW, Overview},
    paths,
};

use crate::{Client, Error};

impl Client {
    /// Counts over everything, what the store promises, the broker and the replicas.
    pub async fn overview(&self) -> Result<Overview, Error> {
        self.call(self.get(OVERVIEW)).await
    }

    /// Which cameras of a site would move, and why.
    pub async fn plan(&self, tenant_id: &str, site_id: &str) -> Result<Plan, Error> {
        let path = paths::fill(paths::SITE_PLAN, &[tenant_id, site_id]);
        self.call(self.get(path)).await
    }

    /// Why a camera is where it is.
    pub async fn explain(&self, camera_uuid: &str) -> Result<Explanation, Error> {
        let path = paths::fill(paths::CAMERA_EXPLAIN, &[camera_uuid]);
        self.call(self.get(path)).await
    }
}
