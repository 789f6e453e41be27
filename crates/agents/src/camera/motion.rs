//! Motion gating: what moved in a picture, and when motion begins and ends. Pure: pictures in, areas out.

use lease::registry::MotionGating;

use super::frame::Frame;

/// How much a pixel must differ from the background to count as changed: more than the noise of a
/// compressed picture.
const THRESHOLD: u16 = 24;
/// The background follows the picture by half of the difference, so that what stopped belongs to it after
/// a few frames.
const FOLLOW: u16 = 2;
/// The most areas of one picture that are looked at, the largest ones.
const MAX_AREAS: usize = 32;
/// The smallest scale that still leaves a picture; a configured 0 would leave none.
const MIN_SCALE: f64 = 0.02;

/// How much smaller pictures are made before they are looked at.
pub(super) fn scale(gating: &MotionGating) -> f64 {
    gating.downscale.clamp(MIN_SCALE, 1.0)
}

/// Something that moved, in pixels of the camera's own picture.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Area {
    pub x: f64,
    pub y: f64,
    pub width: f64,
    pub height: f64,
    /// How many pixels changed.
    pub pixels: f64,
}

impl Area {
    pub fn center(&self) -> [f64; 2] {
        [self.x + self.width / 2.0, self.y + self.height / 2.0]
    }
}

/// Compares each picture with a background that follows slowly.
#[derive(Default, Debug)]
pub(super) struct Detector {
    width: usize,
    height: usize,
    background: Vec<u8>,
    /// Which pixels changed and belong to no area yet.
    changed: Vec<bool>,
    /// Pixels of the area that is being followed; kept to save the allocation.
    open: Vec<usize>,
}

impl Detector {
    /// The areas of at least `min_area_px` that moved, the largest first. The first picture, and one of
    /// another size, only becomes the background.
    pub fn look(&mut self, frame: &Frame, scale: f64, min_area_px: u32) -> Vec<Area> {
        if (frame.width, frame.height) != (self.width, self.height) {
            (self.width, self.height) = (frame.width, frame.height);
            self.background.clone_from(&frame.pixels);
            self.changed = vec![false; frame.pixels.len()];
            return Vec::new();
        }
        self.compare(frame);
        let mut areas = Vec::new();
        for start in 0..self.changed.len() {
            if self.changed[start] {
                let area = self.follow(start, scale);
                if area.pixels >= f64::from(min_area_px.max(1)) {
                    areas.push(area);
                }
            }
        }
        areas.sort_by(|a, b| b.pixels.total_cmp(&a.pixels));
        areas.truncate(MAX_AREAS);
        areas
    }

    /// Marks what changed, and lets the background follow.
    fn compare(&mut self, frame: &Frame) {
        let pixels = self.background.iter_mut().zip(&frame.pixels);
        for ((background, &now), changed) in pixels.zip(&mut self.changed) {
            let before = u16::from(*background);
            let now = u16::from(now);
            *changed = before.abs_diff(now) > THRESHOLD;
            let step = before.abs_diff(now).div_ceil(FOLLOW);
            let next = if now > before {
                before + step
            } else {
                before - step
            };
            // Between two bytes.
            *background = next as u8;
        }
    }

    /// Takes the area that `start` belongs to out of what changed.
    fn follow(&mut self, start: usize, scale: f64) -> Area {
        let (mut left, mut right) = (usize::MAX, 0);
        let (mut top, mut bottom) = (usize::MAX, 0);
        let mut count = 0_u32;
        self.open.clear();
        self.open.push(start);
        self.changed[start] = false;
        while let Some(at) = self.open.pop() {
            let (x, y) = (at % self.width, at / self.width);
            count += 1;
            left = left.min(x);
            right = right.max(x);
            top = top.min(y);
            bottom = bottom.max(y);
            let neighbours = [
                (x > 0).then(|| at - 1),
                (x + 1 < self.width).then(|| at + 1),
                (y > 0).then(|| at - self.width),
                (y + 1 < self.height).then(|| at + self.width),
            ];
            for neighbour in neighbours.into_iter().flatten() {
                if std::mem::take(&mut self.changed[neighbour]) {
                    self.open.push(neighbour);
                }
            }
        }
        Area {
            x: left as f64 / scale,
            y: top as f64 / scale,
            width: (right - left + 1) as f64 / scale,
            height: (bottom - top + 1) as f64 / scale,
            pixels: f64::from(count) / (scale * scale),
        }
    }
}

/// What a picture means for the motion of a camera.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    /// Nothing moves, or only within the cooldown.
    None,
    /// Motion begins.
    Started,
    /// It goes on.
    Ongoing,
    /// Nothing has moved for as long as the cooldown.
    Ended,
}

