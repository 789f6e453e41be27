//! The outline of a zone.

use serde::{Deserialize, Serialize};

/// A closed outline in pixels: at least three points, and no edge crosses another.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Polygon(pub Vec<[f64; 2]>);

impl Polygon {
    /// A polygon has corners.
    pub const MIN_POINTS: usize = 3;
    /// More points than any hand draws; the crossing check is quadratic.
    pub const MAX_POINTS: usize = 512;

    /// Whether it is a simple polygon.
    pub fn is_simple(&self) -> bool {
        let points = &self.0;
        let count = points.len();
        if !(Self::MIN_POINTS..=Self::MAX_POINTS).contains(&count)
            || points.iter().flatten().any(|number| !number.is_finite())
        {
            return false;
        }
        let edge = |index: usize| (points[index], points[(index + 1) % count]);
        for first in 0..count {
            let (a, b) = edge(first);
            // An edge of zero length has no direction, so crossings could not be determined.
            if dot(a, b, b) == 0.0 {
                return false;
            }
            for second in first + 1..count {
                let (c, d) = edge(second);
                let neighbours = second == first + 1 || (first == 0 && second == count - 1);
                if neighbours {
                    // Neighbours share a point; they must not also fold back onto each other.
                    let (shared, one, other) = if second == first + 1 {
                        (b, a, d)
                    } else {
                        (a, b, c)
                    };
                    if orientation(one, shared, other) == 0.0 && dot(shared, one, other) > 0.0 {
                        return false;
                    }
                } else if cross(a, b, c, d) {
                    return false;
                }
            }
        }
        true
    }

    /// Whether a point lies inside, by the even–odd rule.
    pub fn contains(&self, [x, y]: [f64; 2]) -> bool {
        let points = &self.0;
        let mut inside = false;
        let mut previous = points.len().wrapping_sub(1);
        for current in 0..points.len() {
            let [xi, yi] = points[current];
            let [xj, yj] = points[previous];
            if (yi > y) != (yj > y) && x < (xj - xi) * (y - yi) / (yj - yi) + xi {
                inside = !inside;
            }
            previous = current;
        }
        inside
    }
}

fn orientation(a: [f64; 2], b: [f64; 2], c: [f64; 2]) -> f64 {
    (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])
}

fn dot(from: [f64; 2], a: [f64; 2], b: [f64; 2]) -> f64 {
    (a[0] - from[0]) * (b[0] - from[0]) + (a[1] - from[1]) * (b[1] - from[1])
}

/// Whether two edges touch or cross.
fn cross(a: [f64; 2], b: [f64; 2], c: [f64; 2], d: [f64; 2]) -> bool {
    let on = |p: [f64; 2], q: [f64; 2], r: [f64; 2]| {
        orientation(p, q, r) == 0.0
            && (p[0].min(q[0])..=p[0].max(q[0])).contains(&r[0])
            && (p[1].min(q[1])..=p[1].max(q[1])).contains(&r[1])
    };
    let sides = |p, q, r, s| orientation(p, q, r) * orientation(p, q, s) < 0.0;
    (sides(a, b, c, d) && sides(c, d, a, b))
        || on(a, b, c)
        || on(a, b, d)
        || on(c, d, a)
        || on(c, d, b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simple_and_not() {
        let square = Polygon(vec![[0.0, 0.0], [10.0, 0.0], [10.0, 10.0], [0.0, 10.0]]);
        assert!(square.is_simple());
        assert!(square.contains([5.0, 5.0]) && !square.contains([15.0, 5.0]));
        let bow_tie = Polygon(vec![[0.0, 0.0], [10.0, 10.0], [10.0, 0.0], [0.0, 10.0]]);
        assert!(!bow_tie.is_simple());
        let folded = Polygon(vec![[0.0, 0.0], [10.0, 0.0], [5.0, 0.0]]);
        assert!(!folded.is_simple());
        assert!(!Polygon(vec![[0.0, 0.0], [1.0, 0.0]]).is_simple());
        assert!(!Polygon(vec![[0.0, 0.0], [f64::NAN, 0.0], [1.0, 1.0]]).is_simple());
        let concave = Polygon(vec![
            [0.0, 0.0],
            [10.0, 0.0],
            [10.0, 10.0],
            [5.0, 2.0],
            [0.0, 10.0],
        ]);
        assert!(concave.is_simple());
    }
}
