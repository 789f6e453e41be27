//! What is wrong with settings, as far as that can be known without talking to anybody.

use lease::{Invalid, registry::is_name};

use super::Settings;

/// What names look like.
const NAME: &str = "1 to 255 characters of A-Z a-z 0-9 . _ -";

impl Settings {
    /// Checks everything that can be checked without talking to anybody.
    pub fn check(&self) -> Result<(), Invalid> {
        let require = |ok: bool, field: &'static str, expected: &'static str| {
            if ok {
                Ok(())
            } else {
                Err(Invalid::new(field, expected))
            }
        };
        require(
            self.manager_mode,
            "manager_mode",
            "true: run `leasehold camera-worker` for a worker alone",
        )?;
        let has_url = !self.control_plane_url.0.is_empty();
        require(
            has_url != self.database_url.is_some(),
            "control_plane_url",
            "exactly one of control_plane_url and database_url",
        )?;
        require(is_name(&self.tenant_id), "tenant_id", NAME)?;
        require(is_name(&self.site_id), "site_id", NAME)?;
        require(
            is_name(self.runner_id.as_deref().unwrap_or("-")),
            "runner_id",
            NAME,
        )?;
        require(is_name(&self.deployment_group), "deployment_group", NAME)?;
        require(
            is_name(&self.deployment_version),
            "deployment_version",
            NAME,
        )?;
        require(
            (1..=64).contains(&self.max_workers),
            "max_workers",
            "1 to 64",
        )?;
        require(
            (1..=1000).contains(&self.max_cameras_per_worker),
            "max_cameras_per_worker",
            "1 to 1000",
        )?;
        require(
            (1_000..=3_600_000).contains(&self.lease_ttl_seconds.millis()),
            "lease_ttl_seconds",
            "1 to 3600 seconds",
        )?;
        for (field, period) in [
            (
                "heartbeat_interval_seconds",
                self.heartbeat_interval_seconds,
            ),
            (
                "lease_retry_interval_seconds",
                self.lease_retry_interval_seconds,
            ),
            (
                "config_sync_interval_seconds",
                self.config_sync_interval_seconds,
            ),
            (
                "worker.health_interval_seconds",
                self.worker.health_interval_seconds,
            ),
            (
                "worker.heartbeat_timeout_seconds",
                self.worker.heartbeat_timeout_seconds,
            ),
            (
                "worker.start_grace_seconds",
                self.worker.start_grace_seconds,
            ),
            (
                "worker.takeaway_limit_seconds",
                self.worker.takeaway_limit_seconds,
            ),
        ] {
            let fits = (100..=3_600_000).contains(&period.millis());
            require(fits, field, "0.1 to 3600 seconds")?;
        }
        require(
            self.worker.drain_grace_seconds.millis() <= 3_600_000,
            "worker.drain_grace_seconds",
            "at most 3600 seconds",
        )?;
        require(
            (1..=10_000).contains(&self.connects_per_second),
            "connects_per_second",
            "1 to 10,000",
        )?;
        require(self.drain_batch >= 1, "drain_batch", "at least 1")?;
        for url in &self.control_plane_url.0 {
            let http = url.starts_with("http://") || url.starts_with("https://");
            require(http, "control_plane_url", "http:// or https:// addresses")?;
        }
        for url in &self.peers.0 {
            let http = url.starts_with("http://");
            require(http, "peers", "addresses http://HOST:PORT")?;
        }
        self.ttl()?;
        self.on_outage().map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::read;

    #[test]
    fn what_is_wrong_is_named() {
        let field = |text: &str| read(text).check().map_err(|wrong| wrong.field);
        assert_eq!(
            field("{tenant_id: t, site_id: s}"),
            Err("control_plane_url")
        );
        assert_eq!(
            field("{control_plane_url: http://h, site_id: s}"),
            Err("tenant_id")
        );
        assert_eq!(
            field("{control_plane_url: http://h, tenant_id: t, site_id: s, max_workers: 0}"),
            Err("max_workers")
        );
        assert_eq!(
            field("{control_plane_url: http://h, tenant_id: t, site_id: s, manager_mode: false}"),
            Err("manager_mode")
        );
    }
}
