-- The name of a runner is given once within its tenant: its presence is `runner:tenant/name`.
CREATE OR REPLACE VIEW runner_overview AS
SELECT r.runner_id, r.tenant_id, r.site_id, r.deployment_group, r.deployment_version, r.host, r.port,
    r.status, r.capacity, r.registered_at, r.last_heartbeat,
    p.lease_id IS NOT NULL AS present, p.expires_at AS present_until,
    (SELECT count(*) FROM leases c
        WHERE c.runner_id = r.runner_id AND c.tenant_id IS NOT DISTINCT FROM r.tenant_id
            AND c.status = 'active' AND c.camera_uuid IS NOT NULL) AS cameras
FROM runners r
LEFT JOIN leases p ON p.key = 'runner:' || r.tenant_id || '/' || r.runner_id AND p.status = 'active';
