//! One camera: a supervised ffmpeg that is begun again when it ends, its pictures looked at one by one,
//! and what is published about them.

use std::{
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use lease::{BootMillis, Clock, UnixMillis};
use leasehold_api::{
    Time,
    worker::{CameraReport, Fence, ShardCamera},
};
use leasehold_clock::Backoff;
use tokio::{
    io::BufReader,
    process::ChildStdout,
    sync::{mpsc, watch},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

use super::{
    frame::{self, Frame},
    message::{Detection, Head, Moved, Status, Topic},
    metrics::Metrics,
    motion::{self, Area, Change, Detector, Gate},
    publish::{Letter, Publisher},
    source,
    tenure::Tenure,
    zones::{self, Region},
};
use crate::{
    ffmpeg,
    supervise::{Child, Launcher},
};

/// How long ffmpeg may take to end by itself.
const STOP_LIMIT: Duration = Duration::from_millis(500);
/// How long the last message about a camera may take.
const LAST_MESSAGE: Duration = Duration::from_secs(1);
/// The shortest and the longest pause before a stream is begun again, in ms.
const PAUSE_MS: (u64, u64) = (500, 30_000);
/// So many attempts in a row without a picture, and the camera counts as failed: one hiccup must not send
/// it to another host.
const FAILED_ATTEMPTS: u32 = 3;
/// Motion that goes on is published once in so many ms.
const ONGOING_MS: u64 = 1_000;
/// Pictures that wait to be looked at. What comes faster is skipped: old pictures help nobody.
const PICTURES: usize = 2;

/// What all streams of a worker share.
pub(super) struct Common {
    pub clock: Arc<dyn Clock>,
    pub launcher: Launcher,
    pub publisher: Publisher,
    pub metrics: Arc<Metrics>,
    pub runner_id: String,
    pub shard_id: String,
    pub worker_id: String,
    pub frames_per_second: f64,
    pub stall_ms: u64,
    pub status_ms: u64,
}

/// How a stream does, as others see it.
#[derive(Default)]
struct Seen {
    frames: AtomicU64,
    /// 0 before the first.
    last_frame_unix_ms: AtomicU64,
    state: Mutex<State>,
    /// The newest picture, and how much smaller than the camera's own it is.
    picture: Mutex<Option<(Arc<Frame>, f64)>>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
enum State {
    #[default]
    Starting,
    Working,
    /// Ended, and is begun again.
    Retrying(String),
    /// Ended several times without a picture; it is still tried.
    Failed(String),
}

impl Seen {
    fn picture(&self) -> MutexGuard<'_, Option<(Arc<Frame>, f64)>> {
        self.picture.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, state: State) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    fn state(&self) -> State {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.clone()
    }

    fn last_frame(&self) -> Option<Time> {
        match self.last_frame_unix_ms.load(Ordering::Relaxed) {
            0 => None,
            millis => Some(UnixMillis::new(millis).into()),
        }
    }
}

/// One camera under one token.
pub(super) struct Stream {
    tenure: Arc<Tenure>,
    settings: watch::Sender<Arc<ShardCamera>>,
    seen: Arc<Seen>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Stream {
    pub fn start(common: Arc<Common>, camera: ShardCamera) -> Self {
        let tenure = Arc::new(Tenure::new(common.clock.clone(), camera.fence.clone()));
        let (settings, watched) = watch::channel(Arc::new(camera));
        let seen = Arc::new(Seen::default());
        let stop = CancellationToken::new();
        let runner = Runner {
            common,
            fence: tenure.watch(),
            tenure: tenure.clone(),
            settings: watched,
            seen: seen.clone(),
            stop: stop.clone(),
            detector: Detector::default(),
            gate: Gate::default(),
            announced: false,
            next_status: BootMillis::default(),
            next_ongoing: BootMillis::default(),
        };
        Self {
            tenure,
            settings,
            seen,
            stop,
            task: tokio::spawn(runner.run()),
        }
    }

    pub fn token(&self) -> u64 {
        self.tenure.token()
    }

    /// Notes what the manager wrote about the camera's lease.
    pub fn fence(&self, written: Option<&Fence>) {
        self.tenure.update(written);
    }

    /// Changes what it does, under the same token.
    pub fn change(&self, camera: ShardCamera) {
        self.tenure.update(Some(&camera.fence));
        self.settings.send_if_modified(|now| {
            let changed = now.camera != camera.camera
                || now.config_version != camera.config_version
                || now.zone_version != camera.zone_version;
            if changed {
                *now = Arc::new(camera);
            }
            changed
        });
    }

    /// Whether pictures come.
    pub fn is_working(&self) -> bool {
        self.seen.state() == State::Working
    }

    /// Whether there is a picture that may be published.
    pub fn has_picture(&self) -> bool {
        self.tenure.may_publish() && self.seen.picture().is_some()
    }

    /// The newest picture that may be published, and how much smaller than the camera's own it is.
    pub fn picture(&self) -> Option<(Arc<Frame>, f64)> {
        let picture = self.seen.picture().clone();
        picture.filter(|_| self.tenure.may_publish())
    }

    pub fn report(&self) -> CameraReport {
        let (state, error) = match self.seen.state() {
            State::Starting => ("starting", None),
            State::Working => ("working", None),
            State::Retrying(error) => ("starting", Some(error)),
            State::Failed(error) => ("failed", Some(error)),
        };
        CameraReport {
            state: state.to_owned(),
            token: self.token(),
            last_frame_unix_ms: match self.seen.last_frame_unix_ms.load(Ordering::Relaxed) {
                0 => None,
                millis => Some(millis),
            },
            error,
        }
    }

    /// Stops it. Nothing is published about the camera under this token afterwards.
    pub async fn stop(mut self) {
        self.stop.cancel();
        let limit = 4 * STOP_LIMIT + LAST_MESSAGE;
        if tokio::time::timeout(limit, &mut self.task).await.is_err() {
            self.task.abort();
        }
        self.tenure.close();
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.tenure.close();
        self.task.abort();
    }
}

/// How a run of ffmpeg came to its end.
enum Ended {
    /// The camera is taken away.
    Stopped,
    /// Something changed that needs a new one, or the lease is over.
    Restart,
    /// By itself.
    Failed(String),
}

struct Runner {
    common: Arc<Common>,
    tenure: Arc<Tenure>,
    fence: watch::Receiver<Fence>,
    settings: watch::Receiver<Arc<ShardCamera>>,
    seen: Arc<Seen>,
    stop: CancellationToken,
    detector: Detector,
    gate: Gate,
    announced: bool,
    next_status: BootMillis,
    next_ongoing: BootMillis,
}

impl Runner {
    async fn run(mut self) {
        let mut backoff = Backoff::new(PAUSE_MS.0, PAUSE_MS.1);
        let mut attempts = 0_u32;
        let name = self.settings.borrow().camera.camera_uuid.clone();
        loop {
            self.announce();
            if !self.tenure.may_work() {
                // Past the deadline: silent until a later one is written, or the end.
                tokio::select! {
                    () = self.stop.cancelled() => break,
                    _ = self.fence.changed() => continue,
                }
            }
            let frames = self.seen.frames.load(Ordering::Relaxed);
            let ended = self.watch().await;
            self.common.metrics.up(&name, false);
            match ended {
                Ended::Stopped => break,
                Ended::Restart => self.seen.set(State::Starting),
                Ended::Failed(error) => {
                    self.common.metrics.reconnect(&name);
                    if self.seen.frames.load(Ordering::Relaxed) > frames {
                        backoff.reset();
                        attempts = 0;
                    } else {
                        attempts = attempts.saturating_add(1);
                    }
                    let pause_ms = backoff.next_ms();
                    tracing::warn!(camera = name, error, pause_ms, "stream ended");
                    self.seen.set(if attempts < FAILED_ATTEMPTS {
                        State::Retrying(error.clone())
                    } else {
                        State::Failed(error.clone())
                    });
                    self.status("offline", Some(error));
                    let until = self.common.clock.boot().plus(pause_ms);
                    tokio::select! {
                        () = self.stop.cancelled() => break,
                        // Whoever changed something wants to see whether it helps.
                        _ = self.settings.changed() => attempts = 0,
                        () = self.common.clock.sleep_until(until) => {}
                    }
                }
            }
        }
        if self.announced {
            let camera = self.settings.borrow().clone();
            let status = self.status_of(&camera, "stopped", None);
            let letter = letter(&camera, Topic::Status, &status.head.message_id, &status);
            self.common
                .publisher
                .publish_and_wait(&letter, &self.tenure, LAST_MESSAGE)
                .await;
        }
        self.tenure.close();
    }

    /// Starts ffmpeg and looks at its pictures until it ends or must end.
    async fn watch(&mut self) -> Ended {
        let camera = self.settings.borrow_and_update().clone();
        let url = camera.camera.rtsp_url.clone();
        let scale = motion::scale(&camera.camera.motion_gating);
        let Some(program) = ffmpeg::find() else {
            return Ended::Failed("ffmpeg is not installed".to_owned());
        };
        let (mut child, stdout, _script) = match self.spawn(&program, &url, scale) {
            Ok(started) => started,
            Err(error) => return Ended::Failed(error),
        };
        let (pictures, mut frames) = mpsc::channel(PICTURES);
        let metrics = self.common.metrics.clone();
        let name = camera.camera.camera_uuid.clone();
        let reader = tokio::spawn(read(stdout, pictures, metrics, name));
        let mut hidden = Hidden::new(&url);
        let ended = self
            .follow(&mut child, &mut frames, &url, scale, &mut hidden)
            .await;
        end(&mut child, &*self.common.clock).await;
        reader.abort();
        ended
    }

    fn spawn(
        &self,
        program: &Path,
        url: &str,
        scale: f64,
    ) -> Result<(Child, ChildStdout, ffmpeg::Script), String> {
        let (command, script) = source::command(program, url, scale, self.common.frames_per_second)
            .map_err(|error| format!("cannot prepare ffmpeg: {error}"))?;
        let deadline = self.tenure.deadline();
        let mut child = command
            .deadline(asked_at(deadline), deadline)
            .spawn(&self.common.launcher)
            .map_err(|error| error.to_string())?;
        let stdout = child.take_stdout().ok_or("ffmpeg has no output")?;
        Ok((child, stdout, script))
    }

    async fn follow(
        &mut self,
        child: &mut Child,
        frames: &mut mpsc::Receiver<Frame>,
        url: &str,
        scale: f64,
        hidden: &mut Hidden,
    ) -> Ended {
        let clock = self.common.clock.clone();
        let mut heard = clock.boot();
        let mut lines = true;
        let mut online = false;
        loop {
            let stalled = heard.plus(self.common.stall_ms);
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return Ended::Stopped,
                changed = self.fence.changed() => {
                    if changed.is_err() || !self.tenure.may_work() {
                        return Ended::Restart;
                    }
                    let deadline = self.tenure.deadline();
                    if child.deadline(asked_at(deadline), deadline).is_err() {
                        return Ended::Failed("the guardian of ffmpeg takes no orders".to_owned());
                    }
                    self.announce();
                }
                changed = self.settings.changed() => {
                    let camera = self.settings.borrow_and_update().clone();
                    let other = camera.camera.rtsp_url != url
                        || motion::scale(&camera.camera.motion_gating).to_bits() != scale.to_bits();
                    if changed.is_err() || other {
                        return Ended::Restart;
                    }
                    self.status("changed", None);
                }
                frame = frames.recv() => match frame {
                    Some(frame) => {
                        heard = clock.boot();
                        self.look(&frame, scale, !std::mem::replace(&mut online, true));
                        *self.seen.picture() = Some((Arc::new(frame), scale));
                    }
                    None => return self.over(child, hidden).await,
                },
                line = child.line(), if lines => match line {
                    Some(line) => hidden.note(&line.text),
                    None => lines = false,
                },
                () = clock.sleep_until(stalled) => {
                    let seconds = self.common.stall_ms / 1000;
                    return Ended::Failed(hidden.with(&format!("no picture for {seconds} s")));
                }
            }
        }
    }

    /// The pictures ended: why?
    async fn over(&self, child: &mut Child, hidden: &mut Hidden) -> Ended {
        if !self.tenure.may_work() {
            return Ended::Restart;
        }
        let drained = async {
            while let Some(line) = child.line().await {
                hidden.note(&line.text);
            }
        };
        let _ = tokio::time::timeout(STOP_LIMIT, drained).await;
        // The child's own end, and no longer than that: the caller stops it in any case.
        let exit = tokio::time::timeout(STOP_LIMIT, child.wait()).await;
        let why = match exit {
            Ok(exit) => format!("ffmpeg {}", exit.end),
            Err(_) => "ffmpeg closed its output".to_owned(),
        };
        Ended::Failed(hidden.with(&why))
    }

    /// Looks at one picture.
    fn look(&mut self, frame: &Frame, scale: f64, first: bool) {
        let now = self.common.clock.unix();
        let boot = self.common.clock.boot();
        let camera = self.settings.borrow().clone();
        let name = camera.camera.camera_uuid.as_str();
        let number = self.seen.frames.fetch_add(1, Ordering::Relaxed) + 1;
        self.seen
            .last_frame_unix_ms
            .store(now.get(), Ordering::Relaxed);
        self.common.metrics.frame(name, now.get());
        if first {
            self.seen.set(State::Working);
            self.common.metrics.up(name, true);
        }
        self.announce();
        if first {
            self.status("online", None);
        } else if boot >= self.next_status {
            self.status("alive", None);
        }
        let gating = &camera.camera.motion_gating;
        if !gating.enabled {
            return;
        }
        let areas = self.detector.look(frame, scale, gating.min_area_px);
        let moved = counted(&camera.camera, &areas);
        if !moved.is_empty() {
            self.common.metrics.motion(name);
        }
        let event = match self.gate.step(!moved.is_empty(), gating.cooldown_frames) {
            Change::Started => "motion_started",
            Change::Ongoing if boot >= self.next_ongoing => "motion",
            Change::Ended => "motion_ended",
            Change::Ongoing | Change::None => return,
        };
        self.next_ongoing = boot.plus(ONGOING_MS);
        let detection = Detection {
            head: self.head(&camera, event),
            frame: number,
            frame_at: now.into(),
            areas: moved,
        };
        let id = detection.head.message_id.clone();
        let letter = letter(&camera, Topic::Detections, &id, &detection);
        self.common.publisher.publish(&letter, &self.tenure);
    }

    /// The first message under this token, as soon as it may be published.
    fn announce(&mut self) {
        if !self.announced && self.tenure.may_publish() {
            self.announced = true;
            self.status("started", None);
        }
    }

    fn status(&mut self, event: &'static str, error: Option<String>) {
        self.next_status = self.common.clock.boot().plus(self.common.status_ms);
        let camera = self.settings.borrow().clone();
        let status = self.status_of(&camera, event, error);
        let letter = letter(&camera, Topic::Status, &status.head.message_id, &status);
        self.common.publisher.publish(&letter, &self.tenure);
    }

    fn status_of(
        &self,
        camera: &ShardCamera,
        event: &'static str,
        error: Option<String>,
    ) -> Status {
        Status {
            head: self.head(camera, event),
            frames: self.seen.frames.load(Ordering::Relaxed),
            last_frame_at: self.seen.last_frame(),
            error,
        }
    }

    fn head(&self, camera: &ShardCamera, event: &'static str) -> Head {
        let of = &camera.camera;
        Head {
            message_id: uuid::Uuid::new_v4().to_string(),
            event,
            tenant_id: of.tenant_id.clone(),
            site_id: of.site_id.clone(),
            camera_uuid: of.camera_uuid.clone(),
            runner_id: self.common.runner_id.clone(),
            shard_id: self.common.shard_id.clone(),
            worker_id: self.common.worker_id.clone(),
            lease_id: self.tenure.lease_id(),
            token: self.tenure.token(),
            config_version: camera.config_version.clone(),
            zone_version: camera.zone_version.clone(),
            at: self.common.clock.unix().into(),
        }
    }
}

fn letter<'a, T>(
    camera: &'a ShardCamera,
    topic: Topic,
    message_id: &str,
    body: &'a T,
) -> Letter<'a, T> {
    Letter {
        topic,
        tenant: &camera.camera.tenant_id,
        site: &camera.camera.site_id,
        camera: &camera.camera.camera_uuid,
        message_id: message_id.to_owned(),
        body,
    }
}

