//! Which zone motion belongs to. Pure functions over the camera's zones.

use std::cmp::Reverse;

use lease::registry::{Camera, Polygon, Zone, ZoneKind, ZoneTest};

use super::motion::Area;

/// What an area of motion means.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Region<'a> {
    /// It lies in this zone, and that counts.
    Zone(&'a Zone),
    /// The camera has no zones that count, so everything does.
    Anywhere,
    /// It lies in a zone that is ignored, or in none of those that count.
    Ignored,
}

/// Where an area lies. Where zones overlap, the larger priority wins; of two equal ones the one that
/// excludes, then the smaller number.
pub(super) fn place<'a>(camera: &'a Camera, area: &Area) -> Region<'a> {
    let found = camera
        .zones
        .iter()
        .filter(|zone| belongs(camera, zone, area))
        .min_by_key(|zone| {
            (
                Reverse(zone.priority),
                zone.kind == ZoneKind::Include,
                zone.zone_id,
            )
        });
    match found {
        Some(zone) if zone.kind == ZoneKind::Include => Region::Zone(zone),
        Some(_) => Region::Ignored,
        None if camera.zones.iter().any(|it| it.kind == ZoneKind::Include) => Region::Ignored,
        None => Region::Anywhere,
    }
}

fn belongs(camera: &Camera, zone: &Zone, area: &Area) -> bool {
    if !zone.polygon.contains(area.center()) {
        return false;
    }
    match camera.zone_test {
        ZoneTest::Center => true,
        ZoneTest::CenterAndOverlap => overlap(&zone.polygon, area) >= camera.iou_threshold,
    }
}

/// Intersection over union of a zone and the box of an area: 0 when they are apart, 1 when they are the
/// same.
pub(super) fn overlap(polygon: &Polygon, area: &Area) -> f64 {
    let common = surface(&clipped(&polygon.0, area));
    let all = surface(&polygon.0) + area.width * area.height - common;
    if all > 0.0 { common / all } else { 0.0 }
}

/// A polygon cut to a box, one side of the box after the other (Sutherland and Hodgman).
fn clipped(points: &[[f64; 2]], area: &Area) -> Vec<[f64; 2]> {
    // By axis: the limit, and on which side of it the box lies.
    let sides = [
        (0, area.x, 1.0),
        (0, area.x + area.width, -1.0),
        (1, area.y, 1.0),
        (1, area.y + area.height, -1.0),
    ];
    let mut points = points.to_vec();
    for (axis, limit, sign) in sides {
        let inside = |point: [f64; 2]| (point[axis] - limit) * sign >= 0.0;
        let mut kept = Vec::with_capacity(points.len() + 4);
        for index in 0..points.len() {
            let (from, to) = (points[index], points[(index + 1) % points.len()]);
            if inside(from) {
                kept.push(from);
            }
            if inside(from) != inside(to) {
                let share = (limit - from[axis]) / (to[axis] - from[axis]);
                let mut cut = [
                    from[0] + (to[0] - from[0]) * share,
                    from[1] + (to[1] - from[1]) * share,
                ];
                cut[axis] = limit;
                kept.push(cut);
            }
        }
        points = kept;
    }
    points
}