/// Whether something moves, with a cooldown so that a pause of a few frames is no end.
#[derive(Default, Debug)]
pub(super) struct Gate {
    moving: bool,
    quiet_frames: u32,
}

impl Gate {
    pub fn step(&mut self, moved: bool, cooldown_frames: u32) -> Change {
        if moved {
            self.quiet_frames = 0;
            return if std::mem::replace(&mut self.moving, true) {
                Change::Ongoing
            } else {
                Change::Started
            };
        }
        if !self.moving {
            return Change::None;
        }
        self.quiet_frames += 1;
        if self.quiet_frames <= cooldown_frames {
            return Change::None;
        }
        self.moving = false;
        self.quiet_frames = 0;
        Change::Ended
    }
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "whole numbers are exact")]
mod tests {
    use super::*;

    /// A grey picture of 40 × 30 with a white box.
    fn picture(box_at: Option<(usize, usize)>) -> Frame {
        let mut pixels = vec![100; 40 * 30];
        if let Some((left, top)) = box_at {
            for y in top..top + 6 {
                for x in left..left + 8 {
                    pixels[y * 40 + x] = 240;
                }
            }
        }
        Frame {
            width: 40,
            height: 30,
            pixels,
        }
    }

    #[test]
    fn a_box_that_appears_is_found_where_it_is() {
        let mut detector = Detector::default();
        assert_eq!(detector.look(&picture(None), 0.5, 1), []);
        let found = detector.look(&picture(Some((10, 5))), 0.5, 150);
        let [area] = found.as_slice() else {
            panic!("{found:?}");
        };
        // Twice as large, since the picture is half as large as the camera's.
        assert_eq!((area.x, area.y), (20.0, 10.0));
        assert_eq!((area.width, area.height), (16.0, 12.0));
        assert_eq!(area.pixels, 192.0);
        assert_eq!(area.center(), [28.0, 16.0]);
    }

    #[test]
    fn small_areas_and_noise_are_no_motion() {
        let mut detector = Detector::default();
        detector.look(&picture(None), 0.5, 193);
        assert_eq!(detector.look(&picture(Some((10, 5))), 0.5, 193), []);
        let mut noisy = picture(None);
        for (index, pixel) in noisy.pixels.iter_mut().enumerate() {
            *pixel += (index % 20) as u8;
        }
        let mut detector = Detector::default();
        detector.look(&picture(None), 0.5, 1);
        assert_eq!(detector.look(&noisy, 0.5, 1), []);
    }

    #[test]
    fn what_stays_becomes_background() {
        let mut detector = Detector::default();
        detector.look(&picture(None), 1.0, 1);
        let counts: Vec<usize> = (0..8)
            .map(|_| detector.look(&picture(Some((10, 5))), 1.0, 1).len())
            .collect();
        assert_eq!(counts[0], 1);
        assert_eq!(counts[7], 0, "{counts:?}");
    }

    #[test]
    fn two_things_are_two_areas_and_the_largest_is_first() {
        let mut both = picture(Some((2, 2)));
        both.pixels[29 * 40 + 39] = 255;
        let mut detector = Detector::default();
        detector.look(&picture(None), 1.0, 1);
        let found = detector.look(&both, 1.0, 1);
        let pixels: Vec<f64> = found.iter().map(|area| area.pixels).collect();
        assert_eq!(pixels, [48.0, 1.0]);
    }

    #[test]
    fn a_picture_of_another_size_is_a_new_beginning() {
        let mut detector = Detector::default();
        detector.look(&picture(None), 1.0, 1);
        let small = Frame {
            width: 2,
            height: 2,
            pixels: vec![255; 4],
        };
        assert_eq!(detector.look(&small, 1.0, 1), []);
    }

    #[test]
    fn motion_ends_after_its_cooldown() {
        use Change::{Ended, None, Ongoing, Started};
        let mut gate = Gate::default();
        let changes: Vec<Change> = [
            false, true, true, false, false, true, false, false, false, false,
        ]
        .into_iter()
        .map(|moved| gate.step(moved, 2))
        .collect();
        assert_eq!(
            changes,
            [
                None, Started, Ongoing, None, None, Ongoing, None, None, Ended, None
            ]
        );
    }

    #[test]
    fn a_scale_of_nothing_is_not_used() {
        let gating = |downscale| MotionGating {
            downscale,
            ..MotionGating::default()
        };
        assert!(scale(&gating(0.0)) > 0.0);
        assert_eq!(scale(&gating(1.0)), 1.0);
    }
}
