//! The ways of splitting targets over nodes that are compared.

use lease::rendezvous::{self, Node, fnv1a};

/// How many points each node has on the ring: a common default, and more makes joining slow.
const VIRTUAL_NODES: usize = 100;

/// A way to split targets over nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scheme {
    /// What Leasehold does: rendezvous with separator and finaliser, and a bound.
    Bounded,
    /// The same hash, without the bound.
    Rendezvous,
    /// Rendezvous on plain FNV-1a over node and target, as it is often written.
    PlainFnv,
    /// A ring with virtual nodes.
    Ring,
    /// Jump hashing over the sorted nodes.
    Jump,
}

impl Scheme {
    pub const ALL: [Self; 5] = [
        Self::Bounded,
        Self::Rendezvous,
        Self::PlainFnv,
        Self::Ring,
        Self::Jump,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Bounded => "bounded rendezvous",
            Self::Rendezvous => "rendezvous, no bound",
            Self::PlainFnv => "plain FNV-1a rendezvous",
            Self::Ring => "ring, 100 virtual nodes",
            Self::Jump => "jump hashing",
        }
    }

    /// For each target the place of its node. There must be at least one node.
    pub fn split(self, nodes: &[String], targets: &[String]) -> Vec<usize> {
        match self {
            Self::Bounded => {
                let equal: Vec<Node<'_>> = nodes.iter().map(|name| Node::equal(name)).collect();
                let names: Vec<&str> = targets.iter().map(String::as_str).collect();
                rendezvous::assign(&equal, &names, |_, _| true)
                    .into_iter()
                    .flatten()
                    .collect()
            }
            Self::Rendezvous => by_highest(nodes, targets, rendezvous::hash),
            Self::PlainFnv => by_highest(nodes, targets, |node, target| {
                fnv1a(node.bytes().chain(target.bytes()))
            }),
            Self::Ring => ring(nodes, targets),
            Self::Jump => jump(nodes, targets),
        }
    }
}

fn by_highest(
    nodes: &[String],
    targets: &[String],
    hash: impl Fn(&str, &str) -> u64,
) -> Vec<usize> {
    let highest = |target: &String| {
        (0..nodes.len())
            .max_by_key(|&node| hash(&nodes[node], target))
            .unwrap_or_default()
    };
    targets.iter().map(highest).collect()
}

/// A good hash of one text, so that ring and jump are judged by what they are, not by their hash.
fn well_mixed(text: &str) -> u64 {
    rendezvous::finalise(fnv1a(text.bytes()))
}

fn ring(nodes: &[String], targets: &[String]) -> Vec<usize> {
    let mut points: Vec<(u64, usize)> = Vec::with_capacity(nodes.len() * VIRTUAL_NODES);
    for (node, name) in nodes.iter().enumerate() {
        for point in 0..VIRTUAL_NODES {
            points.push((well_mixed(&format!("{name}#{point}")), node));
        }
    }
    points.sort_unstable();
    let next = |target: &String| {
        let hash = well_mixed(target);
        let place = points.partition_point(|&(point, _)| point < hash);
        points[place % points.len()].1
    };
    targets.iter().map(next).collect()
}

/// Jump hashing knows only a number of buckets: nodes are numbered in the order of their names, so
/// that every instance numbers them alike.
fn jump(nodes: &[String], targets: &[String]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..nodes.len()).collect();
    order.sort_by(|&a, &b| nodes[a].cmp(&nodes[b]));
    targets
        .iter()
        .map(|target| order[jump_bucket(well_mixed(target), nodes.len())])
        .collect()
}

#[expect(
    clippy::cast_sign_loss,
    reason = "buckets are counted from zero and stay far below 2^53"
)]
fn jump_bucket(mut key: u64, buckets: usize) -> usize {
    let mut bucket = 0_i64;
    let mut next = 0_i64;
    while next < i64::try_from(buckets).unwrap_or(i64::MAX) {
        bucket = next;
        key = key.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
        let spread = (1_u64 << 31) as f64 / ((key >> 33) + 1) as f64;
        next = ((bucket + 1) as f64 * spread) as i64;
    }
    bucket as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(prefix: &str, count: usize) -> Vec<String> {
        (1..=count).map(|n| format!("{prefix}-{n}")).collect()
    }

    #[test]
    fn plain_fnv_puts_nine_targets_on_one_of_three_nodes_and_the_bound_splits_them_evenly() {
        let (nodes, targets) = (names("node", 3), names("session", 9));
        let load = |scheme: Scheme| {
            let mut load = [0; 3];
            for node in scheme.split(&nodes, &targets) {
                load[node] += 1;
            }
            load.sort_unstable();
            load
        };
        assert_eq!(load(Scheme::PlainFnv), [0, 0, 9]);
        assert_eq!(load(Scheme::Bounded), [3, 3, 3]);
    }

    #[test]
    fn jump_moves_targets_only_to_the_new_last_bucket() {
        for key in 0..1_000 {
            let key = rendezvous::finalise(key);
            let (before, after) = (jump_bucket(key, 7), jump_bucket(key, 8));
            assert!(after == before || after == 7, "{before} became {after}");
        }
    }
}