/// The surface of a polygon (Gauss).
fn surface(points: &[[f64; 2]]) -> f64 {
    let doubled: f64 = (0..points.len())
        .map(|index| {
            let ([x1, y1], [x2, y2]) = (points[index], points[(index + 1) % points.len()]);
            x1 * y2 - x2 * y1
        })
        .sum();
    doubled.abs() / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rectangle(left: f64, top: f64, right: f64, bottom: f64) -> Polygon {
        Polygon(vec![
            [left, top],
            [right, top],
            [right, bottom],
            [left, bottom],
        ])
    }

    fn zone(zone_id: u32, kind: ZoneKind, priority: i32, polygon: Polygon) -> Zone {
        Zone {
            zone_id,
            name: format!("zone {zone_id}"),
            kind,
            priority,
            polygon,
            allow_labels: None,
            deny_labels: None,
            min_score: None,
            camera_uuid: None,
        }
    }

    fn camera(zones: Vec<Zone>) -> Camera {
        let document =
            r#"{"camera_uuid": "c", "rtsp_url": "rtsp://h/s", "tenant_id": "t", "site_id": "s"}"#;
        Camera {
            zones,
            ..serde_json::from_str(document).unwrap()
        }
    }

    fn area(x: f64, y: f64, width: f64, height: f64) -> Area {
        Area {
            x,
            y,
            width,
            height,
            pixels: width * height,
        }
    }

    fn number(place: Region<'_>) -> Option<u32> {
        match place {
            Region::Zone(zone) => Some(zone.zone_id),
            Region::Anywhere | Region::Ignored => None,
        }
    }

    #[test]
    fn without_zones_everything_counts() {
        let camera = camera(Vec::new());
        assert_eq!(place(&camera, &area(0.0, 0.0, 9.0, 9.0)), Region::Anywhere);
    }

    #[test]
    fn only_excluding_zones_leave_the_rest_to_count() {
        let camera = camera(vec![zone(
            1,
            ZoneKind::Exclude,
            1,
            rectangle(0.0, 0.0, 50.0, 50.0),
        )]);
        assert_eq!(place(&camera, &area(10.0, 10.0, 9.0, 9.0)), Region::Ignored);
        assert_eq!(
            place(&camera, &area(90.0, 10.0, 9.0, 9.0)),
            Region::Anywhere
        );
    }

    #[test]
    fn with_an_including_zone_the_rest_is_ignored() {
        let camera = camera(vec![zone(
            7,
            ZoneKind::Include,
            1,
            rectangle(0.0, 0.0, 50.0, 50.0),
        )]);
        assert_eq!(number(place(&camera, &area(10.0, 10.0, 9.0, 9.0))), Some(7));
        assert_eq!(place(&camera, &area(90.0, 10.0, 9.0, 9.0)), Region::Ignored);
    }

    #[test]
    fn the_larger_priority_wins_and_then_the_exclusion() {
        let whole = || rectangle(0.0, 0.0, 100.0, 100.0);
        let inner = || rectangle(20.0, 20.0, 40.0, 40.0);
        let moving = area(28.0, 28.0, 4.0, 4.0);
        let of = |zones| place(&camera(zones), &moving) == Region::Ignored;
        assert!(of(vec![
            zone(1, ZoneKind::Include, 100, whole()),
            zone(2, ZoneKind::Exclude, 200, inner())
        ]));
        assert!(!of(vec![
            zone(1, ZoneKind::Include, 100, whole()),
            zone(2, ZoneKind::Exclude, 50, inner())
        ]));
        assert!(of(vec![
            zone(1, ZoneKind::Include, 100, whole()),
            zone(2, ZoneKind::Exclude, 100, inner())
        ]));
        let two = camera(vec![
            zone(9, ZoneKind::Include, 5, whole()),
            zone(4, ZoneKind::Include, 5, whole()),
        ]);
        assert_eq!(number(place(&two, &moving)), Some(4));
    }

    #[test]
    fn overlap_is_intersection_over_union() {
        let square = rectangle(0.0, 0.0, 10.0, 10.0);
        let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(near(overlap(&square, &area(0.0, 0.0, 10.0, 10.0)), 1.0));
        assert!(near(
            overlap(&square, &area(5.0, 0.0, 10.0, 10.0)),
            50.0 / 150.0
        ));
        assert!(near(overlap(&square, &area(20.0, 0.0, 5.0, 5.0)), 0.0));
        // A concave zone, and a box over its notch.
        let concave = Polygon(vec![
            [0.0, 0.0],
            [10.0, 0.0],
            [10.0, 10.0],
            [5.0, 0.0 + 5.0],
            [0.0, 10.0],
        ]);
        assert!(near(
            overlap(&concave, &area(0.0, 0.0, 10.0, 10.0)),
            75.0 / 100.0
        ));
    }

    #[test]
    fn the_stricter_test_wants_enough_of_it_inside() {
        let mut camera = camera(vec![zone(
            1,
            ZoneKind::Include,
            1,
            rectangle(0.0, 0.0, 10.0, 10.0),
        )]);
        let large = area(-10.0, -10.0, 30.0, 30.0);
        assert_eq!(number(place(&camera, &large)), Some(1));
        camera.zone_test = ZoneTest::CenterAndOverlap;
        camera.iou_threshold = 0.2;
        assert_eq!(place(&camera, &large), Region::Ignored);
        camera.iou_threshold = 0.1;
        assert_eq!(number(place(&camera, &large)), Some(1));
    }
}