/// What of the motion counts, and for which zone.
fn counted(camera: &lease::registry::Camera, areas: &[Area]) -> Vec<Moved> {
    let count = |area: &Area| {
        let zone = match zones::place(camera, area) {
            Region::Zone(zone) => Some(zone),
            Region::Anywhere => None,
            Region::Ignored => return None,
        };
        Some(Moved {
            zone_id: zone.map(|zone| zone.zone_id),
            zone: zone.map(|zone| zone.name.clone()),
            bounds: [area.x, area.y, area.width, area.height],
            area_px: area.pixels,
        })
    };
    areas.iter().filter_map(count).collect()
}

/// When ffmpeg is asked to end, so that it has ended at the deadline.
fn asked_at(deadline: BootMillis) -> BootMillis {
    let limit = u64::try_from(STOP_LIMIT.as_millis()).unwrap_or(u64::MAX);
    BootMillis::new(deadline.get().saturating_sub(limit))
}

/// Ends ffmpeg, by force when it takes too long.
async fn end(child: &mut Child, clock: &dyn Clock) {
    if child.stop(STOP_LIMIT).is_err() {
        child.kill_by_hand();
    }
    // The guardian kills at the end of the grace; twice that means it does not.
    let limit = u64::try_from(STOP_LIMIT.as_millis()).unwrap_or(u64::MAX);
    let limit = clock.boot().plus(2 * limit);
    tokio::select! {
        _ = child.wait() => {}
        () = clock.sleep_until(limit) => child.kill_by_hand(),
    }
}

