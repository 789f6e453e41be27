//! The set of cameras: what is added, dropped and changed without touching the rest.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures_util::future::join_all;
use leasehold_api::worker::{CameraReport, FenceFile, ShardConfig, WorkerReady};
use tokio_util::sync::CancellationToken;

use super::{
    frame::Frame,
    stream::{Common, Stream},
};

/// More cameras than one process can look at.
const MAX_CAMERAS: usize = 1024;

/// Why a set was refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refused {
    /// It is none.
    #[error("{0}")]
    Invalid(String),
    /// It is for somebody else, or too late.
    #[error("{0}")]
    Conflict(String),
}

/// The worker.
pub(super) struct Worker {
    common: Arc<Common>,
    streams: Mutex<BTreeMap<String, Stream>>,
    /// The newest set; held while one is applied, so that they are applied one after the other.
    generation: tokio::sync::Mutex<Option<u64>>,
    draining: CancellationToken,
    terminated: CancellationToken,
}

impl Worker {
    pub fn new(common: Arc<Common>) -> Self {
        Self {
            common,
            streams: Mutex::default(),
            generation: tokio::sync::Mutex::new(None),
            draining: CancellationToken::new(),
            terminated: CancellationToken::new(),
        }
    }

    fn streams(&self) -> MutexGuard<'_, BTreeMap<String, Stream>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes this the full set. Whatever is not in it, or is there under another token, has stopped when
    /// this returns.
    pub async fn apply(&self, config: ShardConfig) -> Result<(), Refused> {
        self.check(&config)?;
        let mut generation = self.generation.lock().await;
        if generation.is_some_and(|newest| config.generation < newest) {
            return Err(Refused::Conflict(format!(
                "generation {} is older than the one at work",
                config.generation
            )));
        }
        if self.draining.is_cancelled() {
            return Err(Refused::Conflict("the worker is draining".to_owned()));
        }
        *generation = Some(config.generation);
        let tokens: BTreeMap<String, u64> = config
            .cameras
            .iter()
            .map(|it| (it.camera.camera_uuid.clone(), it.fence.token))
            .collect();
        let dropped = self.take(|name, stream| tokens.get(name) != Some(&stream.token()));
        let (names, streams): (Vec<String>, Vec<Stream>) = dropped.into_iter().unzip();
        join_all(streams.into_iter().map(Stream::stop)).await;
        let mut added = Vec::new();
        let mut working = self.streams();
        for name in &names {
            if !tokens.contains_key(name) {
                self.common.metrics.forget(name);
            }
        }
        for camera in config.cameras {
            let name = camera.camera.camera_uuid.clone();
            if let Some(stream) = working.get(&name) {
                stream.change(camera);
            } else {
                added.push(name.clone());
                working.insert(name, Stream::start(self.common.clone(), camera));
            }
        }
        self.common.metrics.cameras(working.len());
        tracing::info!(
            generation = config.generation,
            cameras = working.len(),
            added = added.join(","),
            dropped = names.join(","),
            "cameras applied"
        );
        Ok(())
    }

    fn check(&self, config: &ShardConfig) -> Result<(), Refused> {
        let (runner, shard) = (&self.common.runner_id, &self.common.shard_id);
        if config.runner_id != *runner || config.shard_id != *shard {
            return Err(Refused::Conflict(format!(
                "this is shard {shard} of runner {runner}"
            )));
        }
        if config.cameras.len() > MAX_CAMERAS {
            return Err(Refused::Invalid(format!(
                "cameras: expected at most {MAX_CAMERAS}"
            )));
        }
        let mut names = BTreeSet::new();
        for (index, it) in config.cameras.iter().enumerate() {
            if let Err(errors) = it.camera.validate() {
                let error = errors.first().map(ToString::to_string).unwrap_or_default();
                return Err(Refused::Invalid(format!("cameras[{index}].{error}")));
            }
            if !names.insert(&it.camera.camera_uuid) {
                return Err(Refused::Invalid(format!(
                    "cameras[{index}].camera_uuid: expected each camera once"
                )));
            }
        }
        Ok(())
    }

    /// Takes out the streams that the filter picks.
    fn take(&self, mut pick: impl FnMut(&str, &Stream) -> bool) -> BTreeMap<String, Stream> {
        self.streams()
            .extract_if(.., |name, stream| pick(name, stream))
            .collect()
    }

    /// Notes the deadlines as they are now.
    pub fn fence(&self, file: &FenceFile) {
        for (name, stream) in &*self.streams() {
            stream.fence(file.cameras.get(name));
        }
    }

    pub fn ready(&self) -> WorkerReady {
        let streams = self.streams();
        let working = streams.values().filter(|it| it.is_working()).count();
        WorkerReady::of(working, streams.len())
    }

    pub fn reports(&self) -> BTreeMap<String, CameraReport> {
        let streams = self.streams();
        let report = |(name, stream): (&String, &Stream)| (name.clone(), stream.report());
        streams.iter().map(report).collect()
    }

    /// The cameras that there is a picture of and that may be published about, with their tokens.
    pub fn pictured(&self) -> BTreeSet<(String, u64)> {
        let streams = self.streams();
        let pictured = streams.iter().filter(|(_, stream)| stream.has_picture());
        pictured
            .map(|(name, stream)| (name.clone(), stream.token()))
            .collect()
    }

    /// The newest picture of a camera under this token, and how much smaller than the camera's own it is.
    pub fn picture(&self, camera: &str, token: u64) -> Option<(Arc<Frame>, f64)> {
        let streams = self.streams();
        let stream = streams.get(camera).filter(|it| it.token() == token)?;
        stream.picture()
    }

    pub fn metrics(&self) -> &prometheus_client::registry::Registry {
        self.common.metrics.registry()
    }

    /// Asks for a graceful end.
    pub fn drain(&self) {
        self.draining.cancel();
    }

    /// Asks for the end, now.
    pub fn terminate(&self) {
        self.terminated.cancel();
    }

    /// Resolves when a graceful end was asked for.
    pub async fn drained(&self) {
        self.draining.cancelled().await;
    }

    /// Resolves when the end was asked for.
    pub async fn terminated(&self) {
        self.terminated.cancelled().await;
    }

    /// Stops every camera.
    pub async fn stop(&self) {
        self.draining.cancel();
        let _no_more = self.generation.lock().await;
        let streams = self.take(|_, _| true);
        join_all(streams.into_values().map(Stream::stop)).await;
    }
}
