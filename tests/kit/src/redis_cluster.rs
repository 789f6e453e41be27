//! A real Redis cluster.

use std::time::Duration;

use crate::{Error, Program, Redis, wait};

/// Nodes greet each other about once a second; a busy machine needs several rounds.
const FORM_TIMEOUT: Duration = Duration::from_secs(40);
/// Short, so that a test sees a dead node noticed.
const NODE_TIMEOUT_MS: &str = "2000";

/// Redis nodes that share the key space, without replicas.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<Redis>,
}

impl RedisCluster {
    /// Starts `nodes` servers and joins them; Redis wants at least three. Ready when each of them
    /// says that the cluster is whole.
    ///
    /// # Panics
    ///
    /// When the cluster does not form.
    pub async fn start(nodes: usize) -> Self {
        match Self::try_start(nodes).await {
            Ok(cluster) => cluster,
            Err(error) => panic!("{error}"),
        }
    }

    /// As [`RedisCluster::start`], with the error returned.
    pub async fn try_start(nodes: usize) -> Result<Self, Error> {
        let mut cluster = Self {
            nodes: Vec::with_capacity(nodes),
        };
        for _ in 0..nodes {
            let node = Redis::options()
                .with_bus()
                .set("cluster-enabled", "yes")
                .set("cluster-config-file", "nodes.conf")
                .set("cluster-node-timeout", NODE_TIMEOUT_MS)
                .try_start()
                .await?;
            cluster.nodes.push(node);
        }
        Program::new("redis-cli")
            .args(["--cluster", "create"])
            .args(cluster.nodes.iter().map(|node| node.addr().to_string()))
            .args(["--cluster-replicas", "0", "--cluster-yes"])
            .run()
            .await?;
        cluster.wait_until_whole().await?;
        Ok(cluster)
    }

    /// The addresses of all nodes, for clients.
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Redis::url).collect()
    }

    /// The nodes.
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// One node, to stop, kill, pause or restart it.
    ///
    /// # Panics
    ///
    /// When there is no such node.
    pub fn node(&mut self, index: usize) -> &mut Redis {
        &mut self.nodes[index]
    }

    /// Waits until every node says that the cluster is whole.
    pub async fn wait_until_whole(&self) -> Result<(), Error> {
        let whole = wait::within(FORM_TIMEOUT, async || {
            for node in &self.nodes {
                let info = super::redis::cli(node.port(), &["CLUSTER", "INFO"]).await;
                let known = format!("cluster_known_nodes:{}", self.nodes.len());
                match info {
                    Ok(info) if info.contains("cluster_state:ok") && info.contains(&known) => {}
                    _ => return None,
                }
            }
            Some(())
        })
        .await;
        whole.ok_or_else(|| Error::Timeout {
            what: "the Redis cluster to become whole".into(),
            timeout: FORM_TIMEOUT,
            output: String::new(),
        })
    }
}