/// Reads pictures to the end. ffmpeg must not block because the last picture is still being looked at.
async fn read(
    stdout: ChildStdout,
    pictures: mpsc::Sender<Frame>,
    metrics: Arc<Metrics>,
    camera: String,
) {
    let mut stdout = BufReader::with_capacity(1 << 16, stdout);
    loop {
        match frame::read(&mut stdout).await {
            Ok(Some(picture)) => match pictures.try_send(picture) {
                Ok(()) => {}
                Err(mpsc::error::TrySendError::Full(_)) => metrics.skipped(&camera),
                Err(mpsc::error::TrySendError::Closed(_)) => return,
            },
            Ok(None) | Err(_) => return,
        }
    }
}

/// The last thing that ffmpeg printed, without the camera's login: it likes to repeat its address.
struct Hidden {
    secrets: ffmpeg::Secrets,
    last: String,
}

impl Hidden {
    fn new(url: &str) -> Self {
        Self {
            secrets: ffmpeg::Secrets::of(url),
            last: String::new(),
        }
    }

    fn note(&mut self, line: &str) {
        let text = self.secrets.hide(line);
        tracing::debug!("ffmpeg: {text}");
        self.last = text.chars().take(500).collect();
    }

    fn with(&self, why: &str) -> String {
        if self.last.is_empty() {
            why.to_owned()
        } else {
            format!("{why}: {}", self.last)
        }
    }
}
